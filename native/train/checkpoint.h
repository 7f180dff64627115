// Checkpoints of runs: the trainer's state, the options that its meaning depends on, and the curve.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "curve.h"
#include "multihead/training.h"

namespace multihead::train {

// An option that a run must share with the one it continues, although the shapes of the parameters
// may not show it: the number of heads, for example.
struct KeptOption {
  std::string name;    // of its tensor: "run.heads"
  std::string option;  // "--heads"
  int64_t value;       // exact as a float
  // In words, for an error: what an option with this value is.
  std::function<std::string(int64_t)> shown = [](int64_t number) { return std::to_string(number); };
};

// Writes beside the file and then renames, so that a crash leaves the old one. Throws a Failure.
void save_checkpoint(const Trainer& trainer, const std::vector<KeptOption>& options,
                     const Curve& curve, const std::string& path);

// The curve has the names of the jobs, and is given the points so far; none by a checkpoint that
// the npm package wrote. Throws a Failure, also if the checkpoint is of other options or of another
// seed.
void load_checkpoint(Trainer& trainer, const std::vector<KeptOption>& options, Curve& curve,
                     const std::string& path);

}  // namespace multihead::train
