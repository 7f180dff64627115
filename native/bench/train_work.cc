// Benchmarks of a whole training step: forward, cross-entropy, backward and AdamW of the models of
// the two experiments, on random tokens.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "inputs.h"
#include "multihead/training.h"
#include "work.h"

namespace multihead::bench {
namespace {

struct ModelSize {
  int64_t layers, vocabulary, readouts;
};

ModelSize size_of(const Shape& shape) {
  return std::string_view(shape.name) == "four-jobs" ? ModelSize{1, 24, 4} : ModelSize{2, 32, 1};
}

std::vector<int32_t> random_words(int64_t count, int64_t vocabulary, uint32_t seed) {
  std::vector<int32_t> words;
  for (const float number : random_floats(count, seed)) {
    const auto word = static_cast<int32_t>((number + 1.0F) / 2.0F * static_cast<float>(vocabulary));
    words.push_back(std::clamp(word, 0, static_cast<int32_t>(vocabulary - 1)));
  }
  return words;
}

class TrainWork : public Work {
 public:
  explicit TrainWork(const Case& which)
      : shape_(which.shape),
        size_(size_of(shape_)),
        tokens_(random_words(shape_.batch * shape_.queries, size_.vocabulary, kQuerySeed)),
        targets_(random_words(shape_.batch * shape_.queries * size_.readouts, size_.vocabulary,
                              kGradientSeed)) {
    status_ = Transformer::create({.block = {.attention = {.embed_dim = embed(),
                                                           .num_heads = shape_.heads,
                                                           .bias = false,
                                                           .rope = {.style = Rope::Style::kHalf}},
                                             .norm = Norm::kRmsNorm},
                                   .num_layers = size_.layers,
                                   .vocab_size = size_.vocabulary,
                                   .num_readouts = size_.readouts},
                                  model_);
    if (status_.ok()) status_ = model_.initialize({.seed = 1});
    // The learning rate is too small to change the parameters, so all runs are alike.
    if (status_.ok()) status_ = Trainer::create(model_, {.learning_rate = 1e-12F}, trainer_);
  }

  Status run(Context& context) override {
    if (!status_.ok()) return status_;
    TrainingStep result;
    Status status = trainer_.step(tokens_, shape_.batch, targets_, {}, result, context);
    if (!status.ok()) return status;
    output_ = {static_cast<float>(result.loss), static_cast<float>(result.gradient_norm)};
    return {};
  }

  // Returns the loss, and the norm of its gradient.
  std::span<const float> output() const override { return output_; }

  // Three products per matrix, plus the seven products of attention per pair of tokens.
  double operations() const override {
    const auto tokens = static_cast<double>(shape_.batch * shape_.queries);
    const auto width = static_cast<double>(embed()), layers = static_cast<double>(size_.layers);
    const double matrices =
        layers * 4 * width * width + width * static_cast<double>(size_.readouts * size_.vocabulary);
    const double pairs = tokens * static_cast<double>(shape_.queries + 1) / 2;
    return 6 * tokens * matrices + layers * 14 * width * pairs;
  }

  // Compares the gradient's norm with the slope of the loss along the gradient, by finite
  // differences.
  double error() const override;

 private:
  int64_t embed() const { return shape_.heads * shape_.width; }
  // The loss of `model`, with f32 logits and the cross-entropy in double.
  double loss_of(const Transformer& model, Context& context) const;

  Shape shape_;
  ModelSize size_;
  std::vector<int32_t> tokens_, targets_;
  Transformer model_;
  Trainer trainer_;
  std::vector<float> output_{0.0F, 0.0F};
  Status status_;
};

double TrainWork::loss_of(const Transformer& model, Context& context) const {
  const int64_t classes = size_.vocabulary;
  const Dims shape{shape_.batch, shape_.queries, size_.readouts * classes};
  std::vector<float> logits(static_cast<size_t>(shape.elements()));
  if (!model.forward(tokens_, shape_.batch, {}, {.logits = {logits.data(), shape}}, context).ok()) {
    return NAN;
  }
  double sum = 0;
  for (size_t row = 0; row < targets_.size(); ++row) {
    const std::span<const float> of_row =
        std::span(logits).subspan(row * static_cast<size_t>(classes), static_cast<size_t>(classes));
    double exponentials = 0;
    for (const float logit : of_row) exponentials += std::exp(static_cast<double>(logit));
    sum += std::log(exponentials) - static_cast<double>(of_row[static_cast<size_t>(targets_[row])]);
  }
  return sum / static_cast<double>(targets_.size());
}

double TrainWork::error() const {
  Context context(1);
  Trainer trainer;
  if (!Trainer::create(model_, {}, trainer).ok() ||
      !trainer.accumulate(tokens_, shape_.batch, targets_, {}, context).ok()) {
    return NAN;
  }
  StateDict parameters, gradients;
  if (!model_.state_dict(parameters).ok() || !trainer.gradients(gradients).ok()) return NAN;
  const double norm = static_cast<double>(output_[1]) * static_cast<double>(targets_.size());
  const auto loss_at = [&](double step) {
    StateDict moved;
    std::vector<std::vector<float>> values;
    values.reserve(parameters.size());
    for (const auto& [name, tensor] : parameters) {
      const auto* const at = static_cast<const float*>(tensor.data);
      const auto* const slope = static_cast<const float*>(gradients.at(name).data);
      std::vector<float>& value = values.emplace_back();
      for (int64_t i = 0; i < tensor.shape.elements(); ++i) {
        value.push_back(static_cast<float>(static_cast<double>(at[i]) +
                                           step * static_cast<double>(slope[i]) / norm));
      }
      moved.emplace(name, ConstTensor(value.data(), tensor.shape));
    }
    Transformer model;
    if (!Transformer::create(model_.config(), model).ok() || !model.load_state_dict(moved).ok()) {
      return static_cast<double>(NAN);
    }
    return loss_of(model, context);
  };
  constexpr double kStep = 1.0 / 64;
  const auto central = [&](double step) { return (loss_at(step) - loss_at(-step)) / (2 * step); };
  const double slope = (4 * central(kStep / 2) - central(kStep)) / 3;
  return std::abs(slope - static_cast<double>(output_[1]));
}

}  // namespace

std::unique_ptr<Work> make_train(const Case& which) { return std::make_unique<TrainWork>(which); }

}  // namespace multihead::bench
