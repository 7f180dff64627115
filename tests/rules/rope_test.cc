#include "rules/rope.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace multihead::rules {
namespace {

// With base 100 and 4 elements, pair 0 rotates by the position, pair 1 by a tenth of it.
TEST(Rope, Angles) {
  std::array<double, 2> cos{}, sin{};
  fill_angles(3, 100.0, 4, cos.data(), sin.data());
  EXPECT_DOUBLE_EQ(cos[0], std::cos(3.0));
  EXPECT_DOUBLE_EQ(sin[0], std::sin(3.0));
  EXPECT_DOUBLE_EQ(cos[1], std::cos(0.3));
  EXPECT_DOUBLE_EQ(sin[1], std::sin(0.3));
}

// The first pair rotates by 90 degrees, from (x, y) to (-y, x); the second by 180, to (-x, -y).
TEST(Rope, PairsOfBothStyles) {
  const std::array<double, 2> cos{0, -1}, sin{1, 0};
  const std::array<double, 6> in{1, 2, 3, 4, 5, 6};
  using Row = std::array<double, 6>;
  Row out{};
  rotate_vector(in.data(), out.data(), 6, 4, Rope::Style::kInterleaved, cos.data(), sin.data());
  EXPECT_EQ(out, (Row{-2, 1, -3, -4, 5, 6}));
  rotate_vector(in.data(), out.data(), 6, 4, Rope::Style::kHalf, cos.data(), sin.data());
  EXPECT_EQ(out, (Row{-3, -2, 1, -4, 5, 6}));
  rotate_vector(in.data(), out.data(), 6, 4, Rope::Style::kNone, cos.data(), sin.data());
  EXPECT_EQ(out, in);
  // In place.
  rotate_vector(out.data(), out.data(), 6, 4, Rope::Style::kHalf, cos.data(), sin.data());
  EXPECT_EQ(out, (Row{-3, -2, 1, -4, 5, 6}));
}

// The purpose of RoPE: the product of two rotated vectors depends only on their distance.
TEST(Rope, ProductsDependOnTheDistance) {
  constexpr int64_t kWidth = 8;
  const std::vector<double> q{0.3, -0.2, 0.9, 0.1, -0.5, 0.7, 0.4, -0.6};
  const std::vector<double> k{-0.1, 0.8, 0.2, -0.4, 0.6, 0.5, -0.9, 0.3};
  for (const Rope::Style style : {Rope::Style::kInterleaved, Rope::Style::kHalf}) {
    const auto rotated = [&](const std::vector<double>& x, int64_t position) {
      std::array<double, kWidth / 2> cos{}, sin{};
      fill_angles(position, 10000.0, kWidth, cos.data(), sin.data());
      std::vector<double> y(x.size());
      rotate_vector(x.data(), y.data(), kWidth, kWidth, style, cos.data(), sin.data());
      return y;
    };
    const auto product = [&](int64_t i, int64_t j) {
      const std::vector<double> a = rotated(q, i), b = rotated(k, j);
      return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
    };
    EXPECT_NEAR(product(7, 3), product(104, 100), 1e-12);
    EXPECT_NEAR(product(0, 5), product(-5, 0), 1e-12);
    EXPECT_GT(std::abs(product(7, 3) - product(7, 2)), 1e-3);
  }
}

// A float angle would lose digits at far positions. The tables round only the sine and cosine.
TEST(Rope, FarPositionsKeepTheirAngle) {
  std::array<float, 1> cos{}, sin{};
  fill_angles(16777217, 10000.0, 2, cos.data(), sin.data());
  EXPECT_EQ(cos[0], static_cast<float>(std::cos(16777217.0)));
  EXPECT_EQ(sin[0], static_cast<float>(std::sin(16777217.0)));
}

}  // namespace
}  // namespace multihead::rules
