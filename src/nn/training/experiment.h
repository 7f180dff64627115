// What an Experiment holds.
#pragma once

#include <cstdint>
#include <vector>

#include "multihead/experiments.h"

namespace multihead {

struct Experiment::Internals {
  ExperimentOptions options;  // no zeros
  std::vector<float> alibi_slopes;
  Transformer model;
  Trainer trainer;
  std::vector<int32_t> tokens, targets;  // of the last batch
};

}  // namespace multihead
