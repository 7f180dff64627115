// Compares gradients of norms, activations, embeddings and cross-entropy, and dropout of rows, with
// double, on every SIMD target of the machine.
#include "engine/layers/gradients.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "cpu/elementwise/gradients.h"
#include "engine/layers/elementwise.h"
#include "multihead/elementwise.h"
#include "rules/dropout_mask.h"
#include "support/random_case.h"
#include "support/simd_targets.h"

namespace multihead::engine {
namespace {

using testing::Random;

constexpr int kThreads[] = {1, 2, 3};

class GradientsOnTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  testing::UseSimdTarget use_{GetParam()};
};

double wide(float value) { return static_cast<double>(value); }

TEST_P(GradientsOnTarget, Norms) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const int64_t width = random.integer(1, random.chance(0.3) ? 400 : 40);
    const int64_t rows = random.integer(0, random.chance(0.1) ? 900 : 30);
    const bool centered = random.chance(0.5), has_weight = random.chance(0.7);
    const bool wants_weight = random.chance(0.7), wants_bias = random.chance(0.7);
    const bool adds = random.chance(0.3), in_place = !adds && random.chance(0.5);
    const std::vector<float> x = random.floats(rows * width, -1.0F, 2.0F);
    const std::vector<float> d_y = random.floats(rows * width), weight = random.floats(width);
    const std::vector<float> start = random.floats(rows * width);
    const std::vector<float> start_weight = random.floats(width), start_bias = random.floats(width);

    std::vector<double> d_x(x.size());
    std::vector<double> d_weight(start_weight.begin(), start_weight.end());
    std::vector<double> d_bias(start_bias.begin(), start_bias.end());
    std::vector<double> bound(x.size());
    const double count = static_cast<double>(width);
    for (int64_t row = 0; row < rows; ++row) {
      const auto at = [&](int64_t c) { return static_cast<size_t>(row * width + c); };
      double mean = 0, square = 0, mean_g = 0, mean_gn = 0;
      for (int64_t c = 0; c < width && centered; ++c) mean += wide(x[at(c)]) / count;
      for (int64_t c = 0; c < width; ++c) square += std::pow(wide(x[at(c)]) - mean, 2) / count;
      const double r = 1 / std::sqrt(square + wide(1e-3F));
      const auto g = [&](int64_t c) {
        return wide(d_y[at(c)]) * (has_weight ? wide(weight[static_cast<size_t>(c)]) : 1.0);
      };
      const auto n = [&](int64_t c) { return (wide(x[at(c)]) - mean) * r; };
      for (int64_t c = 0; c < width; ++c) {
        mean_g += centered ? g(c) / count : 0.0;
        mean_gn += g(c) * n(c) / count;
        d_weight[static_cast<size_t>(c)] += wide(d_y[at(c)]) * n(c);
        d_bias[static_cast<size_t>(c)] += wide(d_y[at(c)]);
      }
      for (int64_t c = 0; c < width; ++c) {
        d_x[at(c)] = r * (g(c) - mean_g - n(c) * mean_gn) + (adds ? wide(start[at(c)]) : 0.0);
        bound[at(c)] = 3e-6 * std::max(1.0, r);
      }
    }
    std::vector<float> first[3];
    for (const int threads : kThreads) {
      Context context(threads);
      std::vector<float> to = in_place ? d_y : start, to_weight = start_weight;
      std::vector<float> to_bias = start_bias;
      const cpu::NormBackward call{.x = x.data(),
                                   .weight = has_weight ? weight.data() : nullptr,
                                   .d_y = in_place ? to.data() : d_y.data(),
                                   .d_x = to.data(),
                                   .adds_to_d_x = adds,
                                   .d_weight = wants_weight ? to_weight.data() : nullptr,
                                   .d_bias = wants_bias ? to_bias.data() : nullptr,
                                   .rows = rows,
                                   .width = width,
                                   .eps = 1e-3F,
                                   .centered = centered};
      ASSERT_TRUE(norm_backward(call, context).ok());
      if (threads > 1) {
        EXPECT_EQ(to, first[0]);
        EXPECT_EQ(to_weight, first[1]);
        EXPECT_EQ(to_bias, first[2]);
        continue;
      }
      for (size_t i = 0; i < to.size(); ++i) ASSERT_NEAR(to[i], d_x[i], bound[i]) << i;
      for (size_t c = 0; c < to_weight.size(); ++c) {
        const double near = 2e-6 * (static_cast<double>(rows) + 1);
        ASSERT_NEAR(to_weight[c], wants_weight ? d_weight[c] : wide(start_weight[c]), near) << c;
        ASSERT_NEAR(to_bias[c], wants_bias ? d_bias[c] : wide(start_bias[c]), near) << c;
      }
      first[0] = to, first[1] = to_weight, first[2] = to_bias;
    }
  }
}

