// Compares the backward oracle with finite differences of the forward oracle.
#include "reference/reference_backward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "reference/reference_attention.h"
#include "support/random_case.h"

namespace multihead::reference {
namespace {

using testing::Random;
using testing::RandomCase;

// A call whose inputs are contiguous f32 and can be changed.
struct Differentiable {
  RandomCase source;
  std::vector<float> q, k, v, bias, sinks, q_gain, k_gain, d_out;
  AttentionOptions options;

  explicit Differentiable(uint64_t seed)
      : source(testing::random_case(seed, {.max_queries = 5, .max_keys = 7, .max_width = 6})),
        options(source.options) {
    Random random(seed + 1000);
    q = random.floats(source.q.shape.elements());
    k = random.floats(source.k.shape.elements());
    v = random.floats(source.v.shape.elements());
    d_out = random.floats(source.out_shape.elements());
    sinks.assign(options.sinks.begin(), options.sinks.end());
    options.sinks = sinks;
    if (options.bias.data != nullptr) {
      bias = random.floats(options.bias.shape.elements());
      options.bias = {bias.data(), options.bias.shape};
    }
    q_gain.assign(options.qk_norm.q_gain.begin(), options.qk_norm.q_gain.end());
    k_gain.assign(options.qk_norm.k_gain.begin(), options.qk_norm.k_gain.end());
    options.qk_norm.q_gain = q_gain;
    options.qk_norm.k_gain = k_gain;
  }

  // The loss is sum(out * d_out): its gradients are the results of attention_backward().
  double loss() const {
    const ReferenceOutputs forward =
        attention({q.data(), source.q.shape}, {k.data(), source.k.shape},
                  {v.data(), source.v.shape}, options);
    double sum = 0;
    for (size_t i = 0; i < d_out.size(); ++i) {
      sum += forward.out[i] * static_cast<double>(d_out[i]);
    }
    return sum;
  }

  ReferenceGradients gradients() const {
    return attention_backward({q.data(), source.q.shape}, {k.data(), source.k.shape},
                              {v.data(), source.v.shape}, options,
                              {d_out.data(), source.out_shape});
  }

  void expect_differences(const std::string& name, std::vector<float>& input,
                          const std::vector<double>& gradient) {
    for (size_t i = 0; i < input.size(); ++i) {
      const float kept = input[i];
      // A small step loses no precision, because the loss is a double and the rounded inputs are
      // used below. With QK-norm, rows of one small element are not linear over a larger step.
      constexpr float kStep = 1.0F / 262144;
      input[i] = kept + kStep;
      const double above = input[i], more = loss();
      input[i] = kept - kStep;
      const double below = input[i], less = loss();
      input[i] = kept;
      const double expected = (more - less) / (above - below);
      ASSERT_NEAR(gradient[i], expected, 2e-4 + 2e-3 * std::abs(expected))
          << name << "[" << i << "], " << source.description;
    }
  }
};

TEST(ReferenceBackward, EqualsFiniteDifferencesOnRandomCalls) {
  for (const uint64_t seed : testing::random_seeds(60)) {
    Differentiable call(seed);
    const ReferenceGradients got = call.gradients();
    call.expect_differences("d_q", call.q, got.d_q);
    call.expect_differences("d_k", call.k, got.d_k);
    call.expect_differences("d_v", call.v, got.d_v);
    call.expect_differences("d_bias", call.bias, got.d_bias);
    call.expect_differences("d_sinks", call.sinks, got.d_sinks);
    call.expect_differences("d_q_gain", call.q_gain, got.d_q_gain);
    call.expect_differences("d_k_gain", call.k_gain, got.d_k_gain);
    if (HasFatalFailure()) return;
  }
}

// One query, two equal scores: each gradient can be worked out by hand.
TEST(ReferenceBackward, TwoEqualScores) {
  const std::vector<float> q{0}, k{1, 2}, v{3, 5}, d_out{1};
  const Dims one{1, 1, 1, 1}, two{1, 1, 2, 1};
  const ReferenceGradients got = attention_backward(
      {q.data(), one}, {k.data(), two}, {v.data(), two}, {.scale = 1.0F}, {d_out.data(), one});
  // Weights 1/2 each; d_score = 1/2 * (v - 4).
  EXPECT_DOUBLE_EQ(got.d_q[0], -0.5 * 1 + 0.5 * 2);
  EXPECT_EQ(got.d_k, (std::vector<double>{0, 0}));
  EXPECT_EQ(got.d_v, (std::vector<double>{0.5, 0.5}));
}

}  // namespace
}  // namespace multihead::reference
