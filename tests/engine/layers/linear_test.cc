// linear() compared with a product in double by Eigen, on every SIMD target of the machine.
#include "multihead/linear.h"

#include <gtest/gtest.h>

#include <Eigen/Core>
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cpu/target.h"
#include "rules/element.h"
#include "support/allocations.h"
#include "support/random_case.h"
#include "support/simd_targets.h"
#include "support/special_values.h"
#include "support/tile_model.h"

namespace multihead {
namespace {

using testing::Random;

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

struct LinearCase {
  int64_t rows, in, out;
  int64_t x_gap = 0, weight_gap = 0, y_gap = 0;  // elements between two rows
  bool with_bias = true;
  DType type = DType::kF32;
  Precision precision = Precision::kF32;  // kBf16: x and the weights are representable in bf16

  std::string description(uint64_t seed) const {
    return "seed " + std::to_string(seed) + ": " + std::to_string(rows) + " x " +
           std::to_string(in) + " -> " + std::to_string(out) + ", gaps " + std::to_string(x_gap) +
           " " + std::to_string(weight_gap) + " " + std::to_string(y_gap) + ", " + name_of(type) +
           (precision == Precision::kBf16 ? ", products of bf16" : "");
  }
};

// Fills the gaps with NaN, which would show in a result.
std::vector<float> rows_with_gaps(Random& random, int64_t rows, int64_t width, int64_t gap) {
  std::vector<float> values = random.floats(rows * (width + gap));
  for (int64_t at = 0; at < rows * (width + gap); ++at) {
    if (at % (width + gap) >= width) values[static_cast<size_t>(at)] = kNaN;
  }
  return values;
}

class LinearInputs {
 public:
  LinearInputs(const LinearCase& which, uint64_t seed) : c_(which) {
    Random random(seed);
    x_ = rows_with_gaps(random, c_.rows, c_.in, c_.x_gap);
    const Dims strides{c_.in + c_.weight_gap, 1};
    std::vector<float> weights = rows_with_gaps(random, c_.out, c_.in, c_.weight_gap);
    if (c_.precision == Precision::kBf16) {
      for (std::vector<float>* const values : {&x_, &weights}) {
        for (float& value : *values) value = rules::to_float(rules::to_bfloat16(value));
      }
    }
    weight_ = stored(kept_, weights, c_.type, {c_.out, c_.in}, strides);
    bias_ = random.floats(c_.out);
  }

  float& x(int64_t row, int64_t k) { return x_[static_cast<size_t>(row * (c_.in + c_.x_gap) + k)]; }
  float weight(int64_t column, int64_t k) const {
    return testing::element(weight_, column * (c_.in + c_.weight_gap) + k);
  }
  float& bias(int64_t column) { return bias_[static_cast<size_t>(column)]; }
  ConstAnyTensor weight() const { return weight_; }

  // Returns y including its gaps, which must not be written.
  std::vector<float> run(Context& context) const {
    std::vector<float> y(static_cast<size_t>(c_.rows * (c_.out + c_.y_gap)), kUntouched);
    const Status status =
        linear({x_.data(), {c_.rows, c_.in}, {c_.in + c_.x_gap, 1}}, weight_,
               c_.with_bias ? ConstTensor(bias_.data(), {c_.out}) : ConstTensor(),
               {y.data(), {c_.rows, c_.out}, {c_.out + c_.y_gap, 1}}, context, c_.precision);
    EXPECT_TRUE(status.ok()) << status.message();
    return y;
  }

  void expect_product(const std::vector<float>& y) {
    Matrix xs(c_.rows, c_.in), ws(c_.out, c_.in);
    for (int64_t r = 0; r < c_.rows; ++r) {
      for (int64_t k = 0; k < c_.in; ++k) xs(r, k) = static_cast<double>(x(r, k));
    }
    for (int64_t o = 0; o < c_.out; ++o) {
      for (int64_t k = 0; k < c_.in; ++k) ws(o, k) = static_cast<double>(weight(o, k));
    }
    const Matrix product = xs * ws.transpose();
    // Each term is rounded once, and each partial sum is at most the sum of magnitudes.
    const Matrix magnitude = xs.cwiseAbs() * ws.transpose().cwiseAbs();
    constexpr double kUnit = 1.0 / (1 << 24);
    for (int64_t r = 0; r < c_.rows; ++r) {
      for (int64_t o = 0; o < c_.out + c_.y_gap; ++o) {
        const float got = y[static_cast<size_t>(r * (c_.out + c_.y_gap) + o)];
        if (o >= c_.out) {
          ASSERT_EQ(got, kUntouched) << "written past row " << r;
          continue;
        }
        const double added = c_.with_bias ? static_cast<double>(bias(o)) : 0.0;
        const double bound =
            2 * kUnit * (static_cast<double>(c_.in) + 2) * (magnitude(r, o) + std::abs(added));
        ASSERT_NEAR(got, product(r, o) + added, bound) << "row " << r << ", column " << o;
      }
    }
  }

