#include "model/convert.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>

#include "engine/error/printable.h"
#include "exit_code.h"
#include "model/open.h"
#include "models/io/folder.h"
#include "multihead/model_training.h"
#include "multihead/models.h"
#include "multihead/safetensors.h"

namespace multihead {
namespace {

namespace fs = std::filesystem;

int cannot_write(const std::string& path, const std::string& reason) {
  std::fprintf(stderr, "%s: cannot be written (%s)\n", engine::printable(path, 400).c_str(),
               reason.c_str());
  return kExitIo;
}

bool has_extension(const fs::path& path, std::initializer_list<const char*> extensions) {
  return std::any_of(extensions.begin(), extensions.end(),
                     [&](const char* each) { return path.extension() == each; });
}

// Copies the settings, the tokenizer's files, and the weights of other modules than the one in
// `place`.
void copy_others(const fs::path& folder, const fs::path& place, const fs::path& out) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const fs::path& from = entry.path();
    const bool is_module = has_extension(from, {".safetensors"}) && from.parent_path() != place &&
                           fs::exists(from.parent_path() / "config.json");
    const bool is_index = from.filename().string().ends_with(".safetensors.index.json");
    const bool is_text = has_extension(from, {".json", ".txt", ".model", ".jinja"});
    if (!entry.is_regular_file() || is_index || !(is_text || is_module)) continue;
    const fs::path to = out / fs::relative(from, folder);
    fs::create_directories(to.parent_path());
    fs::copy_file(from, to);
  }
}

// Bytes of the weights of a folder.
uint64_t weight_bytes(const fs::path& folder) {
  uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && has_extension(entry.path(), {".safetensors"}))
      bytes += entry.file_size();
  }
  return bytes;
}

int write_folder(const models::Model& model, const fs::path& folder, const fs::path& out) {
  models::Config config;
  fs::path place;
  if (const Status status = models::read_settings(folder.string(), "config.json", config, place);
      !status.ok()) {
    return failed(status, kExitIo);
  }
  // The folder gets its name when it is whole.
  fs::path made = out;
  made += ".part";
  std::error_code ignored;
  try {
    fs::remove_all(made);
    fs::create_directories(made);
    copy_others(folder, place, made);
    const fs::path weights = made / fs::relative(place, folder) / "model.safetensors";
    const Status status = save_weights(model, SafetensorsType::kAsGiven, weights.string());
    if (!status.ok()) {
      fs::remove_all(made, ignored);
      return cannot_write(out.string(), status.got());
    }
    fs::remove(out, ignored);
    fs::rename(made, out);
  } catch (const fs::filesystem_error& error) {
    fs::remove_all(made, ignored);
    return cannot_write(out.string(), error.code().message());
  }
  return kExitOk;
}

}  // namespace

int run_convert(int argc, char** argv) {
  CLI::App app{
      "Writes a folder with smaller weights, which opens at once. int8 and int4 are rows of blocks "
      "that this library and the npm package read; f16, bf16 and f32 are what transformers reads, "
      "too.",
      "multihead-model convert"};
  ModelOptions options;
  options.weights = "int8";
  std::string out;
  app.add_option("folder", options.folder, "Folder with config.json and safetensors files")
      ->required();
  app.add_option("out", out, "The new folder")->required();
  app.add_option("--weights", options.weights, "Type of the matrices")
      ->check(CLI::IsMember({"f32", "f16", "bf16", "int8", "int4"}))
      ->capture_default_str();
  app.add_option("--embedding-weights", options.embedding_weights,
                 "Type of the embedding and of the matrix of logits; auto: int8 beside int4, else "
                 "that of --weights")
      ->check(CLI::IsMember({"auto", "f32", "f16", "bf16", "int8", "int4"}))
      ->capture_default_str();
  app.add_flag("--json", options.json, "Prints one JSON document instead of text");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  std::error_code error;
  if (fs::exists(out, error) && !(fs::is_directory(out, error) && fs::is_empty(out, error))) {
    std::fprintf(stderr, "out: expected a new or an empty folder, got %s\n",
                 engine::printable(out, 400).c_str());
    return kExitUsage;
  }
  if (fs::is_regular_file(options.folder, error)) {
    std::fprintf(stderr, "folder: expected a folder with config.json, got the file %s\n",
                 engine::printable(options.folder, 400).c_str());
    return kExitUsage;
  }
  if (options.embedding_weights == "auto")
    options.embedding_weights = options.weights == "int4" ? "int8" : options.weights;
  options.takes_pixels = true;
  models::Model model;
  if (const int code = open_model(options, model); code != kExitOk) return code;
  if (const int code = write_folder(model, options.folder, out); code != kExitOk) return code;
  const uint64_t before = weight_bytes(options.folder), after = weight_bytes(out);
  if (options.json) {
    const nlohmann::json result = {{"weights", options.weights},
                                   {"embedding_weights", options.embedding_weights},
                                   {"bytes", after},
                                   {"bytes_before", before}};
    std::printf("%s\n", result.dump().c_str());
  } else {
    std::printf("%s: %.1f MB of weights, %.1f MB before.\n", engine::printable(out, 400).c_str(),
                static_cast<double>(after) / 1e6, static_cast<double>(before) / 1e6);
  }
  return kExitOk;
}

}  // namespace multihead
