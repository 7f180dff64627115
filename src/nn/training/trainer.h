// The members of a Trainer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/runtime/scratch.h"
#include "multihead/training.h"
#include "nn/parameters.h"

namespace multihead {

struct Trainer::Internals {
  Internals(const TrainerOptions& given, nn::Parameters& of_model)
      : options(given), parameters(of_model), activations(given.recompute) {}

  TrainerOptions options;
  Transformer model = {};
  nn::Parameters& parameters;  // the model's
  TransformerActivations activations;
  // Blocks like that of the parameters. The moments are AdamW's mean and variance, or SGD's buffer.
  engine::Buffer gradients, moments[2];
  engine::Buffer logits;  // of a part of a batch, then their gradient
  int64_t steps = 0;
  // Since the last update: parts of the batch, the sum of their losses, and their targets.
  int64_t parts = 0;
  double loss = 0;
  int64_t counted = 0, correct = 0;
  float state[8] = {};  // what state_dict() shows of steps and seed; see write_state()

  size_t bytes_of_block() const {
    return static_cast<size_t>(parameters.elements()) * sizeof(float);
  }
  float* gradient() const { return static_cast<float*>(gradients.data()); }
  float* moment(int which) const { return static_cast<float*>(moments[which].data()); }
  // AdamW has two, SGD one if it has momentum.
  int moment_count() const {
    return options.optimiser == Optimiser::kAdamW ? 2 : options.momentum > 0.0F ? 1 : 0;
  }
  void forget_gradients();
  // To be called when steps or the seed have changed.
  void write_state();
};

namespace nn {

// Errors: kOption.
Status validate_options(const TrainerOptions& options);

// That of update `step`, counted from 1.
float learning_rate_of(const TrainerOptions& options, int64_t step);

}  // namespace nn
}  // namespace multihead
