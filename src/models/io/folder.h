// The files of a model's folder, by the rules of folder_files.inc.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "multihead/models.h"
#include "multihead/status.h"

namespace multihead::models {

#define SETTINGS_FILE(name, member)
#define FOLDER_SIGN(name, what)
#define FOLDER_LIMIT(name, javascript, value) inline constexpr int64_t name = value;
#include "models/io/folder_files.inc"
#undef SETTINGS_FILE
#undef FOLDER_SIGN
#undef FOLDER_LIMIT

// Reads config.json, which is in `config_file`, and all settings into one list, and sets `place`:
// where the transformer's files are. Errors: kFormat.
Status read_settings(const std::string& folder, const std::string& config_file, Config& config,
                     std::filesystem::path& place);

// A folder below the folder that modules.json names, and the class of the module without its
// packages.
struct FolderModule {
  std::string path;
  std::string type;
};
// The i-th module of modules.json. Returns false after the last one.
bool module_at(const Config& config, int64_t index, FolderModule& module);

// A path of names with slashes, as files of the folder have: without blank names, "." and "..".
// Returns false for any other path. Names "." are removed.
bool clean_path(std::string& path);

// A file that is needed and not there: what the folder has in its place.
Status missing_file(const std::filesystem::path& folder, const std::string& name);

}  // namespace multihead::models
