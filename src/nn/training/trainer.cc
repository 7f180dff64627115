#include "multihead/training.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "cpu/elementwise/optimizer.h"
#include "engine/attention/validate.h"
#include "engine/error/error.h"
#include "engine/layers/elementwise.h"
#include "engine/layers/gradients.h"
#include "nn/call_memory.h"
#include "nn/training/trainer.h"
#include "nn/transformer/transformer_block.h"
#include "rules/arena.h"
#include "rules/dropout_mask.h"

namespace multihead {
namespace {

// Dropout seed for one part of a step's batch.
uint64_t seed_of(uint64_t seed, int64_t step, int64_t part) {
  const auto words = rules::philox4x32(
      {static_cast<uint32_t>(step), static_cast<uint32_t>(static_cast<uint64_t>(step) >> 32U),
       static_cast<uint32_t>(part), 0},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32U)});
  return words[0] | static_cast<uint64_t>(words[1]) << 32U;
}

bool decays(nn::ParameterRole role) {
  using enum nn::ParameterRole;
  return role == kWeight || role == kResidualWeight || role == kOutput || role == kEmbedding;
}

// Returns the name of the first parameter whose part of `block` has a number that is not finite;
// otherwise an empty string.
std::string first_not_finite(const nn::Parameters& parameters, const float* block) {
  for (const nn::Parameter& parameter : parameters.list()) {
    const float* const first = block + parameter.offset;
    const auto finite = [](float x) { return std::isfinite(x); };
    if (!std::all_of(first, first + parameter.shape.elements(), finite)) return parameter.name;
  }
  return {};
}

Status not_finite(const Trainer::Internals& t, const float* block, Message named, Message other) {
  const std::string name = first_not_finite(t.parameters, block);
  const int64_t step = t.steps + 1;
  if (name.empty()) return option_error(Name::kTargets, other, step);
  return engine::text_error(StatusCode::kOption, Name::kTargets, named, name, step);
}

void optimize(const Trainer::Internals& t, float scale, float learning_rate, Context& context) {
  const TrainerOptions& o = t.options;
  const auto step = static_cast<double>(t.steps + 1);
  const auto correction = [&](float beta) {
    return static_cast<float>(1.0 - std::pow(static_cast<double>(beta), step));
  };
  const auto run = [&](int64_t first, int64_t count, float decay) {
    if (o.optimizer == Optimizer::kSgd) {
      const cpu::SgdStep sgd{.parameter = t.parameters.values() + first,
                             .gradient = t.gradient() + first,
                             .momentum_buffer = o.momentum > 0.0F ? t.moment(0) + first : nullptr,
                             .count = count,
                             .gradient_scale = scale,
                             .learning_rate = learning_rate,
                             .momentum = o.momentum,
                             .weight_decay = decay,
                             .first = t.steps == 0,
                             .nesterov = o.nesterov};
      return engine::over_rows(sgd, count, 1, cpu::sgd_range, context);
    }
    const cpu::AdamWStep adamw{.parameter = t.parameters.values() + first,
                               .gradient = t.gradient() + first,
                               .mean = t.moment(0) + first,
                               .variance = t.moment(1) + first,
                               .count = count,
                               .gradient_scale = scale,
                               .learning_rate = learning_rate,
                               .beta1 = o.beta1,
                               .beta2 = o.beta2,
                               .eps = o.eps,
                               .weight_decay = decay,
                               .mean_correction = correction(o.beta1),
                               .variance_correction = correction(o.beta2)};
    engine::over_rows(adamw, count, 1, cpu::adamw_range, context);
  };
  if (o.weight_decay == 0.0F) return run(0, t.parameters.elements(), 0.0F);
  for (const nn::Parameter& parameter : t.parameters.list()) {
    run(parameter.offset, parameter.shape.elements(),
        decays(parameter.role) ? o.weight_decay : 0.0F);
  }
}

class TransformerTrainee : public nn::Trainee {
 public:
  TransformerTrainee(const Transformer& model, nn::Parameters& parameters, bool recompute,
                     void (*changed)(Transformer& model))
      : model_(model), parameters_(parameters), changed_(changed), activations_(recompute) {}

