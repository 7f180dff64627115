// Checkpoints of runs: the trainer's state, the options that give it meaning, and the curve.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "curve.h"
#include "multihead/training.h"

namespace multihead::train {

// An option that must be the same when a run continues, although parameter shapes may not show it:
// the number of heads, for example.
struct KeptOption {
  std::string name;    // name of its tensor: "run.heads"
  std::string option;  // "--heads"
  int64_t value;       // exact as a float
  // Describes a value in words, for errors.
  std::function<std::string(int64_t)> shown = [](int64_t number) { return std::to_string(number); };
};

// Writes a temporary file and renames it, so that the old checkpoint survives a crash. Throws a
// Failure.
void save_checkpoint(const Trainer& trainer, const std::vector<KeptOption>& options,
                     const Curve& curve, const std::string& path);

// Loads a checkpoint into `trainer`, and adds its points to `curve`, which must have the names of
// the jobs. A checkpoint of the npm package has no points. Throws a Failure, also if the checkpoint
// has other options or another seed.
void load_checkpoint(Trainer& trainer, const std::vector<KeptOption>& options, Curve& curve,
                     const std::string& path);

}  // namespace multihead::train