struct Derivative {
  double value, slope;
};
Derivative expected_activation(Activation activation, double x) {
  switch (activation) {
    case Activation::kRelu:
      return {x < 0 ? 0 : x, x > 0 ? 1.0 : 0.0};
    case Activation::kGelu: {
      const double phi = 0.5 * std::erfc(-x / std::numbers::sqrt2);
      return {x * phi, phi + x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi)};
    }
    case Activation::kGeluTanh: {
      const double scale = std::sqrt(2 / std::numbers::pi);
      const double t = std::tanh(scale * (x + 0.044715 * x * x * x));
      const double inner = scale * (1 + 3 * 0.044715 * x * x);
      return {0.5 * x * (1 + t),
              0.5 * (1 + t) + (std::abs(x) > 50 ? 0.0 : 0.5 * x * (1 - t * t) * inner)};
    }
    case Activation::kSilu:
      break;
  }
  const double s = 1 / (1 + std::exp(-x));
  return {x * s, s + x * s * (1 - s)};
}

TEST_P(GradientsOnTarget, ActivationsOverTheirWholeRange) {
  std::vector<float> gate;
  for (double value = -40; value <= 40; value += 1.0 / 64) {
    gate.push_back(static_cast<float>(value));
  }
  for (const float value : {0.0F, -0.0F, 1e-30F, -1e-30F, 1e30F, 88.0F, -88.0F, 1000.0F, -1e30F}) {
    gate.push_back(value);
  }
  const auto count = static_cast<int64_t>(gate.size());
  Random random(1);
  const std::vector<float> x = random.floats(count), d_y = random.floats(count);
  Context context(2);
  for (const Activation activation :
       {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kSilu}) {
    for (const bool gated : {false, true}) {
      std::vector<float> d_gate = d_y, d_x(gate.size());
      const cpu::ActivationBackward call{.gate = gate.data(),
                                         .x = gated ? x.data() : nullptr,
                                         .d_y = d_gate.data(),
                                         .d_gate = d_gate.data(),
                                         .d_x = gated ? d_x.data() : nullptr,
                                         .count = count,
                                         .activation = activation};
      over_rows(call, count, 1, cpu::activation_backward_range, context);
      for (size_t i = 0; i < gate.size(); ++i) {
        const auto [value, slope] = expected_activation(activation, wide(gate[i]));
        const double factor = wide(d_y[i]) * (gated ? wide(x[i]) : 1.0);
        ASSERT_NEAR(d_gate[i], factor * slope, 1e-6)
            << static_cast<int>(activation) << " at " << gate[i];
        if (!gated) continue;
        ASSERT_NEAR(d_x[i], wide(d_y[i]) * value, 4e-7 * std::max(1.0, std::abs(wide(gate[i]))))
            << static_cast<int>(activation) << " at " << gate[i];
      }
    }
  }
}

