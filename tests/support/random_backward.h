// Random calls of attention_backward(), with the results of attention() that they need.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "multihead/attention_backward.h"
#include "reference/reference_attention.h"
#include "reference/reference_backward.h"
#include "support/random_case.h"

namespace multihead::testing {

inline std::vector<float> poisoned(int64_t count) {
  return std::vector<float>(static_cast<size_t>(count), std::numeric_limits<float>::quiet_NaN());
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

struct Gradients {
  std::vector<float> d_q, d_k, d_v, d_bias, d_sinks, d_q_gain, d_k_gain;

  bool same_as(const Gradients& other) const {
    return same_bits(d_q, other.d_q) && same_bits(d_k, other.d_k) && same_bits(d_v, other.d_v) &&
           same_bits(d_bias, other.d_bias) && same_bits(d_sinks, other.d_sinks) &&
           same_bits(d_q_gain, other.d_q_gain) && same_bits(d_k_gain, other.d_k_gain);
  }
};

// Returns gradients of everything that a call has, filled with NaN.
inline Gradients empty_gradients(const RandomCase& c) {
  const int64_t gains = c.options.qk_norm.enabled ? c.q.shape[3] : 0;
  return {.d_q = poisoned(c.q.shape.elements()),
          .d_k = poisoned(c.k.shape.elements()),
          .d_v = poisoned(c.v.shape.elements()),
          .d_bias = poisoned(c.options.bias.given() ? c.options.bias.shape.elements() : 0),
          .d_sinks = poisoned(static_cast<int64_t>(c.options.sinks.size())),
          .d_q_gain = poisoned(gains),
          .d_k_gain = poisoned(gains)};
}

inline AttentionGradients gradient_views(const RandomCase& c, Gradients& g) {
  AttentionGradients to{.d_q = {g.d_q.data(), c.q.shape},
                        .d_k = {g.d_k.data(), c.k.shape},
                        .d_v = {g.d_v.data(), c.v.shape},
                        .d_bias = {},
                        .d_sinks = g.d_sinks,
                        .d_q_gain = g.d_q_gain,
                        .d_k_gain = g.d_k_gain};
  if (c.options.bias.given()) to.d_bias = {g.d_bias.data(), c.options.bias.shape};
  return to;
}

// A random call with its results and a gradient of its output.
struct BackwardCall {
  RandomCase c;
  std::vector<float> out, lse, d_out;

  BackwardCall(uint64_t seed, const CaseLimits& limits)
      : BackwardCall(random_case(seed, limits), seed) {}

  BackwardCall(RandomCase of_case, uint64_t seed) : c(std::move(of_case)) {
    Random random(seed + 77);
    d_out = random.floats(c.out_shape.elements());
    forward();
  }

  void forward() {
    // Results from the oracle, so that only errors of the backward count.
    const reference::ReferenceOutputs exact = reference::attention(c.q, c.k, c.v, c.options);
    out.assign(exact.out.begin(), exact.out.end());
    lse.assign(exact.lse.begin(), exact.lse.end());
  }

  Gradients empty() const { return empty_gradients(c); }
  AttentionGradients views(Gradients& g) const { return gradient_views(c, g); }
  AttentionResults results() const {
    return {.out = ConstTensor(out.data(), c.out_shape),
            .lse = ConstTensor(lse.data(), c.lse_shape)};
  }

  Gradients run(Context& context) const {
    Gradients g = empty();
    const Status status =
        attention_backward(c.q, c.k, c.v, c.options, results(),
                           ConstTensor(d_out.data(), c.out_shape), views(g), context);
    EXPECT_TRUE(status.ok()) << status.message() << "; " << c.description;
    return g;
  }

  reference::ReferenceGradients expected() const {
    return reference::attention_backward(c.q, c.k, c.v, c.options,
                                         ConstTensor(d_out.data(), c.out_shape));
  }
};

// Returns the relative error of a weight exp(score - LSE) due to the rounding of both floats.
inline double error_of_weights(const std::vector<float>& lse) {
  double relative = 1e-5;
  for (const float value : lse) {
    if (!std::isfinite(value)) continue;
    relative = std::max(relative, 2e-7 * std::abs(static_cast<double>(value)));
  }
  return relative;
}

// Returns the largest magnitude in the gradients of tensors, at least 1.
inline double largest_gradient(const reference::ReferenceGradients& gradients) {
  double largest = 1.0;
  for (const std::vector<double>* const gradient :
       {&gradients.d_q, &gradients.d_k, &gradients.d_v, &gradients.d_bias}) {
    for (const double value : *gradient) {
      if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
    }
  }
  return largest;
}

}  // namespace multihead::testing