 private:
  LinearCase c_;
  testing::RandomCase kept_;
  std::vector<float> x_, bias_;
  ConstAnyTensor weight_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  const auto bits = [](float value) { return std::bit_cast<uint32_t>(value); };
  return std::ranges::equal(a, b, {}, bits, bits);
}

class LinearOnTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  void expect_right(const LinearCase& which, uint64_t seed) {
    SCOPED_TRACE(which.description(seed));
    LinearInputs inputs(which, seed);
    const std::vector<float> y = inputs.run(one_);
    inputs.expect_product(y);
    EXPECT_TRUE(same_bits(y, inputs.run(more_))) << "other bits with more threads";
  }

  testing::UseSimdTarget use_{GetParam()};
  Context one_{1};
  Context more_{3};  // a build without threads uses 1
};

TEST_P(LinearOnTarget, EqualsProductInDouble) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    Random random(seed);
    const LinearCase which{.rows = random.integer(0, random.chance(0.5) ? 9 : 70),
                           .in = random.integer(0, 70),
                           .out = random.integer(0, random.chance(0.5) ? 70 : 150),
                           .x_gap = random.integer(0, 3),
                           .weight_gap = random.integer(0, 3),
                           .y_gap = random.integer(0, 3),
                           .with_bias = random.chance(0.5),
                           .type = random.pick({DType::kF32, DType::kF16, DType::kBF16})};
    expect_right(which, seed);
    if (HasFatalFailure()) return;
  }
}

// Products of bf16 are exact, so inputs that are representable in bf16 give f32's precision.
TEST_P(LinearOnTarget, EqualsProductInDoubleWithTiles) {
  const testing::UseTileModel model;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    const LinearCase which{.rows = random.integer(1, 200),
                           .in = random.integer(0, 80),
                           .out = random.integer(0, 90),
                           .x_gap = random.integer(0, 3),
                           .weight_gap = random.integer(0, 3),
                           .y_gap = random.integer(0, 3),
                           .with_bias = random.chance(0.5),
                           .type = random.pick({DType::kF32, DType::kF16, DType::kBF16}),
                           .precision = Precision::kBf16};
    expect_right(which, seed);
    if (HasFatalFailure()) return;
  }
  expect_right({.rows = 300, .in = 70, .out = 600, .precision = Precision::kBf16}, 1);
  EXPECT_EQ(model.products() > 0, cpu::target_traits().bf16_tiles);
}

TEST_P(LinearOnTarget, SaysWhetherAmxMultiplied) {
  const auto kernel_of = [&](int64_t rows, Precision precision, DType type = DType::kF32) {
    const LinearInputs inputs(
        {.rows = rows, .in = 8, .out = 8, .type = type, .precision = precision}, 1);
    inputs.run(one_);
    return one_.last_linear_kernel();
  };
  EXPECT_EQ(one_.last_linear_kernel(), "");
  EXPECT_EQ(kernel_of(64, Precision::kF32), "products of f32; not AMX, since precision is f32");
  EXPECT_EQ(kernel_of(32, Precision::kBf16), "products of f32; not AMX, since it has too few rows");
  EXPECT_EQ(kernel_of(64, Precision::kBf16, DType::kF16),
            "products of f32; not AMX, since the weight is neither f32 nor bf16");
  const bool has_kernel = cpu::target_traits().bf16_tiles;
  const testing::UseTileModel model;
  EXPECT_EQ(kernel_of(64, Precision::kBf16),
            has_kernel
                ? "products of bf16 on AMX"
                : "products of f32; not AMX, since this processor has no instruction for it");
}

// More than one block of rows, of depth and of columns, and several panels of depth.
TEST_P(LinearOnTarget, EqualsProductInDoubleBeyondBlocks) {
  expect_right({.rows = 300, .in = 530, .out = 70, .x_gap = 1, .y_gap = 2}, 1);
  expect_right({.rows = 101, .in = 1537, .out = 33, .type = DType::kF16}, 2);
  expect_right({.rows = 50, .in = 3100, .out = 130, .with_bias = false}, 3);
  expect_right({.rows = 7, .in = 1537, .out = 200, .y_gap = 1, .type = DType::kBF16}, 4);
  expect_right({.rows = 1, .in = 768, .out = 257}, 5);
}

