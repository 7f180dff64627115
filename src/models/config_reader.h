// Reads settings from the flat list of config.json, and keeps the first error.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "multihead/models.h"
#include "multihead/status.h"

namespace multihead::models {

// An error in a setting of config.json, or of the file whose path stands before it.
Status setting_error(std::string_view name, std::string_view expected, std::string_view got);
// An error in a file; `what` becomes printable.
Status format_error(std::string_view what, std::string_view expected, std::string_view got);
// Writes a number, or a value of any kind, for a message.
std::string text_of(double number);
std::string described(const ConfigValue* value);

// Most rows of a table.
inline constexpr int64_t kMostRows = (int64_t{1} << 31) - 1;
// Largest width. Products of a number of rows, two widths and the bytes of an element fit in 64
// bits, and rows of a matrix fit in the memory of WebAssembly.
inline constexpr int64_t kMostWidth = int64_t{1} << 20;
inline constexpr double kMostNumber = 1e30;

// The values of a field that are allowed, and what null means.
struct Integers {
  int64_t least = 1, most = kMostWidth;
  bool null_is_zero = false;
};
struct Numbers {
  double least = 1.0 / kMostNumber, most = kMostNumber;
  bool null_is_zero = false;
};

class ConfigReader {
 public:
  // `prefix` stands before the names of all fields.
  ConfigReader(const Config& config, std::string prefix)
      : config_(config), prefix_(std::move(prefix)) {}
  // For the fields of the object `name`. Keeps its errors in `parent`.
  ConfigReader(ConfigReader& parent, const std::string& name)
      : config_(parent.config_), prefix_(parent.prefix_ + name + "."), status_(parent.status_) {}
  ConfigReader(const ConfigReader&) = delete;

  // Null if the field is not there.
  const ConfigValue* find(std::string_view name) const;
  // True if the field is there and not null.
  bool has(std::string_view name) const;
  // True if the object `name` has fields; without a name, if any field's name begins with the
  // prefix.
  bool has_members(std::string_view name) const;
  bool has_members() const { return begins_a_field(prefix_); }
  // The first field that is not null and has none of the `known` names; else empty.
  std::string other_field(std::span<const std::string_view> known) const;

  // The values of fields, `absent` for a field that is not there and for a null name. A value of
  // another type or out of range is an error, null included unless the range says otherwise, and so
  // is an object or a list.
  int64_t integer(const char* name, int64_t absent, const Integers& range);
  // Magnitudes of at most kMostNumber, which a float can hold.
  double number(const char* name, double absent, const Numbers& range);
  // null is false, as in Python.
  bool flag(const char* name, bool absent);
  std::string text(const char* name, std::string_view absent);

  // Keeps an error unless there was one before.
  void fail(std::string_view name, std::string_view expected, std::string_view got);
  const Status& status() const { return status_; }

 private:
  bool begins_a_field(const std::string& path) const;
  // As find(), for a field of one value.
  const ConfigValue* find_one(const char* name);

  const Config& config_;
  std::string prefix_;
  Status own_status_;
  Status& status_ = own_status_;
};

}  // namespace multihead::models
