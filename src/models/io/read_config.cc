// config.json as a flat list.
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/error/guard.h"
#include "engine/error/printable.h"
#include "models/io/read_json.h"
#include "multihead/models.h"

namespace multihead::models {
namespace {

using nlohmann::json;

// Follows the tokens of a JSON text and keeps the path of each value. A tree could be so deep that
// its destructor overflows the stack.
class Flattener final : public json::json_sax_t {
 public:
  explicit Flattener(Config& config) : config_(config) {}

  bool null() override { return add({}); }
  bool boolean(bool value) override {
    return add({ConfigValue::Kind::kBool, value ? 1.0 : 0.0, {}});
  }
  bool number_integer(number_integer_t value) override {
    return number(static_cast<double>(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return number(static_cast<double>(value));
  }
  bool number_float(number_float_t value, const string_t& /*text*/) override {
    return number(value);
  }
  bool string(string_t& value) override {
    return add({ConfigValue::Kind::kText, 0, std::move(value)});
  }
  bool binary(binary_t& /*value*/) override { return false; }  // not in JSON text
  bool start_object(size_t /*size*/) override { return enter(false); }
  bool key(string_t& name) override {
    levels_.back().name = name;
    return true;
  }
  bool end_object() override { return leave(); }
  bool start_array(size_t /*size*/) override { return enter(true); }
  bool end_array() override { return leave(); }
  bool parse_error(size_t /*at*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return false;
  }

 private:
  struct Level {
    bool array = false;
    int64_t next = 0;   // element of an array
    std::string name;   // member of an object
    size_t length = 0;  // of the path before this level
  };

  bool number(double value) { return add({ConfigValue::Kind::kNumber, value, {}}); }

  // The path of the next value, whose index in its array is used up.
  std::string next_path() {
    if (levels_.empty()) return path_;
    Level& level = levels_.back();
    const std::string name = level.array ? std::to_string(level.next++) : level.name;
    return path_.empty() ? name : path_ + "." + name;
  }
  bool add(ConfigValue value) {
    if (levels_.empty()) return false;  // a text that is one value
    config_.insert_or_assign(next_path(), std::move(value));
    return true;
  }
  bool enter(bool array) {
    constexpr size_t kMostLevels = 64;
    if (levels_.size() >= kMostLevels || (levels_.empty() && array)) return false;
    std::string path = next_path();
    levels_.push_back({array, 0, {}, path_.size()});
    path_ = std::move(path);
    return true;
  }
  bool leave() {
    path_.resize(levels_.back().length);
    levels_.pop_back();
    return true;
  }

  Config& config_;
  std::vector<Level> levels_;
  std::string path_;
};

}  // namespace

Status read_flat_json(const std::string& path, Config& config) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return {StatusCode::kFormat, engine::printable(path), "a readable file", "none"};
  }
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  Config read;
  Flattener flattener(read);
  if (!json::sax_parse(text, &flattener)) {
    return {StatusCode::kFormat, engine::printable(path), "a JSON object", "something else"};
  }
  config = std::move(read);
  return {};
}

Status read_config(const std::string& path, Config& config) {
  return engine::memory_guard([&] { return read_flat_json(path, config); });
}

}  // namespace multihead::models
