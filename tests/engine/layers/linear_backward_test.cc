// linear_backward() compared with products in double, on every SIMD target of the machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cpu/target.h"
#include "engine/layers/gradients.h"
#include "rules/element.h"
#include "support/random_case.h"
#include "support/simd_targets.h"
#include "support/tile_model.h"

namespace multihead::engine {
namespace {

using testing::Random;

constexpr float kGap = 1e30F;  // stored in gaps between rows: shows in a sum if read, and must stay

struct Rows {
  int64_t rows, width, stride;
  std::vector<float> data;

  Rows(Random& random, int64_t rows_, int64_t width_, int64_t gap)
      : rows(rows_), width(width_), stride(width_ + gap), data(random.floats(rows_ * stride)) {
    for (int64_t at = 0; at < rows * stride; ++at) {
      if (at % stride >= width) data[static_cast<size_t>(at)] = kGap;
    }
  }
  double at(int64_t row, int64_t column) const {
    return static_cast<double>(data[static_cast<size_t>(row * stride + column)]);
  }
  ConstTensor read() const { return {data.data(), {rows, width}, {stride, 1}}; }
  Tensor write() { return {data.data(), {rows, width}, {stride, 1}}; }
};

// Expects data = start + sum over k < depth of term(row, column, k). Allows float's rounding, and a
// relative error of `of_term` in each term.
template <class Term>
void expect_sums(const Rows& got, const Rows& start, bool adds, int64_t depth, double of_term,
                 const Term& term) {
  constexpr double kUnit = 1.0 / (1 << 24);
  for (int64_t row = 0; row < got.rows; ++row) {
    for (int64_t column = 0; column < got.stride; ++column) {
      if (column >= got.width) {
        ASSERT_EQ(got.at(row, column), static_cast<double>(kGap)) << "written past row " << row;
        continue;
      }
      double sum = adds ? start.at(row, column) : 0.0;
      double magnitude = std::abs(sum), terms = 0;
      for (int64_t k = 0; k < depth; ++k) {
        const double product = term(row, column, k);
        sum += product;
        magnitude += std::abs(product);
        terms += std::abs(product);
      }
      // Each term is rounded once, and each partial sum is at most the sum of magnitudes.
      const double bound = 2 * kUnit * (static_cast<double>(std::min<int64_t>(depth, 300)) + 8);
      ASSERT_NEAR(got.at(row, column), sum, bound * magnitude + of_term * terms)
          << row << ", " << column;
    }
  }
}

// Operands of bf16 products.
enum class Operands : uint8_t {
  kRounded,  // representable in bf16: their products are exact
  kFloats,
};

struct Shape {
  int64_t rows, in, out;
  bool adds = false;
  Precision precision = Precision::kF32;
  Operands operands = Operands::kFloats;
};

// Relative error of a product whose factors are both rounded to bf16, each by up to 2^-8.
constexpr double kOfTwoRoundings = 0x1p-7 + 0x1p-16;

class LinearBackwardOnTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  static void expect_right(const Shape& shape, uint64_t seed) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + std::to_string(shape.rows) + " x " +
                 std::to_string(shape.in) + " -> " + std::to_string(shape.out));
    Random random(seed);
    const auto rows = [&](int64_t count, int64_t width) {
      return Rows(random, count, width, random.integer(0, 3));
    };
    Rows x = rows(shape.rows, shape.in), weight = rows(shape.out, shape.in);
    Rows d_y = rows(shape.rows, shape.out);
    const Rows d_x = rows(shape.rows, shape.in);
    if (shape.operands == Operands::kRounded) {
      for (Rows* const operand : {&x, &weight, &d_y}) {
        for (float& value : operand->data) value = rules::to_float(rules::to_bfloat16(value));
      }
    }
    const double of_term =
        shape.precision == Precision::kBf16 && shape.operands == Operands::kFloats ? kOfTwoRoundings
                                                                                   : 0.0;
    const Rows d_weight = rows(shape.out, shape.in);
    Rows d_bias(random, 1, shape.out, 0);
    const bool only_bias = random.chance(0.1), with_bias = only_bias || random.chance(0.6);
    const bool with_x = random.chance(0.8), with_weight = !only_bias && random.chance(0.9);
    std::vector<Rows> results[3];
    for (const int threads : {1, 2, 3}) {
      Context context(threads);
      std::vector<Rows>& result = results[threads - 1];
      result = {d_x, d_weight, d_bias};
      LinearBackward call{.x = x.read(), .weight = weight.read(), .d_y = d_y.read()};
      call.adds_to_d_x = shape.adds;
      call.precision = shape.precision;
      if (with_x) call.d_x = result[0].write();
      if (with_weight) call.d_weight = result[1].write();
      if (with_bias) call.d_bias = result[2].data.data();
      ASSERT_TRUE(linear_backward(call, context).ok());
      for (size_t i = 0; i < result.size(); ++i) {
        const auto bits = [](float value) { return std::bit_cast<uint32_t>(value); };
        EXPECT_TRUE(std::ranges::equal(result[i].data, results[0][i].data, {}, bits, bits))
            << "other bits with " << threads << " threads";
      }
    }
    const std::vector<Rows>& result = results[0];
    if (with_x) {
      expect_sums(result[0], d_x, shape.adds, shape.out, of_term,
                  [&](int64_t r, int64_t i, int64_t o) { return d_y.at(r, o) * weight.at(o, i); });
    }
    if (with_weight) {
      expect_sums(result[1], d_weight, true, shape.rows, of_term,
                  [&](int64_t o, int64_t i, int64_t r) { return d_y.at(r, o) * x.at(r, i); });
    }
    if (with_bias) {
      expect_sums(result[2], d_bias, true, shape.rows, 0.0,
                  [&](int64_t, int64_t o, int64_t r) { return d_y.at(r, o); });
    }
  }

  testing::UseSimdTarget use_{GetParam()};
};

