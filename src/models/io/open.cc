// Opens the folder of a model: its configuration and its files of weights.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "engine/error/printable.h"
#include "models/architecture.h"
#include "models/config_reader.h"
#include "models/io/file_map.h"
#include "models/io/folder.h"
#include "models/io/gguf.h"
#include "models/io/read_json.h"
#include "multihead/models.h"
#include "nn/io/safetensors_header.h"

namespace multihead::models {
namespace {

namespace fs = std::filesystem;

// The tensors of all files, and where each is.
struct Tensors {
  std::vector<StoredTensor> stored;
  std::vector<std::span<const std::byte>> bytes;
  std::vector<std::shared_ptr<FileMap>> files;
};

// Reads the header of a file of weights. The names of its tensors get `prefix` in front. If
// several files have a tensor, the file counts that the index names for it, else the first one.
class FileReader {
 public:
  explicit FileReader(Tensors& tensors) : tensors_(tensors) {}

  Status read(const fs::path& path, const std::string& name, const std::string& prefix,
              const Config& index) {
    std::shared_ptr<FileMap> map;
    MULTIHEAD_TRY(FileMap::open(path.string(), map));
    std::vector<nn::HeaderEntry> entries;
    std::span<const std::byte> data;
    if (const Status status = nn::parse_safetensors_file(map->bytes(), entries, data);
        !status.ok()) {
      return format_error(name + ": " + status.argument(), status.expected(), status.got());
    }
    for (nn::HeaderEntry& entry : entries) {
      const auto [found, is_new] = places_.try_emplace(prefix + entry.name, places_.size());
      if (is_new) {
        tensors_.stored.emplace_back();
        tensors_.bytes.emplace_back();
        tensors_.files.emplace_back();
      } else {
        const auto named = index.find("weight_map." + entry.name);
        if (named == index.end() || named->second.text != name) continue;
      }
      const size_t at = found->second;
      tensors_.stored[at] = {found->first, entry.type->name, entry.shape};
      tensors_.bytes[at] = data.subspan(static_cast<size_t>(entry.begin),
                                        static_cast<size_t>(entry.end - entry.begin));
      tensors_.files[at] = map;
    }
    return {};
  }

  bool has(const std::string& tensor) const { return places_.contains(tensor); }

 private:
  Tensors& tensors_;
  std::map<std::string, size_t, std::less<>> places_;
};

// True if a file is there and is no HTML page, which stands for a missing file.
bool is_there(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return false;
  std::shared_ptr<FileMap> map;
  return !FileMap::open(path.string(), map).ok() || map->bytes().empty() ||
         map->bytes().front() != std::byte{'<'};
}

// The files that the index lists, each once.
Status read_listed(const fs::path& folder, const std::string& index_name, FileReader& reader) {
  constexpr std::string_view kMap = "weight_map.";
  Config index;
  MULTIHEAD_TRY(read_flat_json({.path = (folder / index_name).string()}, index));
  std::set<std::string> names;
  for (auto& [member, value] : index) {
    if (!member.starts_with(kMap)) continue;
    if (value.kind != ConfigValue::Kind::kText || value.text.empty() || !clean_path(value.text)) {
      return format_error(index_name + ": " + engine::printable(member),
                          "the name of a file in this folder", described(&value));
    }
    names.insert(value.text);
  }
  if (names.empty()) {
    return format_error(index_name, "weight_map, an object of tensors and names of files", "none");
  }
  for (const std::string& name : names) {
    if (!is_there(folder / name)) return missing_file(folder, name);
    MULTIHEAD_TRY(reader.read(folder / name, name, "", index));
  }
  for (const auto& [member, value] : index) {
    if (!member.starts_with(kMap) || reader.has(member.substr(kMap.size()))) continue;
    return format_error(value.text, "the tensor " + engine::printable(member.substr(kMap.size())),
                        "a file without it");
  }
  return {};
}

// The only file of the folder whose name ends with ".safetensors"; empty if there is not one.
std::string only_weights(const fs::path& folder) {
  std::string only;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.ends_with(".safetensors") || name == "adapter_model.safetensors") continue;
    if (!only.empty()) return {};
    only = name;
  }
  return only;
}

