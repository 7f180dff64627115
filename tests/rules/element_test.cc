#include "rules/element.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "support/special_values.h"

namespace multihead::rules {
namespace {

// Returns the value of `bits` by the definition of a format with `fraction` fraction bits and
// `bias`.
double value_of(uint32_t bits, int fraction, int bias) {
  const int exponent = static_cast<int>((bits & 0x7FFFU) >> static_cast<unsigned>(fraction));
  const double mantissa = bits & ((1U << static_cast<unsigned>(fraction)) - 1U);
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, 1 - bias - fraction)
                    : std::ldexp(mantissa + std::ldexp(1.0, fraction), exponent - bias - fraction);
  return (bits & 0x8000U) != 0 ? -magnitude : magnitude;
}

bool is_nan(uint32_t bits, uint32_t infinity) { return (bits & 0x7FFFU) > infinity; }

TEST(Half, EveryFloat16GoesToFloatAndBack) {
  for (uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const Float16 half{static_cast<uint16_t>(bits)};
    const float value = to_float(half);
    if (is_nan(bits, 0x7C00U)) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(is_nan(to_float16(value).bits, 0x7C00U));
      continue;
    }
    if ((bits & 0x7FFFU) < 0x7C00U) {
      ASSERT_EQ(static_cast<double>(value), value_of(bits, 10, 15));
    }
    ASSERT_EQ(to_float16(value).bits, bits);
  }
}

TEST(Half, EveryBFloat16GoesToFloatAndBack) {
  for (uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const BFloat16 half{static_cast<uint16_t>(bits)};
    const float value = to_float(half);
    if (is_nan(bits, 0x7F80U)) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(is_nan(to_bfloat16(value).bits, 0x7F80U));
      continue;
    }
    if ((bits & 0x7FFFU) < 0x7F80U) {
      ASSERT_EQ(static_cast<double>(value), value_of(bits, 7, 127));
    }
    ASSERT_EQ(to_bfloat16(value).bits, bits);
  }
}

// Between two adjacent halves, numbers below the midpoint round down, numbers above it round up,
// and the midpoint rounds to the even half.
template <class Half, class Round>
void expect_nearest_even(uint16_t largest, Round round) {
  for (uint32_t bits = 0; bits < largest; ++bits) {
    const float low = to_float(Half{static_cast<uint16_t>(bits)});
    const float high = to_float(Half{static_cast<uint16_t>(bits + 1)});
    const float middle = low + (high - low) / 2;
    const uint32_t even = bits + (bits & 1U);
    for (const uint32_t sign : {0U, 0x8000U}) {
      const float s = sign != 0 ? -1.0F : 1.0F;
      ASSERT_EQ(round(s * std::nextafter(middle, 0.0F)).bits, bits | sign);
      ASSERT_EQ(round(s * middle).bits, even | sign);
      ASSERT_EQ(round(s * std::nextafter(middle, kInf)).bits, (bits + 1) | sign);
    }
  }
}

TEST(Half, RoundsToNearestEven) {
  expect_nearest_even<Float16>(0x7BFF, to_float16);
  expect_nearest_even<BFloat16>(0x7F7F, to_bfloat16);
}

TEST(Half, OverflowsToInfinity) {
  // 65504 is the largest binary16 number; the next would be 65536.
  EXPECT_EQ(to_float16(65519.996F).bits, 0x7BFF);
  EXPECT_EQ(to_float16(65520.0F).bits, 0x7C00);
  EXPECT_EQ(to_float16(-1e30F).bits, 0xFC00);
  EXPECT_EQ(to_float16(kInf).bits, 0x7C00);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()).bits, 0x7F80);
  EXPECT_EQ(to_bfloat16(-kInf).bits, 0xFF80);
}

TEST(Half, TinyNumbers) {
  EXPECT_EQ(to_float16(0x1p-24F).bits, 1);
  EXPECT_EQ(to_float16(0x1p-25F).bits, 0);  // half of the smallest number: a tie, rounds to even
  EXPECT_EQ(to_float16(0x1.8p-25F).bits, 1);
  EXPECT_EQ(to_float16(-0x1p-140F).bits, 0x8000);
  EXPECT_EQ(to_bfloat16(0x1p-133F).bits, 1);
  EXPECT_EQ(to_bfloat16(-0.0F).bits, 0x8000);
}

// A signaling NaN with a payload only in the dropped bits stays NaN.
TEST(Half, NaNWithAPayloadBelow) {
  const auto nan = std::bit_cast<float>(0x7F800001U);
  EXPECT_TRUE(is_nan(to_float16(nan).bits, 0x7C00U));
  EXPECT_TRUE(is_nan(to_bfloat16(nan).bits, 0x7F80U));
}

}  // namespace
}  // namespace multihead::rules