TEST_P(GradientsOnTarget, Embeddings) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const int64_t width = random.integer(1, random.chance(0.2) ? 500 : 70);
    const int64_t batch = random.integer(0, 3), sequence = random.integer(1, 40);
    const int64_t vocabulary = random.integer(1, 30), first = random.integer(0, 5);
    std::vector<int32_t> tokens(static_cast<size_t>(batch * sequence));
    for (int32_t& token : tokens) token = static_cast<int32_t>(random.integer(0, vocabulary - 1));
    const std::vector<float> d_y = random.floats(batch * sequence * width);
    const std::vector<float> start_tokens = random.floats(vocabulary * width);
    const std::vector<float> start_positions = random.floats((first + sequence) * width);
    std::vector<float> expected_tokens = start_tokens, expected_positions = start_positions;
    for (size_t row = 0; row < tokens.size(); ++row) {
      const int64_t position = first + static_cast<int64_t>(row) % sequence;
      for (int64_t c = 0; c < width; ++c) {
        const float value = d_y[row * static_cast<size_t>(width) + static_cast<size_t>(c)];
        expected_tokens[static_cast<size_t>(tokens[row] * width + c)] += value;
        expected_positions[static_cast<size_t>(position * width + c)] += value;
      }
    }
    for (const int threads : kThreads) {
      const Context context(threads);
      std::vector<float> d_tokens = start_tokens, d_positions = start_positions;
      const auto run = [&](float* token_sums, float* position_sums) {
        embed_backward({.tokens = tokens.data(),
                        .d_y = d_y.data(),
                        .rows = batch * sequence,
                        .width = width,
                        .first_position = first,
                        .sequence = sequence,
                        .d_tokens = token_sums,
                        .d_positions = position_sums},
                       context);
      };
      run(d_tokens.data(), nullptr);
      run(nullptr, d_positions.data());
      EXPECT_EQ(d_tokens, expected_tokens);
      EXPECT_EQ(d_positions, expected_positions);
      run(d_tokens.data(), d_positions.data());
    }
  }
}

TEST_P(GradientsOnTarget, DropoutOfRows) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const int64_t width = random.integer(1, random.chance(0.3) ? 400 : 70);
    const int64_t rows = random.integer(0, random.chance(0.2) ? 300 : 9);
    const cpu::RowDropout dropout{.probability = random.pick({0.0F, 0.1F, 0.5F, 0.9F}),
                                  .seed = seed << 40U | seed,
                                  .site = static_cast<uint32_t>(random.integer(0, 9))};
    std::vector<float> x = random.floats(rows * width);
    const std::vector<float> a = random.floats(rows * width);
    const uint64_t threshold = rules::dropout_threshold(dropout.probability);
    const float factor = 1.0F / (1.0F - dropout.probability);
    std::vector<float> expected, expected_sum;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t c = 0; c < width; ++c) {
        const auto at = static_cast<size_t>(row * width + c);
        const bool kept = rules::row_dropout_keeps(dropout.seed, dropout.site, row, c, threshold);
        // Dropped elements may be NaN.
        if (!kept && c % 3 == 0) x[at] = std::numeric_limits<float>::quiet_NaN();
        expected.push_back(kept ? x[at] * factor : 0.0F);
        expected_sum.push_back(a[at] + expected.back());
      }
    }
    for (const int threads : kThreads) {
      const Context context(threads);
      std::vector<float> y(x.size()), in_place = x, sum = a;
      const auto drop = [&](const float* added, const float* from, float* to) {
        const cpu::DropRows call{
            .a = added, .x = from, .y = to, .width = width, .dropout = dropout};
        over_rows(call, rows, width, cpu::drop_rows, context);
      };
      drop(nullptr, x.data(), y.data());
      EXPECT_EQ(y, expected);
      drop(nullptr, in_place.data(), in_place.data());
      EXPECT_EQ(in_place, expected);
      drop(sum.data(), x.data(), sum.data());
      EXPECT_EQ(sum, expected_sum);
    }
  }
}

