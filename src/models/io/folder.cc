#include "models/io/folder.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "engine/error/printable.h"
#include "models/io/read_json.h"
#include "multihead/models.h"

namespace multihead::models {
namespace {

namespace fs = std::filesystem;

struct SettingsFile {
  const char* name;
  std::string_view member;
};
struct FolderSign {
  std::string_view name;
  const char* what;
};

#define FOLDER_LIMIT(name, javascript, value)
constexpr SettingsFile kSettings[] = {
#define SETTINGS_FILE(name, member) {name, member},
#define FOLDER_SIGN(name, what)
#include "models/io/folder_files.inc"
#undef SETTINGS_FILE
#undef FOLDER_SIGN
};
constexpr FolderSign kSigns[] = {
#define SETTINGS_FILE(name, member)
#define FOLDER_SIGN(name, what) {name, what},
#include "models/io/folder_files.inc"
#undef SETTINGS_FILE
#undef FOLDER_SIGN
};
#undef FOLDER_LIMIT

// The names of a folder's entries, in order.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// True for "ORG/NAME", as models of the hub are called.
bool is_hub_name(std::string_view name) {
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos || slash == 0 || slash + 1 == name.size()) return false;
  const std::string_view owner = name.substr(0, slash), rest = name.substr(slash + 1);
  return owner.front() != '.' && owner.find_first_not_of(kLetters) == std::string_view::npos &&
         rest.find_first_not_of(kLetters) == std::string_view::npos;
}

Status check_folder(const std::string& folder) {
  std::error_code error;
  if (fs::is_directory(folder, error)) return {};
  std::string got = "none";
  if (fs::exists(folder, error)) {
    got = "another file: give the folder that it is in";
  } else if (is_hub_name(folder)) {
    got = "none; models of the hub are not fetched: download the files of https://huggingface.co/" +
          folder;
  }
  return {StatusCode::kFormat, engine::printable(folder, 400),
          "a folder with config.json and safetensors files, or a GGUF file", got};
}

std::string text_at(const Config& config, const std::string& name) {
  const auto found = config.find(name);
  return found == config.end() ? std::string() : found->second.text;
}

}  // namespace

bool clean_path(std::string& path) {
  std::string clean;
  std::string_view rest = path;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('/'), rest.size());
    const std::string_view name = rest.substr(0, end);
    // A name with a colon could be a drive of Windows.
    if (name.empty() || name == ".." || name.find_first_of("\\:") != std::string_view::npos ||
        name.find('\0') != std::string_view::npos || end + 1 == rest.size()) {
      return false;
    }
    if (name != ".") clean += (clean.empty() ? "" : "/") + std::string(name);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  path = clean;
  return true;
}

bool module_at(const Config& config, int64_t index, FolderModule& module) {
  const std::string name = "modules.json/" + std::to_string(index);
  const std::string type = text_at(config, name + ".type");
  module = {text_at(config, name + ".path"), type.substr(type.rfind('.') + 1)};
  return config.contains(name + ".type");
}

Status missing_file(const fs::path& folder, const std::string& name) {
  const std::vector<std::string> names = names_in(folder);
  std::string got = "none";
  const auto ends_with = [](const char* end) {
    return [=](const std::string& each) { return each.ends_with(end); };
  };
  if (std::count_if(names.begin(), names.end(), ends_with(".safetensors")) > 1) {
    got = "several files of weights without model.safetensors.index.json";
  } else {
    for (const auto& [sign, what] : kSigns) {
      const auto found = std::find_if(names.begin(), names.end(), [&](const std::string& each) {
        return each == sign || (sign.starts_with('.') && each.ends_with(sign));
      });
      if (found == names.end()) continue;
      got = engine::printable(*found) + ", " + what;
      break;
    }
  }
  return {StatusCode::kFormat, engine::printable(name, 400),
          "a file of this name in " + engine::printable(folder.string(), 400), got};
}

Status read_settings(const std::string& folder, const std::string& config_file, Config& config,
                     fs::path& place) {
  MULTIHEAD_TRY(check_folder(folder));
  Config read;
  const fs::path root = folder;
  MULTIHEAD_TRY(read_optional_json(
      {.path = (root / "modules.json").string(), .prefix = "modules.json/", .array = true}, read));
  const auto checked = [&](int64_t index, FolderModule& module) -> Status {
    if (clean_path(module.path)) return {};
    return {StatusCode::kFormat, "modules.json: " + std::to_string(index) + ".path",
            "a folder below this one", engine::printable(module.path)};
  };
  FolderModule module;
  place = root;
  if (module_at(read, 0, module)) {
    MULTIHEAD_TRY(checked(0, module));
    if (!module.path.empty()) place /= module.path;
  }
  const fs::path config_path = place / config_file;
  std::error_code error;
  if (!fs::exists(config_path, error)) return missing_file(place, config_file);
  MULTIHEAD_TRY(read_flat_json({.path = config_path.string()}, read));
  for (const auto& [name, member] : kSettings) {
    MULTIHEAD_TRY(read_optional_json(
        {.path = (place / name).string(), .prefix = std::string(name) + "/", .member = member},
        read));
  }
  // Of models with images: their size.
  if (read.contains("image_size")) {
    const std::string name = "preprocessor_config.json";
    MULTIHEAD_TRY(read_optional_json(
        {.path = (place / name).string(), .prefix = name + "/", .member = "crop_size"}, read));
  }
  const auto read_module = [&](const std::string& path) {
    const std::string name = path + "/config.json";
    return read_optional_json({.path = (root / name).string(), .prefix = name + "/"}, read);
  };
  if (!read.contains("modules.json/0.type")) MULTIHEAD_TRY(read_module("1_Pooling"));
  for (int64_t i = 1; module_at(read, i, module); ++i) {
    MULTIHEAD_TRY(checked(i, module));
    if (!module.path.empty()) MULTIHEAD_TRY(read_module(module.path));
  }
  config = std::move(read);
  return {};
}

}  // namespace multihead::models
