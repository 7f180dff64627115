// Compares steps of AdamW and SGD with the formulas of torch.optim in double, on every SIMD target
// of the machine.
#include "cpu/elementwise/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "engine/layers/elementwise.h"
#include "multihead/context.h"
#include "support/random_case.h"
#include "support/simd_targets.h"

namespace multihead::engine {
namespace {

using testing::Random;

constexpr int kThreads[] = {1, 2, 3};
constexpr int64_t kCounts[] = {0, 1, 3, 17, 64, 100, 20001};

class OptimiserOnTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  testing::UseSimdTarget use_{GetParam()};
};

double wide(float value) { return static_cast<double>(value); }

TEST_P(OptimiserOnTarget, AdamW) {
  for (const int64_t count : kCounts) {
    SCOPED_TRACE("count " + std::to_string(count));
    Random random(1);
    const std::vector<float> start = random.floats(count);
    std::vector<std::vector<float>> gradients;
    for (int t = 0; t < 2; ++t) gradients.push_back(random.floats(count));
    cpu::AdamWStep step{.parameter = nullptr,
                        .gradient = nullptr,
                        .mean = nullptr,
                        .variance = nullptr,
                        .count = count,
                        .gradient_scale = 0.25F,
                        .learning_rate = 0.01F,
                        .beta1 = 0.9F,
                        .beta2 = 0.99F,
                        .eps = 1e-6F,
                        .weight_decay = 0.1F,
                        .mean_correction = 0.0F,
                        .variance_correction = 0.0F};
    std::vector<float> first;
    for (const int threads : kThreads) {
      const Context context(threads);
      std::vector<float> parameter = start, mean(start.size()), variance(start.size());
      step.parameter = parameter.data();
      step.mean = mean.data();
      step.variance = variance.data();
      std::vector<double> p(start.begin(), start.end()), m(start.size()), v(start.size());
      for (int t = 1; t <= 2; ++t) {
        const std::vector<float>& gradient = gradients[static_cast<size_t>(t - 1)];
        step.gradient = gradient.data();
        step.mean_correction = 1.0F - std::pow(step.beta1, static_cast<float>(t));
        step.variance_correction = 1.0F - std::pow(step.beta2, static_cast<float>(t));
        over_rows(step, step.count, 1, cpu::adamw_range, context);
        for (size_t i = 0; i < p.size(); ++i) {
          const double g = 0.25 * wide(gradient[i]), b1 = wide(step.beta1), b2 = wide(step.beta2);
          p[i] *= 1 - wide(step.learning_rate) * wide(step.weight_decay);
          m[i] = b1 * m[i] + (1 - b1) * g;
          v[i] = b2 * v[i] + (1 - b2) * g * g;
          const double deviation = std::sqrt(v[i] / (1 - std::pow(b2, t))) + wide(step.eps);
          p[i] -= wide(step.learning_rate) * (m[i] / (1 - std::pow(b1, t))) / deviation;
          ASSERT_NEAR(parameter[i], p[i], 2e-6) << i;
          ASSERT_NEAR(mean[i], m[i], 1e-6) << i;
          ASSERT_NEAR(variance[i], v[i], 1e-6) << i;
        }
      }
      if (threads == 1) first = parameter;
      EXPECT_EQ(parameter, first);
    }
  }
}

TEST_P(OptimiserOnTarget, Sgd) {
  for (const int64_t count : kCounts) {
    for (const int which : {0, 1, 2}) {  // 0: no momentum, 1: momentum, 2: Nesterov momentum
      SCOPED_TRACE(std::to_string(count) + ", " + std::to_string(which));
      Random random(2);
      const Context context(2);
      std::vector<float> parameter = random.floats(count), buffer(parameter.size(), NAN);
      std::vector<double> p(parameter.begin(), parameter.end()), b(p.size());
      for (int t = 0; t < 2; ++t) {
        const std::vector<float> gradient = random.floats(count);
        const cpu::SgdStep step{.parameter = parameter.data(),
                                .gradient = gradient.data(),
                                .momentum_buffer = which == 0 ? nullptr : buffer.data(),
                                .count = count,
                                .gradient_scale = 0.5F,
                                .learning_rate = 0.1F,
                                .momentum = 0.9F,
                                .weight_decay = 0.01F,
                                .first = t == 0,
                                .nesterov = which == 2};
        over_rows(step, count, 1, cpu::sgd_range, context);
        for (size_t i = 0; i < p.size(); ++i) {
          double g = 0.5 * wide(gradient[i]) + wide(0.01F) * p[i];
          if (which > 0) {
            b[i] = t == 0 ? g : wide(0.9F) * b[i] + g;
            g = which == 2 ? g + wide(0.9F) * b[i] : b[i];
          }
          p[i] -= wide(0.1F) * g;
          ASSERT_NEAR(parameter[i], p[i], 1e-6) << i;
        }
      }
    }
  }
}

TEST_P(OptimiserOnTarget, SumsOfSquares) {
  for (const int64_t count : {0, 1, 2, 7, 33, 16384, 16385, 100003}) {
    SCOPED_TRACE("count " + std::to_string(count));
    Random random(3);
    std::vector<float> x = random.floats(count);
    double expected = 0.0;
    for (const float value : x) expected += wide(value) * wide(value);
    Context one(1);
    const double sum = sum_of_squares(x.data(), count, one);
    EXPECT_NEAR(sum, expected, 1e-12 * expected);
    for (const int threads : kThreads) {
      Context context(threads);
      EXPECT_EQ(sum_of_squares(x.data(), count, context), sum);
    }
    if (count == 0) continue;
    x.back() = -std::numeric_limits<float>::infinity();
    EXPECT_EQ(sum_of_squares(x.data(), count, one), std::numeric_limits<double>::infinity());
    x.front() = NAN;
    EXPECT_TRUE(std::isnan(sum_of_squares(x.data(), count, one)));
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, OptimiserOnTarget,
                         ::testing::ValuesIn(testing::simd_targets()),
                         [](const auto& param) { return testing::simd_target_name(param.param); });

}  // namespace
}  // namespace multihead::engine
