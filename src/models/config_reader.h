// Reads settings from the flat list of config.json, and keeps the first error.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "multihead/models.h"
#include "multihead/status.h"

namespace multihead::models {

// An error in a setting of config.json.
Status setting_error(std::string_view name, std::string_view expected, std::string_view got);
// Writes a number, or a value of any kind, for a message.
std::string text_of(double number);
std::string described(const ConfigValue* value);

class ConfigReader {
 public:
  // `prefix` stands before the names of all fields.
  ConfigReader(const Config& config, std::string prefix)
      : config_(config), prefix_(std::move(prefix)) {}

  // Null if the field is not there.
  const ConfigValue* find(std::string_view name) const;
  // True if the field is there and not null.
  bool has(std::string_view name) const;
  // True if there are fields below this name.
  bool has_members(std::string_view name) const;

  // The values of fields. A field that is not there, or a name that is null, has the value
  // `absent`; null has the value 0, false or "". A value of another type or out of range is an
  // error.
  int64_t integer(const char* name, int64_t absent, int64_t least = 0);
  double number(const char* name, double absent);
  bool flag(const char* name, bool absent);
  std::string text(const char* name, std::string_view absent);

  // Keeps an error unless there was one before.
  void fail(std::string_view name, std::string_view expected, std::string_view got);
  const Status& status() const { return status_; }

 private:
  const Config& config_;
  std::string prefix_;
  Status status_;
};

}  // namespace multihead::models
