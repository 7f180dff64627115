#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <tuple>
#include <utility>

#include "engine/error/error.h"
#include "nn/training/trainer.h"

namespace multihead::nn {

Status validate_options(const TrainerOptions& o) {
  MULTIHEAD_TRY(engine::validate_enumerator(Name::kOptimizer, o.optimizer, Optimizer::kSgd));
  MULTIHEAD_TRY(engine::validate_enumerator(Name::kDecay, o.decay, LearningRateDecay::kCosine));
  if (!(o.learning_rate > 0.0F) || std::isinf(o.learning_rate)) {
    return real_error(Name::kLearningRate, Message::kFinitePositive, o.learning_rate);
  }
  for (const auto& [name, value] :
       {std::pair{Name::kBeta1, o.beta1}, {Name::kBeta2, o.beta2}, {Name::kMomentum, o.momentum}}) {
    if (value >= 0.0F && value < 1.0F) continue;
    return real_error(name, Message::kZeroToBelowOne, value);
  }
  for (const auto& [name, value] : {std::pair{Name::kEps, o.eps},
                                    {Name::kWeightDecay, o.weight_decay},
                                    {Name::kFinalLearningRate, o.final_learning_rate},
                                    {Name::kClipNorm, o.clip_norm}}) {
    if (value >= 0.0F && !std::isinf(value)) continue;
    return real_error(name, Message::kFiniteNotNegative, value);
  }
  // A parameter whose gradients are all 0, such as the embedding of an unseen token, has a mean of
  // squares of 0, and its step would be 0 / 0.
  if (o.optimizer == Optimizer::kAdamW && o.eps == 0.0F) {
    return real_error(Name::kEps, Message::kFinitePositive, o.eps);
  }
  if (o.optimizer == Optimizer::kAdamW && o.momentum != 0.0F) {
    return real_error(Name::kMomentum, Message::kMomentumOfSgd, o.momentum);
  }
  if (o.nesterov && o.momentum == 0.0F) {
    return option_error(Name::kNesterov, Message::kMomentumForNesterov);
  }
  constexpr int64_t kMost = int64_t{1} << 48U;
  const bool cosine = o.decay == LearningRateDecay::kCosine;
  for (const auto& [name, value, least] :
       {std::tuple{Name::kWarmupSteps, o.warmup_steps, int64_t{0}},
        {Name::kDecaySteps, o.decay_steps, int64_t{cosine ? 1 : 0}}}) {
    if (value >= least && value <= kMost) continue;
    return option_error(name, Message::kRange, least, kMost, value);
  }
  return {};
}

float learning_rate_of(const TrainerOptions& o, int64_t step) {
  if (step <= o.warmup_steps) {
    return static_cast<float>(static_cast<double>(o.learning_rate) * static_cast<double>(step) /
                              static_cast<double>(o.warmup_steps));
  }
  if (o.decay == LearningRateDecay::kConstant) return o.learning_rate;
  const double part = std::min(
      1.0, static_cast<double>(step - o.warmup_steps) / static_cast<double>(o.decay_steps));
  const auto first = static_cast<double>(o.learning_rate);
  const auto last = static_cast<double>(o.final_learning_rate);
  return static_cast<float>(last + (first - last) * (1 + std::cos(std::numbers::pi * part)) / 2);
}

}  // namespace multihead::nn
