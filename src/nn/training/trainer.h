// The members of a Trainer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "cpu/elementwise/gradients.h"
#include "engine/runtime/scratch.h"
#include "multihead/training.h"
#include "nn/parameters.h"
#include "rules/shared.h"

namespace multihead {

namespace nn {

// A part of a batch: predictions of `targets`, -1 for none.
struct TrainingPart {
  std::span<const int32_t> tokens = {};
  int64_t batch = 1;
  std::span<const int32_t> targets = {};
  MultiHeadAttentionOptions options = {};
};

// A model that a Trainer can train: its parameters lie in one block.
class Trainee {
 public:
  Trainee() = default;
  Trainee(const Trainee&) = delete;
  Trainee& operator=(const Trainee&) = delete;
  virtual ~Trainee() = default;

  virtual Parameters& parameters() = 0;
  virtual int64_t classes() const = 0;
  virtual int64_t readouts() const { return 1; }  // targets of a token
  // Computes the loss of a part, and adds its gradients if it is finite. Sets `began`
  // before the first gradient is written. Errors: as forward(), and kMemory.
  virtual Status accumulate(const TrainingPart& part, float* gradients,
                            cpu::CrossEntropyResult& result, bool& began, Context& context) = 0;
  virtual void parameters_changed() = 0;
  virtual int64_t bytes() const = 0;  // of activations and logits
  // Returns null if the model is no Transformer.
  virtual const Transformer* transformer() const { return nullptr; }
};

}  // namespace nn

struct Trainer::Internals {
  Internals(const TrainerOptions& given, std::unique_ptr<nn::Trainee> trained)
      : options(given), trainee(std::move(trained)), parameters(trainee->parameters()) {}
  // Errors: kOption, kMemory; `trainer` is unchanged.
  MULTIHEAD_SHARED static Status create(std::unique_ptr<nn::Trainee> trainee,
                                        const TrainerOptions& options, Trainer& trainer);

  TrainerOptions options;
  std::unique_ptr<nn::Trainee> trainee;
  nn::Parameters& parameters;  // of the trainee
  // Blocks with the layout of the parameters. The moments are AdamW's mean and variance, or SGD's
  // momentum buffer.
  engine::Buffer gradients, moments[2];
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