TEST_P(GradientsOnTarget, CrossEntropyOfRows) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const int64_t classes = random.integer(1, random.chance(0.2) ? 3000 : 50);
    const int64_t rows = random.integer(0, random.chance(0.2) ? 300 : 20);
    const int64_t stride = classes + random.integer(0, 3);
    const float range = random.pick({0.1F, 4.0F, 60.0F}), d_scale = random.uniform(0.01F, 2.0F);
    std::vector<float> logits = random.floats(rows * stride, -range, range);
    // Rounding makes some logits equal; the prediction is then the first of the largest.
    if (random.chance(0.3)) {
      for (float& logit : logits) logit = std::round(logit / range * 2.0F);
    }
    std::vector<int32_t> targets(static_cast<size_t>(rows));
    for (int32_t& target : targets) target = static_cast<int32_t>(random.integer(-1, classes - 1));

    double loss = 0.0;
    int64_t counted = 0, correct = 0;
    std::vector<double> expected(logits.begin(), logits.end());
    for (int64_t row = 0; row < rows; ++row) {
      const float* const x = logits.data() + row * stride;
      double* const d_x = expected.data() + row * stride;
      const int64_t target = targets[static_cast<size_t>(row)];
      const float* const top = std::max_element(x, x + classes);
      double sum = 0.0;
      for (int64_t c = 0; c < classes; ++c) sum += std::exp(wide(x[c]) - wide(*top));
      for (int64_t c = 0; c < classes; ++c) {
        const double weight = std::exp(wide(x[c]) - wide(*top)) / sum;
        d_x[c] = target < 0 ? 0.0 : (weight - (c == target ? 1.0 : 0.0)) * wide(d_scale);
      }
      if (target < 0) continue;
      ++counted;
      loss += std::log(sum) + wide(*top) - wide(x[target]);
      correct += top == x + target ? 1 : 0;
    }
    const Dims shape{rows, classes}, strides{stride, 1};
    double first_loss = 0.0;
    std::vector<float> first;
    for (const int threads : kThreads) {
      Context context(threads);
      std::vector<float> d_logits = logits;  // in place
      const Tensor to{d_logits.data(), shape, strides};
      const cpu::CrossEntropyResult result = cross_entropy(to, targets, to, d_scale, context);
      EXPECT_EQ(result.counted, counted);
      EXPECT_EQ(result.correct, correct);
      ASSERT_NEAR(result.loss_sum, loss, 2e-6 * (static_cast<double>(counted) + std::abs(loss)));
      if (threads == 1) {
        first = d_logits;
        first_loss = result.loss_sum;
        for (size_t i = 0; i < expected.size(); ++i) {
          ASSERT_NEAR(d_logits[i], expected[i], 1e-6 * std::max(1.0, std::abs(expected[i]))) << i;
        }
      }
      EXPECT_EQ(result.loss_sum, first_loss);
      EXPECT_EQ(d_logits, first);
      const cpu::CrossEntropyResult without =
          cross_entropy({logits.data(), shape, strides}, targets, {}, d_scale, context);
      EXPECT_EQ(without.loss_sum, first_loss);
    }
  }
}

TEST_P(GradientsOnTarget, NonFiniteLogitsMakeTheLossNaN) {
  Context context(1);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const int64_t classes : {1, 3, 20, 65}) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
      for (int64_t at = 0; at < classes; ++at) {
        std::vector<float> logits(static_cast<size_t>(2 * classes), 1.0F);
        logits[static_cast<size_t>(at)] = bad;
        const Tensor both{logits.data(), {2, classes}};
        const std::vector<int32_t> targets{0, 0}, other{-1, 0};
        EXPECT_TRUE(std::isnan(cross_entropy(both, targets, {}, 1.0F, context).loss_sum));
        EXPECT_FALSE(std::isnan(cross_entropy(both, other, {}, 1.0F, context).loss_sum));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, GradientsOnTarget,
                         ::testing::ValuesIn(testing::simd_targets()),
                         [](const auto& param) { return testing::simd_target_name(param.param); });

}  // namespace
}  // namespace multihead::engine