  nn::Parameters& parameters() override { return parameters_; }
  int64_t classes() const override { return model_.config().vocab_size; }
  int64_t readouts() const override { return model_.config().num_readouts; }
  Status accumulate(const nn::TrainingPart& part, float* gradients, cpu::CrossEntropyResult& result,
                    bool& began, Context& context) override {
    const auto tokens = static_cast<int64_t>(part.tokens.size());
    const int64_t count = tokens * readouts(), length = part.batch < 1 ? 0 : tokens / part.batch;
    float* memory = nullptr;
    MULTIHEAD_TRY(nn::reserve(logits_, [&](rules::Arena& take) {
      take(memory, nn::saturated_elements({count, classes()}));
    }));
    const Tensor logits(memory, {part.batch, length, readouts() * classes()});
    MULTIHEAD_TRY(model_.forward(part.tokens, part.batch, part.options,
                                 {.logits = logits, .activations = &activations_}, context));
    const Tensor rows(memory, {count, classes()});
    result = engine::cross_entropy(rows, part.targets, rows, 1.0F, context);
    if (!std::isfinite(result.loss_sum)) return {};
    began = true;
    return model_.backward(part.tokens, part.batch, part.options, logits, activations_,
                           {gradients, static_cast<size_t>(parameters_.elements())}, context);
  }
  void parameters_changed() override { changed_(model_); }
  int64_t bytes() const override {
    return static_cast<int64_t>(logits_.bytes()) + activations_.bytes();
  }
  const Transformer* transformer() const override { return &model_; }

 private:
  Transformer model_;
  nn::Parameters& parameters_;
  void (*changed_)(Transformer& model);
  TransformerActivations activations_;
  engine::Buffer logits_;  // of a part, later their gradient
};

}  // namespace

void Trainer::Internals::forget_gradients() {
  std::memset(gradients.data(), 0, bytes_of_block());
  parts = counted = correct = 0;
  loss = 0;
}

Trainer::Trainer() = default;
Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;

Status Trainer::create(const Transformer& model, const TrainerOptions& options, Trainer& trainer) {
  return engine::memory_guard([&]() -> Status {
    if (model.memory_ == nullptr) return option_error(Name::kModel, Message::kParametersToTrain);
    return Internals::create(
        std::make_unique<TransformerTrainee>(model, model.memory_->parameters, options.recompute,
                                             [](Transformer& own) { own.parameters_changed(); }),
        options, trainer);
  });
}

Status Trainer::Internals::create(std::unique_ptr<nn::Trainee> trainee,
                                  const TrainerOptions& options, Trainer& trainer) {
  MULTIHEAD_TRY(nn::validate_options(options));
  Trainer made;
  made.internals_ = std::make_unique<Trainer::Internals>(options, std::move(trainee));
  Trainer::Internals& t = *made.internals_;
  t.write_state();
  // One extra byte, so that a block without parameters has memory too.
  const uint64_t bytes = t.bytes_of_block() + 1;
  engine::Buffer* const buffers[] = {&t.gradients, &t.moments[0], &t.moments[1]};
  for (engine::Buffer* buffer :
       std::span(buffers).first(static_cast<size_t>(1 + t.moment_count()))) {
    if (!buffer->reserve(bytes)) return Status::out_of_memory(bytes);
    std::memset(buffer->data(), 0, static_cast<size_t>(bytes));
  }
  trainer = std::move(made);
  return {};
}

Status Trainer::step(std::span<const int32_t> tokens, int64_t batch,
                     std::span<const int32_t> targets, const MultiHeadAttentionOptions& options,
                     TrainingStep& result, Context& context) {
  MULTIHEAD_TRY(accumulate(tokens, batch, targets, options, context));
  return update(result, context);
}

