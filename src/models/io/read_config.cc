// JSON files of a folder as flat lists.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/error/error.h"
#include "engine/error/printable.h"
#include "models/io/file_map.h"
#include "models/io/folder.h"
#include "models/io/read_json.h"
#include "multihead/models.h"
#include "nn/io/safetensors_header.h"

namespace multihead::models {
namespace {

using nlohmann::json;

constexpr std::string_view kBlanks = " \t\n\r";

// Follows a JSON text and keeps the path of each value. A tree could be so deep that its destructor
// overflows the stack. nlohmann::json reads texts and numbers; it has no Infinity, no NaN and no
// numbers beyond the range of a double, all of which Python writes and reads.
class Flattener {
 public:
  Flattener(std::string_view text, const JsonFile& file, Config& config)
      : text_(text), member_(file.member), prefix_(file.prefix.size()), path_(file.prefix) {
    config_ = &config;
  }

  // False if the text is no JSON of the kind that the file has; problem() then tells why.
  bool read(bool array) {
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
    if (text_.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
    if (next() != (array ? '[' : '{') || !value(0)) return false;
    return next() == '\0' && at_ == text_.size();
  }

  std::string problem() const {
    if (!problem_.empty()) return problem_;
    int64_t line = 1;
    for (const char letter : text_.substr(0, at_)) line += letter == '\n' ? 1 : 0;
    return "another text in line " + std::to_string(line);
  }

 private:
  // The next character that is no blank; zero at the end.
  char next() {
    while (at_ < text_.size() && kBlanks.find(text_[at_]) != std::string_view::npos) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char wanted) {
    if (next() != wanted) return false;
    ++at_;
    return true;
  }
  bool stop(const std::string& problem) {
    problem_ = problem;
    return false;
  }

  bool value(int64_t level) {
    if (level >= kMostJsonLevels) {
      return stop("more than " + std::to_string(kMostJsonLevels) + " levels");
    }
    switch (next()) {
      case '{':
        return members(level, '}');
      case '[':
        return members(level, ']');
      case '"': {
        std::string text;
        return string(text) && add({ConfigValue::Kind::kText, 0, std::move(text)});
      }
      default:
        return scalar();
    }
  }

  // The members of an object, or the elements of an array.
  bool members(int64_t level, char end) {
    ++at_;
    if (take(end)) return true;
    const size_t length = path_.size();
    for (int64_t index = 0;; ++index) {
      std::string name;
      if (end == ']') {
        name = std::to_string(index);
      } else if (next() != '"' || !string(name) || !take(':')) {
        return false;
      }
      if (length > prefix_) path_ += '.';
      path_ += name;
      if (path_.size() > static_cast<size_t>(kMostJsonPath) && is_kept()) {
        return stop("a name of more than " + std::to_string(kMostJsonPath) + " bytes");
      }
      // The last of several members of one name counts.
      if (end == '}' && is_kept()) forget();
      if (!value(level + 1)) return false;
      path_.resize(length);
      if (take(end)) return true;
      if (!take(',')) return false;
    }
  }

  bool is_kept() const {
    const std::string_view name = std::string_view(path_).substr(prefix_);
    return member_.empty() || (name.starts_with(member_) &&
                               (name.size() == member_.size() || name[member_.size()] == '.'));
  }

  // Removes the value of this path, and those below it.
  void forget() {
    const auto first = config_->lower_bound(path_);
    auto end = first;
    while (end != config_->end() && end->first.starts_with(path_) &&
           (end->first.size() == path_.size() || end->first[path_.size()] == '.')) {
      ++end;
    }
    config_->erase(first, end);
  }

  bool add(ConfigValue value) {
    if (!is_kept()) return true;
    if (++values_ > kMostJsonValues) {
      return stop("more than " + std::to_string(kMostJsonValues) + " values");
    }
    config_->insert_or_assign(path_, std::move(value));
    return true;
  }

  bool string(std::string& to) {
    const size_t begin = at_++;
    while (at_ < text_.size() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
    if (at_ >= text_.size()) return stop("a text without an end");
    ++at_;
    const std::string_view quoted = text_.substr(begin, at_ - begin);
    json parsed = json::parse(quoted.begin(), quoted.end(), nullptr, false);
    if (!parsed.is_string()) {
      at_ = begin;
      return false;
    }
    to = std::move(parsed.get_ref<std::string&>());
    return true;
  }

  bool scalar() {
    const size_t begin = at_;
    while (at_ < text_.size() &&
           std::string_view(",]} \t\n\r").find(text_[at_]) == std::string_view::npos) {
      ++at_;
    }
    const std::string_view word = text_.substr(begin, at_ - begin);
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (word == "null") return add({});
    if (word == "true" || word == "false") {
      return add({ConfigValue::Kind::kBool, word == "true" ? 1.0 : 0.0, {}});
    }
    if (word == "NaN") return number(std::numeric_limits<double>::quiet_NaN());
    if (word == "Infinity") return number(kInfinity);
    if (word == "-Infinity") return number(-kInfinity);
    const json parsed = json::parse(word.begin(), word.end(), nullptr, false);
    if (parsed.is_number()) return number(parsed.get<double>());
    if (is_number(word)) return number(word.front() == '-' ? -kInfinity : kInfinity);
    at_ = begin;
    return false;
  }

  bool number(double value) { return add({ConfigValue::Kind::kNumber, value, {}}); }

  // True for a number of JSON, however large.
  static bool is_number(std::string_view word) {
    const auto take_digits = [&] {
      const size_t count = std::min(word.find_first_not_of("0123456789"), word.size());
      word.remove_prefix(count);
      return count;
    };
    if (word.starts_with('-')) word.remove_prefix(1);
    const bool zero = word.starts_with('0');
    const size_t whole = take_digits();
    if (whole == 0 || (zero && whole > 1)) return false;
    if (word.starts_with('.')) {
      word.remove_prefix(1);
      if (take_digits() == 0) return false;
    }
    if (word.starts_with('e') || word.starts_with('E')) {
      word.remove_prefix(1);
      if (word.starts_with('+') || word.starts_with('-')) word.remove_prefix(1);
      if (take_digits() == 0) return false;
    }
    return word.empty();
  }

  std::string_view text_;
  std::string_view member_;
  size_t prefix_ = 0;
  std::string path_;
  Config* config_ = nullptr;
  size_t at_ = 0;
  int64_t values_ = 0;
  std::string problem_;
};

Status read_json(const JsonFile& file, bool optional, Config& config) {
  std::shared_ptr<FileMap> map;
  if (const Status status = FileMap::open(file.path, map); !status.ok()) {
    return optional && status.code() == StatusCode::kFormat ? Status() : status;
  }
  const std::span<const std::byte> bytes = map->bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto refuse = [&](const std::string& expected, const std::string& got) -> Status {
    return {StatusCode::kFormat, engine::printable(file.path, 400), expected, got};
  };
  const size_t first = text.find_first_not_of(kBlanks);
  const bool is_page = first != std::string_view::npos && text[first] == '<';
  if (optional && is_page) return {};
  if (bytes.size() > static_cast<size_t>(kMostJsonBytes)) {
    return refuse("at most " + std::to_string(kMostJsonBytes) + " bytes",
                  std::to_string(bytes.size()));
  }
  Config read = config;
  Flattener flattener(text, file, read);
  if (!flattener.read(file.array)) {
    const std::string_view kind =
        text.starts_with('{') ? std::string_view() : nn::kind_of_file(text);
    return refuse(file.array ? "a JSON array" : "a JSON object",
                  kind.empty() ? flattener.problem() : std::string(kind));
  }
  config = std::move(read);
  return {};
}

}  // namespace

Status read_flat_json(const JsonFile& file, Config& config) {
  return read_json(file, false, config);
}

Status read_optional_json(const JsonFile& file, Config& config) {
  return read_json(file, true, config);
}

Status read_config(const std::string& path, Config& config) {
  return engine::memory_guard([&]() -> Status {
    Config read;
    MULTIHEAD_TRY(read_flat_json({.path = path}, read));
    config = std::move(read);
    return {};
  });
}

}  // namespace multihead::models
