#include "rules/visibility.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace multihead::rules {
namespace {

std::string pattern(const Causal& causal, int64_t queries, int64_t keys) {
  const Visibility rule = make_visibility(causal, queries, keys);
  std::string text;
  for (int64_t i = 0; i < queries; ++i) {
    if (i > 0) text += " / ";
    for (int64_t j = 0; j < keys; ++j) text += rule.of_query(i).contains(j) ? '1' : '0';
  }
  return text;
}

// The examples of the semantics: two queries on five keys, five on two.
TEST(Visibility, NamedAlignments) {
  EXPECT_EQ(pattern(Causal::none(), 2, 5), "11111 / 11111");
  EXPECT_EQ(pattern(Causal::top_left(), 2, 5), "10000 / 11000");
  EXPECT_EQ(pattern(Causal::bottom_right(), 2, 5), "11110 / 11111");
  EXPECT_EQ(pattern(Causal::bottom_right(), 5, 2), "00 / 00 / 00 / 10 / 11");
  EXPECT_EQ(pattern(Causal::at_offset(2), 2, 5), "11100 / 11110");
  EXPECT_EQ(pattern(Causal::at_offset(-1), 3, 3), "000 / 100 / 110");
}

TEST(Visibility, ExtremeOffsetsDoNotOverflow) {
  EXPECT_EQ(pattern(Causal::at_offset(std::numeric_limits<int64_t>::max()), 2, 3), "111 / 111");
  EXPECT_EQ(pattern(Causal::at_offset(std::numeric_limits<int64_t>::min()), 2, 3), "000 / 000");
}

}  // namespace
}  // namespace multihead::rules
