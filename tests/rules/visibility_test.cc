#include "rules/visibility.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace multihead::rules {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

std::string pattern(const AttentionOptions& options, int64_t queries, int64_t keys,
                    int64_t batch = 0) {
  const Visibility rule = make_visibility(options, queries, keys);
  std::string text;
  for (int64_t i = 0; i < queries; ++i) {
    if (i > 0) text += " / ";
    for (int64_t j = 0; j < keys; ++j) text += rule.seen_by(batch, i).contains(j) ? '1' : '0';
  }
  return text;
}

std::string pattern(const Causal& causal, int64_t queries, int64_t keys) {
  return pattern(AttentionOptions{.causal = causal}, queries, keys);
}

// The examples of SEMANTICS.md: two queries on five keys, and five queries on two keys.
TEST(Visibility, NamedAlignments) {
  EXPECT_EQ(pattern(Causal::none(), 2, 5), "11111 / 11111");
  EXPECT_EQ(pattern(Causal::top_left(), 2, 5), "10000 / 11000");
  EXPECT_EQ(pattern(Causal::bottom_right(), 2, 5), "11110 / 11111");
  EXPECT_EQ(pattern(Causal::bottom_right(), 5, 2), "00 / 00 / 00 / 10 / 11");
  EXPECT_EQ(pattern(Causal::at_offset(2), 2, 5), "11100 / 11110");
  EXPECT_EQ(pattern(Causal::at_offset(-1), 3, 3), "000 / 100 / 110");
}

TEST(Visibility, BottomRightOfEachLength) {
  const std::vector<int32_t> lengths{5, 3, 1};
  const AttentionOptions options{.causal = Causal::bottom_right_of_length(), .kv_lengths = lengths};
  EXPECT_EQ(pattern(options, 2, 5, 0), "11110 / 11111");
  EXPECT_EQ(pattern(options, 2, 5, 1), "11000 / 11100");
  EXPECT_EQ(pattern(options, 2, 5, 2), "00000 / 10000");
}

// A window shows `left` keys before the position, the position itself, and `right` keys after it.
TEST(Visibility, Windows) {
  EXPECT_EQ(pattern({.window = {1, 0}}, 4, 4), "1000 / 1100 / 0110 / 0011");
  EXPECT_EQ(pattern({.window = {0, 0}}, 3, 3), "100 / 010 / 001");
  EXPECT_EQ(pattern({.window = {-1, 1}}, 3, 4), "1100 / 1110 / 1111");
  EXPECT_EQ(pattern({.window = {1, -1}}, 3, 4), "1111 / 1111 / 0111");
  EXPECT_EQ(pattern({.window = {0, 1, Alignment::kBottomRight}}, 2, 4), "0011 / 0001");
  EXPECT_EQ(pattern({.window = {0, 1, Alignment::kOffset, -1}}, 3, 3), "100 / 110 / 011");
  // In a causal call the window uses the causal positions.
  EXPECT_EQ(pattern({.causal = Causal::bottom_right(), .window = {1, -1}}, 2, 4), "0110 / 0011");
  EXPECT_EQ(pattern({.causal = Causal::bottom_right(), .window = {1, 5}}, 2, 4), "0110 / 0011");
}

TEST(Visibility, LengthsAndWindowsTogether) {
  const std::vector<int32_t> lengths{2, 0};
  const AttentionOptions options{.window = {1, 1}, .kv_lengths = lengths};
  EXPECT_EQ(pattern(options, 4, 4, 0), "1100 / 1100 / 0100 / 0000");
  EXPECT_EQ(pattern(options, 4, 4, 1), "0000 / 0000 / 0000 / 0000");
}

TEST(Visibility, ExtremeNumbersDoNotOverflow) {
  EXPECT_EQ(pattern(Causal::at_offset(kMax), 2, 3), "111 / 111");
  EXPECT_EQ(pattern(Causal::at_offset(kMin), 2, 3), "000 / 000");
  EXPECT_EQ(pattern({.window = {kMax, kMax}}, 2, 3), "111 / 111");
  EXPECT_EQ(pattern({.window = {0, kMax, Alignment::kOffset, kMin}}, 2, 3).size(), 9U);
  // Sums whose terms are far beyond all keys.
  constexpr int64_t kFar = int64_t{1} << 61;
  EXPECT_EQ(pattern({.window = {-1, kMax, Alignment::kOffset, -2 * kFar}}, 2, 3), "111 / 111");
  EXPECT_EQ(pattern({.causal = Causal::at_offset(2 * kFar), .window = {kFar, -1}}, 2, 3),
            "000 / 000");
  EXPECT_EQ(pattern({.window = {-1, kMax, Alignment::kOffset, kMin}}, 3, 3), "000 / 100 / 110");
  EXPECT_EQ(pattern({.window = {kMax, -1, Alignment::kOffset, kMax}}, 2, 3), "111 / 011");
  EXPECT_EQ(make_visibility({.causal = Causal::at_offset(kMax)}, 2, 3).position(0, 1), kMax);
  // A window almost as wide as its distance from the keys reaches few keys or none.
  EXPECT_EQ(pattern({.window = {-1, 40, Alignment::kOffset, -50}}, 2, 3), "000 / 000");
  EXPECT_EQ(pattern({.window = {48, -1, Alignment::kOffset, 49}}, 2, 3), "011 / 001");
}

TEST(Visibility, Positions) {
  const std::vector<int32_t> lengths{4, 2};
  const auto position = [&](const Causal& causal, int64_t batch) {
    return make_visibility({.causal = causal, .kv_lengths = lengths}, 2, 5).position(batch, 1);
  };
  EXPECT_EQ(position(Causal::none(), 0), 1);
  EXPECT_EQ(position(Causal::top_left(), 0), 1);
  EXPECT_EQ(position(Causal::bottom_right(), 0), 4);
  EXPECT_EQ(position(Causal::bottom_right_of_length(), 0), 3);
  EXPECT_EQ(position(Causal::bottom_right_of_length(), 1), 1);
  EXPECT_EQ(position(Causal::at_offset(1000), 0), 1001);
}

}  // namespace
}  // namespace multihead::rules
