// Tests the check of the LSE of attention_backward() on scores that are not finite.
// backward_test.cc tests it with random options.
#include "engine/attention/backward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "multihead/attention.h"
#include "multihead/attention_backward.h"
#include "multihead/context.h"
#include "support/special_values.h"

namespace multihead {
namespace {

constexpr int64_t kQueries = 3, kKeys = 11, kWidth = 70;

// A call whose last query has these keys, and the LSE that attention_backward() is given.
struct LseCall {
  std::vector<float> q = std::vector<float>(kQueries * kWidth, 0.25F);
  std::vector<float> k = std::vector<float>(kKeys * kWidth, 0.5F);
  AttentionOptions options = {};

  // Runs the backward with `lse` for every row.
  Status run(float lse) {
    const Dims q_shape{1, 1, kQueries, kWidth}, k_shape{1, 1, kKeys, kWidth};
    const std::vector<float> rows(kQueries, lse);
    std::vector<float> d_q(q.size());
    const ConstTensor keys(k.data(), k_shape), queries(q.data(), q_shape);
    Context context(1);
    return attention_backward(queries, keys, keys, options,
                              {.out = queries, .lse = {rows.data(), {1, 1, kQueries}}}, queries,
                              {.d_q = {d_q.data(), q_shape}}, context);
  }
  // The LSE of `keys` keys with equal scores.
  static float lse_of(int64_t keys) {
    const double score = 0.25 * 0.5 * kWidth / std::sqrt(static_cast<double>(kWidth));
    return static_cast<float>(score + std::log(static_cast<double>(keys)));
  }
};

TEST(CheckLse, ComparesWithAllKeysThatTheRowSees) {
  LseCall call;
  EXPECT_TRUE(call.run(LseCall::lse_of(kKeys)).ok());
  EXPECT_EQ(call.run(LseCall::lse_of(kKeys) + 0.2F).argument(), "lse");
  EXPECT_EQ(call.run(-HUGE_VALF).argument(), "lse");
  EXPECT_EQ(call.run(kNaN).argument(), "lse");
}

TEST(CheckLse, ReadsNoHiddenKey) {
  LseCall call;
  call.k[4 * kWidth] = call.k[9 * kWidth + 69] = kNaN;
  std::vector<uint8_t> mask(kKeys, 1);
  mask[4] = mask[9] = 0;
  call.options.mask = {mask.data(), {1, kKeys}};
  EXPECT_TRUE(call.run(LseCall::lse_of(kKeys - 2)).ok());
  EXPECT_EQ(call.run(LseCall::lse_of(kKeys) + 0.2F).argument(), "lse");
  call.options.mask = {};
  std::vector<float> bias(kKeys, 0.0F);
  bias[4] = bias[9] = -HUGE_VALF;
  call.options.bias = {bias.data(), {1, kKeys}};
  EXPECT_TRUE(call.run(LseCall::lse_of(kKeys - 2)).ok());
  EXPECT_EQ(call.run(LseCall::lse_of(kKeys) + 0.2F).argument(), "lse");
  call.options.bias = {};
  call.options.causal = Causal::at_offset(1);  // the last query sees keys 0 to 3
  EXPECT_TRUE(call.run(LseCall::lse_of(4)).ok());
  EXPECT_EQ(call.run(LseCall::lse_of(5)).argument(), "lse");
}

// Scores that are NaN or too large for f32 have no LSE to compare with.
TEST(CheckLse, AcceptsAnyLseOfScoresThatAreNotFinite) {
  LseCall nan;
  nan.k[4 * kWidth] = kNaN;
  EXPECT_TRUE(nan.run(7.0F).ok());
  LseCall large;
  large.q.assign(large.q.size(), 1.0F);
  large.k.assign(large.k.size(), 1e38F);
  EXPECT_TRUE(large.run(7.0F).ok());
}

TEST(CheckLse, OfARowThatSeesNothingIsMinusInfinity) {
  LseCall call;
  const std::vector<uint8_t> mask(kKeys, 0);
  call.options.mask = {mask.data(), {1, kKeys}};
  EXPECT_TRUE(call.run(-HUGE_VALF).ok());
  EXPECT_EQ(call.run(0.0F).argument(), "lse");
}

}  // namespace
}  // namespace multihead
