#include "rules/dropout_mask.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace multihead::rules {
namespace {

using Words = std::array<uint32_t, 4>;

// Known-answer tests of the authors' library (Random123, kat_vectors).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  // Digits of pi.
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(DropoutMask, IsTheDocumentedFormula) {
  constexpr uint64_t kSeed = 0x0123456789abcdefU;
  const uint64_t threshold = dropout_threshold(0.3F);
  EXPECT_EQ(threshold,
            static_cast<uint64_t>(std::llround(static_cast<double>(0.3F) * 4294967296.0)));
  for (int64_t j = 0; j < 23; ++j) {
    const Words words =
        philox4x32({static_cast<uint32_t>(j / 4), 7, 5, 3}, {0x89abcdef, 0x01234567});
    const bool kept = words[static_cast<size_t>(j % 4)] >= threshold;
    EXPECT_EQ(dropout_keeps(kSeed, 3, 5, 7, j, threshold), kept);
    EXPECT_EQ(dropout_keeps_four(kSeed, 3, 5, 7, j / 4, threshold)[static_cast<size_t>(j % 4)],
              kept);
  }
}

TEST(DropoutMask, OfRowsOfNumbersIsTheDocumentedFormula) {
  constexpr uint64_t kSeed = 0x0123456789abcdefU;
  constexpr int64_t kRow = int64_t{5} << 32U | 7;
  const uint64_t threshold = dropout_threshold(0.3F);
  for (int64_t column = 0; column < 23; ++column) {
    const Words words = philox4x32({static_cast<uint32_t>(column / 4), 7, 5, 0xffffffff - 3},
                                   {0x89abcdef, 0x01234567});
    EXPECT_EQ(row_dropout_keeps(kSeed, 3, kRow, column, threshold),
              words[static_cast<size_t>(column % 4)] >= threshold);
  }
}

TEST(DropoutMask, ThresholdAtTheEnds) {
  EXPECT_EQ(dropout_threshold(0.0F), 0U);
  EXPECT_EQ(dropout_threshold(0.5F), uint64_t{1} << 31U);
  // With the largest float below 1, some weights are still kept.
  EXPECT_EQ(dropout_threshold(std::nextafter(1.0F, 0.0F)), (uint64_t{1} << 32U) - 256U);
  for (int64_t j = 0; j < 100; ++j) EXPECT_TRUE(dropout_keeps(1, 0, 0, 0, j, 0));
}

// For an n x n square of one head: 1 for kept and 0 for dropped weights, minus the expected mean.
class DropoutStatistics : public ::testing::TestWithParam<float> {
 protected:
  static constexpr int64_t kExtent = 512;

  double probability() const { return static_cast<double>(GetParam()); }
  static std::vector<double> square(float probability, uint64_t seed, int64_t b, int64_t h) {
    const uint64_t threshold = dropout_threshold(probability);
    std::vector<double> values;
    for (int64_t i = 0; i < kExtent; ++i) {
      for (int64_t j = 0; j < kExtent; ++j) {
        const double kept = dropout_keeps(seed, b, h, i, j, threshold) ? 1.0 : 0.0;
        values.push_back(kept - (1.0 - static_cast<double>(probability)));
      }
    }
    return values;
  }
  // Returns five standard deviations of a mean of `count` such values.
  double five_sigma(int64_t count) const {
    return 5 * std::sqrt(probability() * (1 - probability()) / static_cast<double>(count));
  }
};

TEST_P(DropoutStatistics, MeanOfAllOfRowsAndOfColumns) {
  const std::vector<double> values = square(GetParam(), 42, 1, 2);
  double total = 0;
  for (int64_t i = 0; i < kExtent; ++i) {
    double row = 0, column = 0;
    for (int64_t j = 0; j < kExtent; ++j) {
      row += values[static_cast<size_t>(i * kExtent + j)];
      column += values[static_cast<size_t>(j * kExtent + i)];
    }
    EXPECT_LE(std::abs(row) / kExtent, five_sigma(kExtent)) << "row " << i;
    EXPECT_LE(std::abs(column) / kExtent, five_sigma(kExtent)) << "column " << i;
    total += row;
  }
  EXPECT_LE(std::abs(total) / (kExtent * kExtent), five_sigma(kExtent * kExtent));
}

// The mean product of neighbors is 0 along keys, queries, heads, batch entries and seeds.
TEST_P(DropoutStatistics, NeighborsAreIndependent) {
  const std::vector<double> values = square(GetParam(), 42, 1, 2);
  const double variance = probability() * (1 - probability());
  const double bound = 5 * variance / kExtent;
  const auto correlation = [&](const std::vector<double>& other, int64_t shift) {
    double sum = 0;
    const auto count = static_cast<int64_t>(values.size()) - shift;
    for (int64_t at = 0; at < count; ++at) {
      sum += values[static_cast<size_t>(at)] * other[static_cast<size_t>(at + shift)];
    }
    return std::abs(sum) / static_cast<double>(count);
  };
  for (const int64_t shift : {1, 2, 3, 4, 5, 512, 513, 2048}) {
    EXPECT_LE(correlation(values, shift), bound) << "shift " << shift;
  }
  EXPECT_LE(correlation(square(GetParam(), 42, 1, 3), 0), bound);
  EXPECT_LE(correlation(square(GetParam(), 42, 2, 2), 0), bound);
  EXPECT_LE(correlation(square(GetParam(), 42, 2, 1), 0), bound);
  EXPECT_LE(correlation(square(GetParam(), 43, 1, 2), 0), bound);
  EXPECT_LE(correlation(square(GetParam(), 42 + (uint64_t{1} << 32U), 1, 2), 0), bound);
}

INSTANTIATE_TEST_SUITE_P(Probabilities, DropoutStatistics, ::testing::Values(0.1F, 0.5F, 0.9F));

}  // namespace
}  // namespace multihead::rules
