#include "multihead/head_statistics.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace multihead {
namespace {

// Heads with one pure pattern each, on six tokens. The last three tokens repeat the first three.
TEST(HeadStatistics, TellsPatternsApart) {
  constexpr size_t kTokens = 6;
  const std::vector<int32_t> tokens{4, 7, 9, 4, 7, 9};
  enum : size_t { kPrevious, kFirst, kUniform, kInduction, kHeads };
  std::vector<float> weights(kHeads * kTokens * kTokens);
  const auto at = [&](size_t head, size_t i, size_t j) -> float& {
    return weights[(head * kTokens + i) * kTokens + j];
  };
  for (size_t i = 0; i < kTokens; ++i) {
    at(kPrevious, i, i == 0 ? 0 : i - 1) = 1.0F;
    at(kFirst, i, 0) = 1.0F;
    for (size_t j = 0; j <= i; ++j) at(kUniform, i, j) = 1.0F / static_cast<float>(i + 1);
    at(kInduction, i, i < 3 ? i : i - 2) = 1.0F;
  }
  std::array<float, kHeads> entropy{}, previous{}, first{}, induction{};
  const Status status = head_statistics({weights.data(), {1, kHeads, kTokens, kTokens}}, tokens,
                                        {.entropy = entropy,
                                         .previous_token = previous,
                                         .first_token = first,
                                         .induction = induction});
  ASSERT_TRUE(status.ok()) << status.message();
  double uniform_entropy = 0, harmonic = 0;
  for (int n = 1; n <= 6; ++n) uniform_entropy += std::log(n) / 6;
  for (int n = 2; n <= 6; ++n) harmonic += 1.0 / n / 5;
  EXPECT_EQ(entropy[kPrevious], 0.0F);
  EXPECT_NEAR(entropy[kUniform], uniform_entropy, 1e-6);
  EXPECT_EQ(previous[kPrevious], 1.0F);
  // Five queries have a previous token. Only for the query at position 1 is this token 0.
  EXPECT_FLOAT_EQ(previous[kFirst], 0.2F);
  EXPECT_NEAR(previous[kUniform], harmonic, 1e-6);
  EXPECT_EQ(first[kFirst], 1.0F);
  EXPECT_FLOAT_EQ(first[kPrevious], 0.2F);
  EXPECT_EQ(induction[kInduction], 1.0F);
  EXPECT_EQ(induction[kFirst], 0.0F);
  EXPECT_NEAR(induction[kUniform], (1.0 / 4 + 1.0 / 5 + 1.0 / 6) / 3, 1e-6);
}

// With only the newest queries, as in a step, positions count from the end.
TEST(HeadStatistics, QueriesAreTheNewestTokens) {
  const std::vector<float> weights{0.1F, 0.2F, 0.7F, 0.0F, 0.4F, 0.3F, 0.2F, 0.1F};
  std::array<float, 1> previous{}, first{};
  ASSERT_TRUE(head_statistics({weights.data(), {1, 1, 2, 4}}, {},
                              {.previous_token = previous, .first_token = first})
                  .ok());
  EXPECT_FLOAT_EQ(previous[0], (0.2F + 0.2F) / 2);
  EXPECT_FLOAT_EQ(first[0], (0.1F + 0.4F) / 2);
}

TEST(HeadStatistics, RefusesWhatDoesNotFit) {
  const std::vector<float> weights(32);
  const std::vector<int32_t> tokens(4);
  std::array<float, 2> two{42.0F, 42.0F};
  std::array<float, 3> three{};
  const auto argument = [&](const Dims& shape, std::span<const int32_t> given,
                            const HeadStatistics& statistics) {
    return head_statistics({weights.data(), shape}, given, statistics).argument();
  };
  EXPECT_EQ(argument({2, 4, 4}, tokens, {.entropy = two}), "weights");
  EXPECT_EQ(argument({1, 2, 4, 3}, {}, {.entropy = two}), "weights");
  EXPECT_EQ(argument({1, 2, 4, 4}, {}, {.entropy = three}), "entropy");
  EXPECT_EQ(argument({1, 2, 4, 4}, {}, {.induction = two}), "tokens");
  EXPECT_EQ(argument({2, 2, 2, 4}, tokens, {.induction = two}), "tokens");
  EXPECT_EQ(two[0], 42.0F);
  EXPECT_EQ(argument({1, 2, 4, 4}, tokens, {.induction = two}), "");
}

}  // namespace
}  // namespace multihead