// With up to 128 rows, the rows of x are in the lanes and large weights are read in place.
TEST_P(LinearOnTarget, RowsInLanesHaveTheBitsOfPackedWeights) {
  expect_right({.rows = 40, .in = 321, .out = 331, .x_gap = 1, .y_gap = 2}, 1);
  const int64_t in = 417, out = 601, most = 129;
  Random random(2);
  const std::vector<float> x = random.floats(most * in), weight = random.floats(out * in);
  const std::vector<float> bias = random.floats(out);
  const auto y_of = [&](int64_t rows, Context& context) {
    std::vector<float> y(static_cast<size_t>(rows * out));
    EXPECT_TRUE(linear({x.data(), {rows, in}}, ConstTensor(weight.data(), {out, in}),
                       ConstTensor(bias.data(), {out}), {y.data(), {rows, out}}, context)
                    .ok());
    return y;
  };
  const std::vector<float> packed = y_of(most, one_);
  for (const int64_t rows : {32, 40, 48, 57, 64, 91, 128}) {
    for (Context* const context : {&one_, &more_}) {
      const std::vector<float> y = y_of(rows, *context);
      EXPECT_TRUE(same_bits(y, {packed.begin(), packed.begin() + rows * out})) << rows << " rows";
    }
  }
}

// NaN and infinity change only their own row of y.
TEST_P(LinearOnTarget, NonFiniteNumbersStayInTheirRow) {
  for (const int64_t rows : {3, 6, 41}) {
    SCOPED_TRACE("rows " + std::to_string(rows));
    LinearInputs inputs({.rows = rows, .in = 37, .out = 75}, 1);
    const std::vector<float> before = inputs.run(one_);
    inputs.x(0, 36) = kNaN;
    inputs.x(2, 0) = std::numeric_limits<float>::infinity();
    inputs.bias(74) = -std::numeric_limits<float>::infinity();
    const std::vector<float> y = inputs.run(one_);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t o = 0; o < 75; ++o) {
        const float got = y[static_cast<size_t>(r * 75 + o)];
        if (r == 0) {
          EXPECT_TRUE(std::isnan(got));
        } else if (r == 2 && o == 74) {
          EXPECT_EQ(std::isnan(got), inputs.weight(o, 0) > 0);
        } else if (r == 2) {
          EXPECT_EQ(got,
                    std::copysign(std::numeric_limits<float>::infinity(), inputs.weight(o, 0)));
        } else if (o == 74) {
          EXPECT_EQ(got, -std::numeric_limits<float>::infinity());
        } else {
          EXPECT_EQ(got, before[static_cast<size_t>(r * 75 + o)]);
        }
      }
    }
  }
}

TEST_P(LinearOnTarget, AllocatesNothingOnceItsScratchIsThere) {
  const LinearInputs inputs({.rows = 64, .in = 64, .out = 64}, 1);
  std::vector<float> x(64 * 64, 1.0F), y(64 * 64);
  const auto call = [&] {
    return linear({x.data(), {64, 64}}, inputs.weight(), {}, {y.data(), {64, 64}}, one_).ok();
  };
  ASSERT_TRUE(call());
  const int64_t before = testing::allocations();
  EXPECT_TRUE(call());
  EXPECT_EQ(testing::allocations(), before);
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, LinearOnTarget, ::testing::ValuesIn(testing::simd_targets()),
                         [](const auto& param) { return testing::simd_target_name(param.param); });

TEST_P(LinearOnTarget, SameBitsOnAnyNumberOfThreads) {
  Random random(5);
  for (const int64_t rows : {1, 3, 40, 300}) {
    const int64_t out = 300, in = 257;
    const std::vector<float> x = random.floats(rows * in), weight = random.floats(out * in);
    std::vector<std::vector<float>> y;
    for (const int threads : {1, 2, 5}) {
      Context context(threads);
      y.emplace_back(static_cast<size_t>(rows * out));
      ASSERT_TRUE(linear({x.data(), {rows, in}}, ConstTensor(weight.data(), {out, in}), {},
                         {y.back().data(), {rows, out}}, context)
                      .ok());
      ASSERT_EQ(y.back(), y.front()) << rows << " rows, " << threads << " threads";
    }
  }
}

// Depth 0 with gaps between rows: no address may be computed from null pointers.
TEST(Linear, AddsNothingToTheBias) {
  const std::vector<float> bias{1.0F, 2.0F, 3.0F};
  std::vector<float> y(2 * 3);
  Context context(1);
  const Status status = linear({nullptr, {2, 0}, {4, 1}}, ConstTensor(nullptr, {3, 0}, {2, 1}),
                               {bias.data(), {3}}, {y.data(), {2, 3}}, context);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(y, (std::vector<float>{1.0F, 2.0F, 3.0F, 1.0F, 2.0F, 3.0F}));
}

TEST(Linear, RefusesShapesThatDoNotFit) {
  std::vector<float> data(100), results(100);
  Context context(1);
  const auto call = [&](const Dims& x, const Dims& weight, const Dims& bias, const Dims& y) {
    return linear({data.data(), x}, {data.data(), weight},
                  bias.rank() == 0 ? ConstTensor() : ConstTensor(data.data(), bias),
                  {results.data(), y}, context)
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