// The weights of the transformer in `place`, and the weights of the Dense modules.
Status read_weights(const fs::path& root, const fs::path& place, const Config& config,
                    Tensors& tensors) {
  FileReader reader(tensors);
  std::string name = "model.safetensors";
  const std::string index = name + ".index.json";
  if (!is_there(place / name) && is_there(place / index)) {
    MULTIHEAD_TRY(read_listed(place, index, reader));
  } else {
    std::error_code error;
    if (!fs::exists(place / name, error)) {
      const std::string only = only_weights(place);
      if (only.empty()) return missing_file(place, name);
      name = only;
    }
    MULTIHEAD_TRY(reader.read(place / name, name, "", {}));
  }
  FolderModule module;
  for (int64_t i = 1; module_at(config, i, module); ++i) {
    if (module.type != "Dense" || !clean_path(module.path)) continue;
    const std::string file = "model.safetensors";
    if (!is_there(root / module.path / file)) return missing_file(root / module.path, file);
    MULTIHEAD_TRY(
        reader.read(root / module.path / file, module.path + "/" + file, module.path + "/", {}));
  }
  return {};
}

// Gives the loader a tensor. What it copies leaves the mapped file's memory piece by piece, so that
// no second copy of a tensor is in memory.
Status load(const Tensors& tensors, size_t tensor, bool keep_mapped, ModelLoader& loader) {
  std::span<const std::byte> bytes = tensors.bytes[tensor];
  const std::shared_ptr<FileMap>& file = tensors.files[tensor];
  if (!file->mapped()) return loader.view(tensor, bytes, file);
  if (keep_mapped) {
    const int64_t before = loader.viewed_bytes();
    MULTIHEAD_TRY(loader.view(tensor, bytes, file));
    if (loader.viewed_bytes() == before) file->release(bytes);
    return {};
  }
  constexpr size_t kPiece = size_t{1} << 22;
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), kPiece));
    MULTIHEAD_TRY(loader.give(tensor, piece));
    file->release(piece);
    bytes = bytes.subspan(piece.size());
  }
  return {};
}

// Reads a file of GGUF; `found` is false for another file, and for a folder.
Status read_file(const std::string& path, Config& config, Tensors& tensors, bool& found) {
  std::error_code error;
  found = false;
  if (!fs::is_regular_file(path, error)) return {};
  std::shared_ptr<FileMap> map;
  MULTIHEAD_TRY(FileMap::open(path, map));
  if (!is_gguf_file(map->bytes())) return {};
  found = true;
  GgufFile read;
  if (const Status status = read_gguf(map->bytes(), read); !status.ok()) {
    const std::string name = fs::path(path).filename().string();
    return format_error(name + ": " + status.argument(), status.expected(), status.got());
  }
  config = std::move(read.settings);
  tensors.stored = std::move(read.tensors);
  tensors.bytes = std::move(read.bytes);
  tensors.files.assign(tensors.stored.size(), map);
  return {};
}

}  // namespace

Status open(const std::string& folder, const std::string& config_file, const OpenOptions& options,
            Model& model) {
  return engine::memory_guard([&]() -> Status {
    Config config;
    Tensors tensors;
    bool is_file = false;
    MULTIHEAD_TRY(read_file(folder, config, tensors, is_file));
    if (!is_file) {
      fs::path place;
      MULTIHEAD_TRY(read_settings(folder, config_file, config, place));
      // A configuration that is not supported is refused before any weights are looked at.
      Architecture architecture, encoder;
      MULTIHEAD_TRY(read_architecture(config, options.images, architecture, encoder));
      MULTIHEAD_TRY(read_weights(folder, place, config, tensors));
    }
    ModelLoader loader;
    // Files that are not mapped were read into memory, which the model then uses.
    OpenOptions of_loader = options;
    for (const auto& file : tensors.files) of_loader.keep_mapped |= !file->mapped();
    MULTIHEAD_TRY(ModelLoader::create(config, tensors.stored, of_loader, loader));
    for (const size_t tensor : loader.needed()) {
      MULTIHEAD_TRY(load(tensors, tensor, options.keep_mapped, loader));
    }
    return loader.finish(model);
  });
}

Status open(const std::string& folder, const OpenOptions& options, Model& model) {
  return open(folder, "config.json", options, model);
}

}  // namespace multihead::models
