#include "models/config_reader.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "engine/error/printable.h"
#include "multihead/status.h"

namespace multihead::models {

// Ten digits, as "%.10g" prints them. The C library's own function would be 8 kB of the WebAssembly
// module.
std::string text_of(double number) {
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number < 0 ? "-infinity" : "infinity";
  if (number == 0) return "0";
  constexpr int kDigits = 10;
  int exponent = 0;
  double mantissa = std::abs(number);
  for (; mantissa >= 10; mantissa /= 10) ++exponent;
  for (; mantissa < 1; mantissa *= 10) --exponent;
  std::string digits = std::to_string(std::llround(mantissa * 1e9));
  if (digits.size() > kDigits) ++exponent;  // rounded up to the next power of ten
  digits.erase(digits.find_last_not_of('0') + 1);
  std::string text = number < 0 ? "-" : "";
  if (exponent < -4 || exponent >= kDigits) {
    const int size = std::abs(exponent);
    text += digits.substr(0, 1) + (digits.size() > 1 ? "." : "") + digits.substr(1);
    return text + (exponent < 0 ? "e-" : "e+") + (size < 10 ? "0" : "") + std::to_string(size);
  }
  if (exponent < 0) {
    return text + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  }
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() < whole) digits.resize(whole, '0');
  if (digits.size() > whole) digits.insert(whole, 1, '.');
  return text + digits;
}

Status setting_error(std::string_view name, std::string_view expected, std::string_view got) {
  // "1_Pooling/config.json/pooling_mode" is a setting of another file.
  const size_t end = name.rfind('/');
  const std::string_view file = end == std::string_view::npos ? "config.json" : name.substr(0, end);
  return {StatusCode::kOption, std::string(file) + ": " + std::string(name.substr(end + 1)),
          expected, got};
}

Status format_error(std::string_view what, std::string_view expected, std::string_view got) {
  return {StatusCode::kFormat, engine::printable(what), expected, got};
}

std::string described(const ConfigValue* value) {
  if (value == nullptr) return "nothing";
  switch (value->kind) {
    case ConfigValue::Kind::kNull:
      return "null";
    case ConfigValue::Kind::kBool:
      return value->number != 0 ? "true" : "false";
    case ConfigValue::Kind::kNumber:
      return text_of(value->number);
    case ConfigValue::Kind::kText:
      break;
  }
  return '"' + value->text + '"';
}

const ConfigValue* ConfigReader::find(std::string_view name) const {
  const auto found = config_.find(prefix_ + std::string(name));
  return found == config_.end() ? nullptr : &found->second;
}

bool ConfigReader::has(std::string_view name) const {
  const ConfigValue* const value = find(name);
  return value != nullptr && value->kind != ConfigValue::Kind::kNull;
}

bool ConfigReader::has_members(std::string_view name) const {
  return begins_a_field(prefix_ + std::string(name) + ".");
}

bool ConfigReader::begins_a_field(const std::string& path) const {
  const auto found = config_.lower_bound(path);
  return found != config_.end() && found->first.starts_with(path);
}

std::string ConfigReader::other_field(std::span<const std::string_view> known) const {
  for (auto field = config_.lower_bound(prefix_);
       field != config_.end() && field->first.starts_with(prefix_); ++field) {
    const std::string_view name = std::string_view(field->first).substr(prefix_.size());
    const bool is_null = field->second.kind == ConfigValue::Kind::kNull;
    if (!is_null && std::find(known.begin(), known.end(), name) == known.end()) {
      return std::string(name);
    }
  }
  return {};
}

const ConfigValue* ConfigReader::find_one(const char* name) {
  if (name == nullptr) return nullptr;
  const ConfigValue* const value = find(name);
  if (value == nullptr && has_members(name)) fail(name, "one value", "several");
  return value;
}

int64_t ConfigReader::integer(const char* name, int64_t absent, const Integers& range) {
  const ConfigValue* const value = find_one(name);
  if (value == nullptr) return absent;
  if (value->kind == ConfigValue::Kind::kNull && range.null_is_zero) return 0;
  const double number = value->number;
  if (value->kind != ConfigValue::Kind::kNumber || number != std::floor(number) ||
      !(number >= static_cast<double>(range.least)) ||
      !(number <= static_cast<double>(range.most))) {
    fail(name,
         "an integer from " + std::to_string(range.least) + " to " + std::to_string(range.most),
         described(value));
    return absent;
  }
  return static_cast<int64_t>(number);
}

double ConfigReader::number(const char* name, double absent, const Numbers& range) {
  const ConfigValue* const value = find_one(name);
  if (value == nullptr) return absent;
  if (value->kind == ConfigValue::Kind::kNull && range.null_is_zero) return 0;
  const double number = value->number;
  if (value->kind != ConfigValue::Kind::kNumber || !(number >= range.least) ||
      !(number <= range.most)) {
    fail(name, "a number from " + text_of(range.least) + " to " + text_of(range.most),
         described(value));
    return absent;
  }
  return number;
}

bool ConfigReader::flag(const char* name, bool absent) {
  const ConfigValue* const value = find_one(name);
  if (value == nullptr) return absent;
  if (value->kind == ConfigValue::Kind::kNull) return false;
  const double number = value->number;
  if (value->kind == ConfigValue::Kind::kText || (number != 0 && number != 1)) {
    fail(name, "true or false", described(value));
    return absent;
  }
  return number != 0;
}

std::string ConfigReader::text(const char* name, std::string_view absent) {
  const ConfigValue* const value = find_one(name);
  if (value == nullptr) return std::string(absent);
  if (value->kind != ConfigValue::Kind::kText) {
    fail(name, "a text", described(value));
    return std::string(absent);
  }
  return value->text;
}

void ConfigReader::fail(std::string_view name, std::string_view expected, std::string_view got) {
  if (status_.ok()) status_ = setting_error(prefix_ + std::string(name), expected, got);
}

}  // namespace multihead::models
