// The members of a Trainer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/runtime/scratch.h"
#include "multihead/training.h"
#include "nn/parameters.h"

namespace multihead {

struct Trainer::Internals {
  Internals(const TrainerOptions& given, nn::Parameters& model_parameters)
      : options(given), parameters(model_parameters), activations(given.recompute) {}

  TrainerOptions options;
  Transformer model = {};
  nn::Parameters& parameters;  // parameters of the model
  TransformerActivations activations;
  // Blocks with the layout of the parameters. The moments are AdamW's mean and variance, or SGD's
  // momentum buffer.
  engine::Buffer gradients, moments[2];
  engine::Buffer logits;  // logits of a part of a batch, later their gradient
  int64_t steps = 0;
  // Totals since the last update: parts of the batch, sum of losses, number of targets and of
  // correct answers.
  int64_t parts = 0;
  double loss = 0;
  int64_t counted = 0, correct = 0;
  float state[8] = {};  // steps and seed for state_dict(); see write_state()

  size_t bytes_of_block() const {
    return static_cast<size_t>(parameters.elements()) * sizeof(float);
  }
  float* gradient() const { return static_cast<float*>(gradients.data()); }
  float* moment(int which) const { return static_cast<float*>(moments[which].data()); }
  // Number of moments: AdamW has two, SGD one if it has momentum.
  int moment_count() const {
    return options.optimizer == Optimizer::kAdamW ? 2 : options.momentum > 0.0F ? 1 : 0;
  }
  void forget_gradients();
  // Call this when steps or the seed have changed.
  void write_state();
};

namespace nn {

// Errors: kOption.
Status validate_options(const TrainerOptions& options);

// Learning rate of update `step`, counted from 1.
float learning_rate_of(const TrainerOptions& options, int64_t step);

}  // namespace nn
}  // namespace multihead
