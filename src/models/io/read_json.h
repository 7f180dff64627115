// Small JSON files as flat lists.
#pragma once

#include <string>
#include <string_view>

#include "multihead/models.h"

namespace multihead::models {

struct JsonFile {
  std::string path;              // on the disk
  std::string prefix = {};       // of the names in the list
  bool array = false;            // the text is an array and not an object
  std::string_view member = {};  // if given, only this member of the object is kept
};

// Adds the values of a JSON file to `config` as read_config() does. It reads what Python's json
// reads, Infinity and NaN included. Errors: kFormat, also for a text beyond the limits of
// folder_files.inc.
Status read_flat_json(const JsonFile& file, Config& config);
// Reads an optional file: does nothing if it is absent, as folder_files.inc defines it.
Status read_optional_json(const JsonFile& file, Config& config);

}  // namespace multihead::models
