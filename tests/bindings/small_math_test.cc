#include "../../bindings/small_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace multihead::bindings {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The distance in units in the last place of two numbers of the same sign.
int64_t ulps(double a, double b) {
  return std::abs(std::bit_cast<int64_t>(a) - std::bit_cast<int64_t>(b));
}

TEST(SmallMath, ExpIsWithinTwoUlps) {
  std::mt19937_64 random(1);
  for (const double range : {1e-8, 0.3, 1.0, 30.0, 700.0}) {
    std::uniform_real_distribution<double> numbers(-range, range);
    for (int i = 0; i < 20000; ++i) {
      const double x = numbers(random);
      EXPECT_LE(ulps(small_exp(x), std::exp(x)), 2) << x;
      EXPECT_LE(ulps(small_exp2(x), std::exp2(x)), 2) << x;
    }
  }
}

TEST(SmallMath, ExpAtItsLimits) {
  EXPECT_EQ(small_exp(0), 1);
  EXPECT_EQ(small_exp(kInfinity), kInfinity);
  EXPECT_EQ(small_exp(-kInfinity), 0);
  EXPECT_TRUE(std::isnan(small_exp(kNaN)));
  EXPECT_LE(ulps(small_exp(709.78), std::exp(709.78)), 2);
  EXPECT_EQ(small_exp(709.79), kInfinity);
  for (const double x : {-708.0, -720.0, -740.0, -745.0, -745.1, -746.0}) {
    EXPECT_LE(ulps(small_exp(x), std::exp(x)), 1) << x;
  }
  for (int exponent = -1080; exponent <= 1023; ++exponent) {
    EXPECT_EQ(small_exp2(exponent), std::exp2(exponent)) << exponent;
  }
  EXPECT_EQ(small_exp2(1024), kInfinity);
  EXPECT_EQ(small_exp2(-kInfinity), 0);
  EXPECT_TRUE(std::isnan(small_exp2(kNaN)));
}

TEST(SmallMath, LogIsWithinTwoUlps) {
  std::mt19937_64 random(2);
  for (const double range : {1e-9, 1e-3, 0.5, 1.0, 50.0, 700.0}) {
    std::uniform_real_distribution<double> numbers(-range, range);
    for (int i = 0; i < 20000; ++i) {
      const double x = std::exp(numbers(random));
      EXPECT_LE(ulps(small_log(x), std::log(x)), 2) << x;
    }
  }
  for (const double x :
       {5e-324, 1e-310, std::numeric_limits<double>::min(), std::numeric_limits<double>::max(),
        0.70710678118654752, 1.4142135623730951, 1.4142135623730949}) {
    EXPECT_LE(ulps(small_log(x), std::log(x)), 2) << x;
  }
}

TEST(SmallMath, LogAtItsLimits) {
  EXPECT_EQ(small_log(1), 0);
  EXPECT_EQ(small_log(0), -kInfinity);
  EXPECT_EQ(small_log(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(small_log(-1)));
  EXPECT_TRUE(std::isnan(small_log(kNaN)));
}

// The frequencies of RoPE, for any valid base.
TEST(SmallMath, PowersOfPositiveBases) {
  EXPECT_EQ(small_pow(10000, 0), 1);
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> numbers(0, 1);
  for (const double base : {1e-30, 0.5, 1.0, 2.0, 10000.0, 500000.0, 1e30}) {
    for (int i = 0; i < 1000; ++i) {
      const double y = -numbers(random), wanted = std::pow(base, y);
      EXPECT_NEAR(small_pow(base, y) / wanted, 1.0, 3e-14) << base << "^" << y;
      if (base >= 0.5 && base <= 500000) {
        EXPECT_NEAR(small_pow(base, y) / wanted, 1.0, 4e-15) << base << "^" << y;
      }
    }
  }
}

TEST(SmallMath, SineAndCosineOfAnyAngle) {
  std::mt19937_64 random(4);
  for (const double range : {1e-9, 0.5, 1.0, 10.0, 1e6, 1e9, 1e15, 1e22, 1e100, 1e300}) {
    std::uniform_real_distribution<double> numbers(-range, range);
    for (int i = 0; i < 5000; ++i) {
      const double x = numbers(random);
      EXPECT_NEAR(small_sin(x), std::sin(x), 4e-16) << x;
      EXPECT_NEAR(small_cos(x), std::cos(x), 4e-16) << x;
    }
  }
  // Multiples of pi / 2 as doubles, for which the reduced argument is smallest.
  for (int n = 1; n < 2000; ++n) {
    const double x = n * 1.5707963267948966;
    EXPECT_LE(std::min(ulps(small_sin(x), std::sin(x)), ulps(small_cos(x), std::cos(x))), 4) << x;
    EXPECT_NEAR(small_sin(x), std::sin(x), 4e-16) << x;
    EXPECT_NEAR(small_cos(x), std::cos(x), 4e-16) << x;
  }
  constexpr double kMost = std::numeric_limits<double>::max();
  EXPECT_NEAR(small_sin(kMost), std::sin(kMost), 4e-16);
  EXPECT_NEAR(small_cos(-kMost), std::cos(kMost), 4e-16);
  EXPECT_EQ(small_sin(0), 0);
  EXPECT_EQ(small_cos(0), 1);
  EXPECT_TRUE(std::isnan(small_sin(kInfinity)));
  EXPECT_TRUE(std::isnan(small_cos(kNaN)));
}

}  // namespace
}  // namespace multihead::bindings
