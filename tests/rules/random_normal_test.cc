#include "rules/random_normal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace multihead::rules {
namespace {

std::vector<float> normal(uint64_t seed, uint64_t stream, int64_t count, double deviation = 1.0) {
  std::vector<float> values(static_cast<size_t>(count));
  NormalStream(seed, stream).fill(deviation, values.data(), count);
  return values;
}

// FNV-1a hash of the bits.
uint64_t hash(const std::vector<float>& values) {
  uint64_t result = 0xcbf29ce484222325U;
  for (const float value : values) {
    result = (result ^ std::bit_cast<uint32_t>(value)) * 0x100000001b3U;
  }
  return result;
}

// Every build must give these numbers: native with or without fused multiply-add, and WebAssembly.
// A transcription of the formulas into Python gives them, too.
TEST(RandomNormal, TheSameBitsEverywhere) {
  const std::vector<float> values = normal(1, 0, 4);
  EXPECT_EQ(values, (std::vector<float>{-1.3005152F, 1.0789089F, -0.71093768F, -1.8679518F}));
  EXPECT_EQ(hash(normal(1, 0, 100000)), 0x3b5998f8568859b5U);
  EXPECT_EQ(hash(normal(0x0123456789abcdefU, uint64_t{1} << 40U | 7, 100000, 0.02)),
            0xa17a8a02d3fd8bebU);
}

TEST(RandomNormal, AnyPartOfAStream) {
  const std::vector<float> all = normal(5, 2, 50);
  NormalStream numbers(5, 2);
  std::vector<float> taken(50);
  size_t at = 0;
  for (const int64_t count : {1, 0, 2, 3, 1, 1, 6, 5, 7, 0, 4, 20}) {
    if (at % 2 == 0) {
      numbers.fill(1.0, taken.data() + at, count);
    } else {
      numbers.skip(count);
      std::copy_n(all.data() + at, count, taken.data() + at);
    }
    at += static_cast<size_t>(count);
  }
  EXPECT_EQ(at, all.size());
  EXPECT_EQ(taken, all);
}

TEST(RandomNormal, MomentsAndTails) {
  constexpr int64_t kCount = 200000;
  const double count = static_cast<double>(kCount);
  double moments[5] = {};
  int64_t beyond2 = 0, beyond3 = 0;
  for (const float value : normal(7, 3, kCount, 2.0)) {
    const double x = static_cast<double>(value) / 2.0;
    for (int power = 1; power <= 4; ++power) moments[power] += std::pow(x, power) / count;
    beyond2 += std::abs(x) > 2.0 ? 1 : 0;
    beyond3 += std::abs(x) > 3.0 ? 1 : 0;
  }
  // Each tolerance is five standard deviations.
  const double unit = 5.0 / std::sqrt(count);
  EXPECT_NEAR(moments[1], 0.0, unit);
  EXPECT_NEAR(moments[2], 1.0, unit * std::sqrt(2.0));
  EXPECT_NEAR(moments[3], 0.0, unit * std::sqrt(15.0));
  EXPECT_NEAR(moments[4], 3.0, unit * std::sqrt(96.0));
  EXPECT_NEAR(static_cast<double>(beyond2) / count, 0.0455003, unit * 0.21);
  EXPECT_NEAR(static_cast<double>(beyond3) / count, 0.0026998, unit * 0.052);
}

TEST(RandomNormal, StreamsAndSeedsAreIndependentAndPrefixesEqual) {
  constexpr int64_t kCount = 20000;
  const std::vector<float> values = normal(7, 3, kCount);
  const auto correlation = [&](const std::vector<float>& other, size_t shift) {
    double sum = 0;
    for (size_t i = 0; i + shift < values.size(); ++i) {
      sum += static_cast<double>(values[i]) * static_cast<double>(other[i + shift]);
    }
    return std::abs(sum) / static_cast<double>(kCount);
  };
  const double bound = 5.0 / std::sqrt(static_cast<double>(kCount));
  for (const size_t shift : {size_t{1}, size_t{2}, size_t{3}}) {
    EXPECT_LE(correlation(values, shift), bound) << "shift " << shift;
  }
  EXPECT_LE(correlation(normal(8, 3, kCount), 0), bound);
  EXPECT_LE(correlation(normal(7, 4, kCount), 0), bound);
  EXPECT_LE(correlation(normal(7, 3 + (uint64_t{1} << 32U), kCount), 0), bound);
  for (const int64_t count : {0, 1, 2, 7}) {
    const std::vector<float> prefix = normal(7, 3, count);
    EXPECT_TRUE(std::equal(prefix.begin(), prefix.end(), values.begin()));
  }
}

}  // namespace
}  // namespace multihead::rules
