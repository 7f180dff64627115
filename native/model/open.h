// What the commands of multihead-model share: the options of opening a model, and errors.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <string>

#include "engine/error/printable.h"
#include "exit_code.h"
#include "multihead/models.h"
#include "terminal.h"

namespace multihead {

struct ModelOptions {
  std::string folder;
  std::string weights = "stored";
  std::string embedding_weights = "auto";  // that of `weights`
  bool takes_pixels = false;               // true if models of images are allowed
  bool keep_mapped = false;
  int threads = 0;
  bool json = false;
};

inline void add_model_options(CLI::App& app, ModelOptions& options) {
  app.add_option("folder", options.folder,
                 "Folder with config.json and safetensors files, or a GGUF file")
      ->required();
  app.add_option("--weights", options.weights, "Type of the weights in memory")
      ->check(CLI::IsMember({"stored", "f32", "f16", "bf16", "int8", "int4"}))
      ->capture_default_str();
  app.add_flag("--keep-mapped", options.keep_mapped,
               "Leaves weights that need no conversion in the mapped file: less memory, slower");
  app.add_option("--threads", options.threads, "0: as many as the processor has")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_flag("--json", options.json, "Prints one JSON document instead of text");
}

inline int failed(const Status& status, ExitCode code) {
  std::fprintf(stderr, "%s\n", status.message().c_str());
  return code;
}

inline ExitCode code_of(const Status& status) {
  if (status.code() == StatusCode::kFormat) return kExitIo;
  return status.code() == StatusCode::kMemory ? kExitFailed : kExitUsage;
}

// Shows the share of something that takes long on a terminal: one line that is written over.
class ProgressLine {
 public:
  explicit ProgressLine(const char* what) : what_(what) {}

  void show(double share) {
    const int percent = static_cast<int>(100 * share);
    if (!on_terminal_ || percent == shown_) return;
    std::fprintf(stderr, "\r%s %3d %%", what_, percent);
    if (share >= 1.0) std::fprintf(stderr, "\n");
    shown_ = percent;
  }

 private:
  const char* what_;
  bool on_terminal_ = stderr_is_terminal();
  int shown_ = -1;
};

// Opens the model of a folder, which reads token ids. Returns an exit code.
inline int open_model(const ModelOptions& options, models::Model& model) {
  models::OpenOptions open;
  for (const WeightType type : {WeightType::kF32, WeightType::kF16, WeightType::kBF16,
                                WeightType::kInt8, WeightType::kInt4}) {
    if (options.weights == name_of(type)) open.weights = type;
    if (options.embedding_weights == name_of(type)) open.embedding_weights = type;
  }
  open.keep_mapped = options.keep_mapped;
  constexpr int64_t kLarge = int64_t{1} << 27;
  ProgressLine line("loading");
  open.progress = [&](int64_t done, int64_t total) {
    if (total >= kLarge) line.show(static_cast<double>(done) / static_cast<double>(total));
    return true;
  };
  const Status status = models::open(options.folder, open, model);
  if (!status.ok()) return failed(status, kExitIo);
  if (options.takes_pixels || !model.info().takes_pixels) return kExitOk;
  std::fprintf(stderr, "%s: expected a model of token ids, got %s\n",
               engine::printable(options.folder).c_str(), model.info().model_type.c_str());
  return kExitUsage;
}

}  // namespace multihead
