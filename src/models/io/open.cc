// Opens the folder of a model: its configuration and its files of weights.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "engine/error/guard.h"
#include "engine/error/printable.h"
#include "models/io/file_map.h"
#include "models/io/read_json.h"
#include "multihead/models.h"
#include "nn/io/safetensors_header.h"

namespace multihead::models {
namespace {

namespace fs = std::filesystem;

Status format_error(const std::string& what, const std::string& expected, const std::string& got) {
  return {StatusCode::kFormat, engine::printable(what), expected, got};
}

// The tensors of all files, and where each is.
struct Tensors {
  std::vector<StoredTensor> stored;
  std::vector<std::span<const std::byte>> bytes;
  std::vector<std::shared_ptr<FileMap>> files;
};

Status read_file(const fs::path& path, Tensors& tensors) {
  std::shared_ptr<FileMap> map;
  MULTIHEAD_TRY(FileMap::open(path.string(), map));
  const std::span<const std::byte> bytes = map->bytes();
  constexpr uint64_t kPrefix = 8, kMostHeader = 100'000'000;
  uint64_t length = 0;
  for (size_t i = kPrefix; i-- > 0 && bytes.size() >= kPrefix;) {
    length = length << 8U | static_cast<uint64_t>(bytes[i]);
  }
  if (bytes.size() < kPrefix || length > kMostHeader || length > bytes.size() - kPrefix) {
    return format_error(path.string(), "a safetensors file", "a header longer than the file");
  }
  const auto data = bytes.subspan(static_cast<size_t>(kPrefix + length));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kPrefix,
                              static_cast<size_t>(length));
  std::vector<nn::HeaderEntry> entries;
  if (const Status status = nn::parse_safetensors_header(text, data.size(), entries);
      !status.ok()) {
    return format_error(path.filename().string() + ": " + status.argument(), status.expected(),
                        status.got());
  }
  for (nn::HeaderEntry& entry : entries) {
    tensors.stored.push_back({std::move(entry.name), entry.type->name, entry.shape});
    tensors.bytes.push_back(data.subspan(static_cast<size_t>(entry.begin),
                                         static_cast<size_t>(entry.end - entry.begin)));
    tensors.files.push_back(map);
  }
  return {};
}

// The files of the index, each once.
Status read_files(const fs::path& folder, Tensors& tensors) {
  std::error_code error;
  const fs::path index = folder / "model.safetensors.index.json";
  const fs::path single = folder / "model.safetensors";
  if (fs::exists(single, error) || !fs::exists(index, error)) return read_file(single, tensors);
  Config list;
  MULTIHEAD_TRY(read_flat_json(index.string(), list));
  std::set<std::string> names;
  constexpr std::string_view kMap = "weight_map.";
  for (const auto& [name, value] : list) {
    if (name.starts_with(kMap) && value.kind == ConfigValue::Kind::kText) names.insert(value.text);
  }
  if (names.empty()) return format_error(index.string(), "a weight_map", "none");
  for (const std::string& name : names) {
    // A file of this folder and no other.
    if (fs::path(name).filename() != fs::path(name) || name == "..") {
      return format_error(index.string(), "names of files in this folder", engine::printable(name));
    }
    MULTIHEAD_TRY(read_file(folder / name, tensors));
  }
  for (const auto& [name, value] : list) {
    if (!name.starts_with(kMap)) continue;
    const std::string tensor = name.substr(kMap.size());
    bool found = false;
    for (const StoredTensor& stored : tensors.stored) found = found || stored.name == tensor;
    if (!found) {
      return format_error(engine::printable(value.text), "the tensor " + engine::printable(tensor),
                          "a file without it");
    }
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

}  // namespace

Status open(const std::string& folder, const std::string& config_file, const OpenOptions& options,
            Model& model) {
  return engine::memory_guard([&]() -> Status {
    Config config;
    MULTIHEAD_TRY(read_flat_json((fs::path(folder) / config_file).string(), config));
    Tensors tensors;
    MULTIHEAD_TRY(read_files(folder, tensors));
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
