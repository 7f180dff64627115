// Makes the sentences of errors from the templates in messages.inc.
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "engine/error/error.h"
#include "multihead/status.h"
#include "multihead/tensor.h"

namespace multihead {
namespace {

using Record = Status::Record;

constexpr std::string_view kNames[] = {
#define MULTIHEAD_NAME(name, cpp, javascript) cpp,
#include "engine/error/messages.inc"
};

constexpr std::string_view kAxes[] = {
#define MULTIHEAD_AXES(name, text) text,
#include "engine/error/messages.inc"
};

struct Template {
  std::string_view expected, got;
  std::string_view sentence = {};
};
constexpr Template kMessages[] = {
#define MULTIHEAD_MESSAGE(name, ...) {__VA_ARGS__},
#include "engine/error/messages.inc"
};

std::string text_of(double real) {
  if (std::isnan(real)) return "NaN";
  if (std::isinf(real)) return real < 0 ? "-infinity" : "infinity";
  // Like "%g", but with a decimal point in every locale.
  char text[32];
  const auto [end, error] =
      std::to_chars(std::begin(text), std::end(text), real, std::chars_format::general, 6);
  return {text, error == std::errc() ? end : text};
}

std::string dtype_name(int64_t number) { return name_of(static_cast<DType>(number)); }

// In ascending order: the divisors up to the square root, then their quotients.
std::string divisors_of(int64_t number) {
  std::vector<int64_t> divisors;
  for (int64_t low = 1; low * low <= number; ++low) {
    if (number % low == 0) divisors.push_back(low);
  }
  for (size_t i = divisors.size(); i-- > 0;) {
    const int64_t low = divisors[i];
    if (low != number / low) divisors.push_back(number / low);
  }
  std::string text;
  for (size_t i = 0; i < divisors.size(); ++i) {
    if (i > 0) text += i + 1 == divisors.size() ? " or " : ", ";
    text += std::to_string(divisors[i]);
  }
  return text;
}

std::string filled(std::string_view text, const Record& record);

std::string value_of(std::string_view key, const Record& record) {
  if (key.size() == 1 && key[0] >= '0' && key[0] <= '3') {
    return std::to_string(record.numbers[static_cast<size_t>(key[0] - '0')]);
  }
  if (key == "real") return text_of(record.real);
  if (key == "shape") return record.shape.to_string();
  if (key == "given") return record.given.to_string();
  if (key == "axes") return filled(kAxes[static_cast<size_t>(record.axes)], record);
  if (key == "dtype0") return dtype_name(record.numbers[0]);
  if (key == "name0") return std::string(kNames[static_cast<size_t>(record.numbers[0])]);
  if (key == "dtype1") return dtype_name(record.numbers[1]);
  if (key == "divisors") return divisors_of(record.numbers[0]);
  if (key == "text") return record.text;
  return std::string(key);
}

std::string filled(std::string_view text, const Record& record) {
  std::string result;
  for (;;) {
    const size_t open = text.find('{');
    result += text.substr(0, open);
    if (open == std::string_view::npos) return result;
    const size_t close = text.find('}', open);
    result += value_of(text.substr(open + 1, close - open - 1), record);
    text.remove_prefix(close + 1);
  }
}

const Template& template_of(const Record& record) {
  return kMessages[static_cast<size_t>(record.message)];
}

}  // namespace

std::string Status::argument() const {
  if (record_ == nullptr) return {};
  if (record_->message == engine::Message::kWords) return record_->own_argument;
  return std::string(kNames[static_cast<size_t>(record_->argument)]);
}

std::string Status::expected() const {
  if (record_ == nullptr) return {};
  if (record_->message == engine::Message::kWords) return record_->own_expected;
  return filled(template_of(*record_).expected, *record_);
}

std::string Status::got() const {
  return record_ == nullptr ? "" : filled(template_of(*record_).got, *record_);
}

std::string Status::message() const {
  if (ok()) return {};
  const std::string_view sentence = template_of(*record_).sentence;
  if (!sentence.empty()) return argument() + ": " + filled(sentence, *record_);
  return argument() + ": expected " + expected() + ", got " + got();
}

}  // namespace multihead
