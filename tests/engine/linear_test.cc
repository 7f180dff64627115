// linear() against a plain double product, on every SIMD target of the machine.
#include "multihead/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/random_case.h"
#include "support/simd_targets.h"

namespace multihead {
namespace {

using testing::Random;

class LinearOnTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  testing::UseSimdTarget use_{GetParam()};
  Context context_{2};
};

TEST_P(LinearOnTarget, EqualsPlainProduct) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Random random(seed);
    const int64_t rows = random.integer(1, 70);
    const int64_t in = random.integer(1, 90);
    const int64_t out = random.integer(1, 130);
    const int64_t x_gap = random.integer(0, 3);
    const int64_t y_gap = random.integer(0, 3);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + std::to_string(rows) + " x " +
                 std::to_string(in) + " -> " + std::to_string(out));
    const std::vector<float> x = random.floats(rows * (in + x_gap));
    const std::vector<float> weight = random.floats(out * in);
    const std::vector<float> bias = random.floats(out);
    const bool with_bias = random.chance(0.5);
    constexpr float kUntouched = 42.0F;
    std::vector<float> y(static_cast<size_t>(rows * (out + y_gap)), kUntouched);
    const Status status =
        linear({x.data(), {rows, in}, {in + x_gap, 1}}, {weight.data(), {out, in}},
               with_bias ? ConstTensor(bias.data(), {out}) : ConstTensor(),
               {y.data(), {rows, out}, {out + y_gap, 1}}, context_);
    ASSERT_TRUE(status.ok()) << status.message();
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < out + y_gap; ++c) {
        const float got = y[static_cast<size_t>(r * (out + y_gap) + c)];
        if (c >= out) {
          ASSERT_EQ(got, kUntouched) << "written past row " << r;
          continue;
        }
        double expected = with_bias ? static_cast<double>(bias[static_cast<size_t>(c)]) : 0.0;
        for (int64_t k = 0; k < in; ++k) {
          expected += static_cast<double>(x[static_cast<size_t>(r * (in + x_gap) + k)]) *
                      static_cast<double>(weight[static_cast<size_t>(c * in + k)]);
        }
        ASSERT_NEAR(got, expected, 1e-5);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, LinearOnTarget, ::testing::ValuesIn(testing::simd_targets()),
                         [](const auto& param) { return testing::simd_target_name(param.param); });

TEST(Linear, RefusesShapesThatDoNotFit) {
  std::vector<float> data(100);
  Context context(1);
  const auto call = [&](const Dims& x, const Dims& weight, const Dims& bias, const Dims& y) {
    return linear({data.data(), x}, {data.data(), weight},
                  bias.rank() == 0 ? ConstTensor() : ConstTensor(data.data(), bias),
                  {data.data(), y}, context)
        .argument();
  };
  EXPECT_EQ(call({2, 3}, {4, 3}, {4}, {2, 4}), "");
  EXPECT_EQ(call({1, 2, 3}, {4, 3}, {}, {2, 4}), "x");
  EXPECT_EQ(call({2, 3}, {3, 4}, {}, {2, 4}), "weight");
  EXPECT_EQ(call({2, 3}, {4, 3}, {3}, {2, 4}), "bias");
  EXPECT_EQ(call({2, 3}, {4, 3}, {}, {4, 2}), "y");
}

}  // namespace
}  // namespace multihead