TEST_P(LinearBackwardOnTarget, EqualsProductsInDouble) {
  for (uint64_t seed = 1; seed <= 80; ++seed) {
    Random random(seed);
    expect_right({.rows = random.integer(0, random.chance(0.5) ? 9 : 70),
                  .in = random.integer(random.chance(0.1) ? 0 : 1, 90),
                  .out = random.integer(random.chance(0.1) ? 0 : 1, 90),
                  .adds = random.chance(0.5)},
                 seed);
    if (HasFatalFailure()) return;
  }
}

// Several blocks of rows, columns and depth; several panels of depth; several chunks of rows.
TEST_P(LinearBackwardOnTarget, EqualsProductsInDoubleBeyondBlocks) {
  expect_right({.rows = 300, .in = 130, .out = 70}, 1);
  expect_right({.rows = 40, .in = 33, .out = 1700, .adds = true}, 2);
  expect_right({.rows = 1700, .in = 70, .out = 9}, 3);
  expect_right({.rows = 4100, .in = 20, .out = 7}, 4);
  expect_right({.rows = 2 * 1537 - 1, .in = 3, .out = 5}, 5);  // last chunk: longer depth parts
}

// With the model of AMX, operands representable in bf16 give f32's precision; others add the error
// of rounding to bf16.
TEST_P(LinearBackwardOnTarget, EqualsProductsInDoubleWithTiles) {
  const testing::UseTileModel model;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    expect_right({.rows = random.integer(1, 150),
                  .in = random.integer(random.chance(0.1) ? 0 : 1, 90),
                  .out = random.integer(random.chance(0.1) ? 0 : 1, 90),
                  .adds = random.chance(0.5),
                  .precision = Precision::kBf16,
                  .operands = random.pick({Operands::kRounded, Operands::kFloats})},
                 seed);
    if (HasFatalFailure()) return;
  }
  // Several blocks of rows and columns, several parts of the depth, several chunks of rows.
  for (Shape shape : {Shape{.rows = 300, .in = 530, .out = 70},
                      {.rows = 40, .in = 33, .out = 1700, .adds = true},
                      {.rows = 2300, .in = 40, .out = 9}}) {
    shape.precision = Precision::kBf16;
    shape.operands = Operands::kRounded;
    expect_right(shape, 1);
  }
  EXPECT_EQ(model.products() > 0, cpu::target_traits().bf16_tiles);
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, LinearBackwardOnTarget,
                         ::testing::ValuesIn(testing::simd_targets()),
                         [](const auto& param) { return testing::simd_target_name(param.param); });

// Operands without elements may be null.
TEST(LinearBackward, NothingToAdd) {
  std::vector<float> d_x(6, 1.0F), d_weight(6, 1.0F);
  Context context(1);
  LinearBackward no_outputs{.x = {d_weight.data(), {2, 3}},
                            .weight = {nullptr, {0, 3}, {5, 1}},
                            .d_y = {nullptr, {2, 0}, {5, 1}},
                            .d_x = {d_x.data(), {2, 3}}};
  no_outputs.d_weight = {nullptr, {0, 3}};
  EXPECT_TRUE(linear_backward(no_outputs, context).ok());
  EXPECT_EQ(d_x, std::vector<float>(6, 0.0F));
  LinearBackward no_rows{
      .x = {nullptr, {0, 3}}, .weight = {d_x.data(), {2, 3}}, .d_y = {nullptr, {0, 2}}};
  no_rows.d_x = {nullptr, {0, 3}};
  no_rows.d_weight = {d_weight.data(), {2, 3}};
  EXPECT_TRUE(linear_backward(no_rows, context).ok());
  EXPECT_EQ(d_weight, std::vector<float>(6, 1.0F));
}

}  // namespace
}  // namespace multihead::engine
