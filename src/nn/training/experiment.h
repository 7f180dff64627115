// The state of an Experiment.
#pragma once

#include <cstdint>
#include <vector>

#include "multihead/experiments.h"

namespace multihead {

struct Experiment::Internals {
  ExperimentOptions options;  // zeros replaced by defaults
  std::vector<float> alibi_slopes;
  Transformer model;
  Trainer trainer;
  std::vector<int32_t> tokens, targets;  // last batch
};

}  // namespace multihead