Status Trainer::accumulate(std::span<const int32_t> tokens, int64_t batch,
                           std::span<const int32_t> targets,
                           const MultiHeadAttentionOptions& options, Context& context) {
  return engine::memory_guard([&]() -> Status {
    if (internals_ == nullptr) return option_error(Name::kTrainer, Message::kCreated);
    Trainer::Internals& t = *internals_;
    const int64_t classes = t.trainee->classes();
    const int64_t count = static_cast<int64_t>(tokens.size()) * t.trainee->readouts();
    if (static_cast<int64_t>(targets.size()) != count) {
      return shape_error(Name::kTargets, Message::kTargets, count,
                         static_cast<int64_t>(targets.size()));
    }
    for (const int32_t target : targets) {
      if (target >= -1 && target < classes) continue;
      return option_error(Name::kTargets, Message::kRange, -1, classes - 1, target);
    }
    if (options.training || options.dropout_seed != 0) {
      return option_error(options.training ? Name::kTraining : Name::kDropoutSeed,
                          Message::kOfTrainer);
    }
    MultiHeadAttentionOptions training = options;
    training.training = true;
    training.dropout_seed = seed_of(t.options.seed, t.steps, t.parts);
    cpu::CrossEntropyResult part = {};
    bool began = false;
    Status status = t.trainee->accumulate(
        {.tokens = tokens, .batch = batch, .targets = targets, .options = training}, t.gradient(),
        part, began, context);
    if (status.ok() && !std::isfinite(part.loss_sum)) {
      return not_finite(t, t.parameters.values(), Message::kLossOfParameter,
                        Message::kLossNotFinite);
    }
    if (!status.ok() && !began) return status;
    if (!status.ok()) {
      t.forget_gradients();
      return status;
    }
    ++t.parts;
    t.loss += part.loss_sum;
    t.counted += part.counted;
    t.correct += part.correct;
    return {};
  });
}

Status Trainer::update(TrainingStep& result, Context& context) {
  return engine::memory_guard([&]() -> Status {
    if (internals_ == nullptr) return option_error(Name::kTrainer, Message::kCreated);
    Trainer::Internals& t = *internals_;
    if (t.counted == 0) {
      t.forget_gradients();
      return option_error(Name::kTargets, Message::kSomeTarget);
    }
    const auto counted = static_cast<double>(t.counted);
    const double norm =
        std::sqrt(engine::sum_of_squares(t.gradient(), t.parameters.elements(), context)) / counted;
    if (!std::isfinite(norm)) {
      Status status =
          not_finite(t, t.gradient(), Message::kGradientOfParameter, Message::kGradientTooLarge);
      t.forget_gradients();
      return status;
    }
    // Clipping by the norm over all parameters (Pascanu et al., arXiv:1211.5063, algorithm 1).
    const auto most = static_cast<double>(t.options.clip_norm);
    const double clip = most > 0 && norm > most ? most / norm : 1.0;
    const float learning_rate = nn::learning_rate_of(t.options, t.steps + 1);
    optimize(t, static_cast<float>(clip / counted), learning_rate, context);
    ++t.steps;
    t.write_state();
    result = {.step = t.steps,
              .loss = t.loss / counted,
              .gradient_norm = norm,
              .learning_rate = learning_rate,
              .counted = t.counted,
              .correct = t.correct};
    t.forget_gradients();
    t.trainee->parameters_changed();
    return {};
  });
}

Status Trainer::set_learning_rate(float learning_rate) {
  return engine::memory_guard([&]() -> Status {
    if (internals_ == nullptr) return option_error(Name::kTrainer, Message::kCreated);
    TrainerOptions changed = internals_->options;
    changed.learning_rate = learning_rate;
    MULTIHEAD_TRY(nn::validate_options(changed));
    internals_->options = changed;
    return {};
  });
}

Status Trainer::gradients(StateDict& dict) const {
  if (internals_ == nullptr) return option_error(Name::kTrainer, Message::kCreated);
  const Trainer::Internals& t = *internals_;
  return engine::memory_guard([&]() -> Status {
    dict = t.parameters.state_dict(t.gradient());
    return {};
  });
}

const Transformer& Trainer::model() const {
  static const Transformer none;
  const Transformer* const own =
      internals_ == nullptr ? nullptr : internals_->trainee->transformer();
  return own == nullptr ? none : *own;
}

const TrainerOptions& Trainer::options() const {
  static const TrainerOptions none;
  return internals_ == nullptr ? none : internals_->options;
}

int64_t Trainer::steps() const { return internals_ == nullptr ? 0 : internals_->steps; }

int64_t Trainer::bytes() const {
  if (internals_ == nullptr) return 0;
  const Trainer::Internals& t = *internals_;
  size_t sum = t.bytes_of_block() + t.gradients.bytes();
  for (const engine::Buffer& moment : t.moments) sum += moment.bytes();
  return static_cast<int64_t>(sum) + t.trainee->bytes();
}

}  // namespace multihead
