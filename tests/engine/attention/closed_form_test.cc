// Calls whose queries and keys have width 0: against the oracle, and with extents that no loop over
// keys, rows or heads would ever finish, because tensors without elements take no memory.
#include "engine/attention/closed_form.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "engine/attention/plan.h"
#include "multihead/attention.h"
#include "multihead/attention_backward.h"
#include "multihead/context.h"
#include "multihead/prepared_attention.h"
#include "multihead/prepared_attention_backward.h"
#include "reference/reference_attention.h"
#include "support/special_values.h"

namespace multihead {
namespace {

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
constexpr int64_t kMany = int64_t{1}
                          << 20;  // for three axes: a tensor's extents make less than 2^61

ConstTensor none(const Dims& shape) { return {nullptr, shape}; }

void expect_near(const std::string& name, const std::vector<float>& got,
                 const std::vector<double>& expected) {
  ASSERT_EQ(got.size(), expected.size()) << name;
  for (size_t i = 0; i < got.size(); ++i) {
    const auto value = static_cast<double>(got[i]);
    if (std::isnan(expected[i]) && std::isnan(value)) continue;
    if (value == expected[i]) continue;
    EXPECT_NEAR(value, expected[i], 2e-6 * (1 + std::abs(expected[i]))) << name << "[" << i << "]";
  }
}

// Options of a call of (2, 4, 5) rows and (2, 2, 7) keys, one kind after the other.
struct Options {
  std::vector<float> sinks{-30.0F, 0.0F, 2.0F, -1.0F};
  std::vector<float> slopes{0.5F, -0.25F, 0.0F, 1e-9F};
  std::vector<int32_t> lengths{7, 3};
  std::vector<float> row_bias{0.0F, 1.5F, -kInf, kNaN, -80.0F}, bias;
  std::vector<uint8_t> row_mask{1, 0, 1, 1, 1}, mask;

  Options() {
    for (int i = 0; i < 35; ++i) {
      bias.push_back(static_cast<float>(i % 11) / 3.0F);
      mask.push_back(i % 3 == 0 ? 0 : 1);
    }
  }

  // `kind` is read as bits.
  AttentionOptions of(unsigned kind) const {
    AttentionOptions options{.scale = 1.0F};
    if ((kind & 1) != 0) options.causal.alignment = Alignment::kBottomRight;
    if ((kind & 2) != 0) options.sinks = sinks;
    if ((kind & 4) != 0) options.alibi_slopes = slopes;
    if ((kind & 8) != 0) options.kv_lengths = lengths;
    if ((kind & 16) != 0) options.bias = {row_bias.data(), {5, 1}};
    if ((kind & 32) != 0) options.mask = {row_mask.data(), {5, 1}};
    if ((kind & 64) != 0) options.window.left = 2;
    if ((kind & 128) != 0) options.softcap = 3.0F;
    if ((kind & 256) != 0) {
      if (options.bias.given()) options.bias = {bias.data(), {5, 7}};
      if (options.mask.given()) options.mask = {mask.data(), {5, 7}};
    }
    return options;
  }
};

void expect_ok(const Status& status) { ASSERT_TRUE(status.ok()) << status.message(); }

class ClosedForm : public ::testing::Test {
 protected:
  Context context_{2};
};

TEST_F(ClosedForm, LseOfTheOracle) {
  const Options of;
  const ConstTensor q = none({2, 4, 5, 0}), k = none({2, 2, 7, 0});
  for (unsigned kind = 0; kind < 512; ++kind) {
    const AttentionOptions options = of.of(kind);
    std::vector<float> lse(40, kNaN);
    const Status status =
        attention(q, k, k, options,
                  {.out = {nullptr, {2, 4, 5, 0}}, .lse = {lse.data(), {2, 4, 5}}}, context_);
    ASSERT_TRUE(status.ok()) << status.message();
    const bool closed = kind < 256 || (kind & 48) == 0;
    EXPECT_EQ(context_.last_kernel().find("closed form") != std::string::npos, closed) << kind;
    expect_near("lse of " + std::to_string(kind), lse, reference::attention(q, k, k, options).lse);
  }
}

TEST_F(ClosedForm, CapturesOfTheOracle) {
  const Options of;
  const ConstTensor q = none({2, 4, 5, 0}), k = none({2, 2, 7, 0});
  const std::vector<int32_t> heads{3, 0};
  for (unsigned kind = 0; kind < 512; kind += 5) {
    const AttentionOptions options = of.of(kind);
    for (const ScoreStage stage :
         {ScoreStage::kRaw, ScoreStage::kCapped, ScoreStage::kMasked, ScoreStage::kWeights}) {
      std::vector<float> got(size_t{2} * 2 * 3 * 7, kNaN);
      const ScoreCapture capture{
          .stage = stage, .out = {got.data(), {2, 2, 3, 7}}, .heads = heads, .first_row = 1};
      expect_ok(attention_scores(q, k, options, capture, context_));
      const reference::ReferenceOutputs oracle = reference::attention(q, k, k, options, true);
      const std::vector<double>& all =
          stage == ScoreStage::kWeights ? oracle.weights : oracle.stage(stage);
      std::vector<double> expected;
      for (int b = 0; b < 2; ++b) {
        for (const int32_t head : heads) {
          const auto first = all.begin() + ((b * 4 + head) * 5 + 1) * 7;
          expected.insert(expected.end(), first, first + 21);
        }
      }
      for (size_t i = 0; i < got.size(); ++i) {
        // The oracle divides the zeros of hidden keys by a sum that is NaN.
        if (got[i] == 0.0F && std::isnan(expected[i])) expected[i] = 0;
      }
      expect_near(
          "stage " + std::to_string(static_cast<int>(stage)) + " of " + std::to_string(kind), got,
          expected);
    }
  }
}

// From here on a loop over keys, or over rows or heads of which nothing is written, would not end.

TEST_F(ClosedForm, CountsKeysWithoutVisitingThem) {
  const ConstTensor q = none({1, 1, 64, 0}), k = none({1, 1, kMost, 0});
  const AttentionOptions options{.scale = 1.0F};
  std::vector<float> lse(64);
  const AttentionOutputs outputs{.out = {nullptr, {1, 1, 64, 0}}, .lse = {lse.data(), {1, 1, 64}}};
  const auto expect_all = [&](float expected) {
    EXPECT_EQ(lse, std::vector<float>(64, expected));
    std::fill(lse.begin(), lse.end(), kNaN);
  };
  const auto log_of = [](int64_t keys) {
    return static_cast<float>(std::log(static_cast<double>(keys)));
  };
  expect_ok(attention(q, k, k, options, outputs, context_));
  expect_all(log_of(kMost));
  // A mask and a bias that all keys share.
  const uint8_t seen = 1;
  const float bias = 2.5F;
  AttentionOptions shared = options;
  shared.mask = {&seen, {1, 1}};
  shared.bias = {&bias, {1, 1}};
  expect_ok(attention(q, k, k, shared, outputs, context_));
  expect_all(static_cast<float>(2.5 + std::log(static_cast<double>(kMost))));
  // ALiBi: 1 + e^-1 + ... = 1 / (1 - 1/e) for the last query, and nothing ends before the first.
  const float slope = 1.0F;
  AttentionOptions alibi = options;
  alibi.alibi_slopes = {&slope, 1};
  alibi.causal.alignment = Alignment::kBottomRight;
  expect_ok(attention(q, k, k, alibi, outputs, context_));
  for (const float value : lse) EXPECT_NEAR(value, -std::log1p(-std::exp(-1.0F)), 1e-6F);

  PreparedAttention prepared;
  expect_ok(PreparedAttention::create(q, k, k, options, outputs, context_, prepared));
  expect_ok(prepared.run(nullptr, nullptr, nullptr, nullptr, lse.data()));
  expect_all(log_of(kMost));

  const std::vector<int32_t> cu_q{0, 60, 64}, cu_k{0, 1000, static_cast<int32_t>(kMost)};
  expect_ok(attention_varlen(none({64, 1, 0}), none({kMost, 1, 0}), none({kMost, 1, 0}), cu_q, cu_k,
                             options, {.out = {nullptr, {64, 1, 0}}, .lse = {lse.data(), {1, 64}}},
                             context_));
  EXPECT_EQ(lse.front(), log_of(1000));
  EXPECT_EQ(lse.back(), log_of(kMost - 1000));
}

TEST_F(ClosedForm, WritesNothingWithoutAnyWork) {
  const AttentionOptions options{.scale = 1.0F};
  const Dims most{kMany, kMany, kMany, 0};
  expect_ok(
      attention(none(most), none(most), none(most), options, {.out = {nullptr, most}}, context_));
  EXPECT_EQ(context_.last_kernel(), "nothing to compute");
  // A capture of no keys.
  const Dims no_keys{kMany, kMany, 0, 0};
  expect_ok(attention_scores(none(most), none(no_keys), options,
                             {.out = {nullptr, {kMany, kMany, 1, 0}}}, context_));
  const std::vector<int32_t> cu{0, 1000, static_cast<int32_t>(kMany)};
  const Dims packed{kMany, kMany, 0};
  expect_ok(attention_varlen(none(packed), none(packed), none(packed), cu, cu, options,
                             {.out = {nullptr, packed}}, context_));
}

TEST_F(ClosedForm, CapturesOneHeadAndRowOfMany) {
  const std::vector<int32_t> heads{5, static_cast<int32_t>(kMany) - 1};
  std::vector<float> got(6, kNaN);
  const ScoreCapture capture{.stage = ScoreStage::kWeights,
                             .out = {got.data(), {1, 2, 1, 3}},
                             .heads = heads,
                             .first_row = kMany - 1};
  const Dims shape{1, kMany, kMany, 0};
  const ConstTensor q = none(shape), k = none({1, kMany, 3, 0});
  const AttentionOptions options{.scale = 1.0F};
  expect_ok(attention_scores(q, k, options, capture, context_));
  expect_near("weights", got, std::vector<double>(6, 1.0 / 3));
  std::fill(got.begin(), got.end(), kNaN);
  expect_ok(
      attention(q, k, k, options, {.out = {nullptr, shape}, .captures = {&capture, 1}}, context_));
  expect_near("weights", got, std::vector<double>(6, 1.0 / 3));
}

TEST_F(ClosedForm, Gradients) {
  const ConstTensor q = none({1, 2, 8, 0}), k = none({1, 2, kMost, 0});
  const std::vector<float> bias{0, 1, 2, 3, 4, 5, 6, 7}, sinks{0.5F, 1.0F};
  AttentionOptions options{.scale = 1.0F};
  options.bias = {bias.data(), {8, 1}};
  options.sinks = sinks;
  std::vector<float> lse(16), d_bias(8, kNaN), d_sinks(2, kNaN);
  const AttentionOutputs outputs{.out = {nullptr, {1, 2, 8, 0}}, .lse = {lse.data(), {1, 2, 8}}};
  expect_ok(attention(q, k, k, options, outputs, context_));
  const AttentionGradients gradients{.d_q = {nullptr, {1, 2, 8, 0}},
                                     .d_k = {nullptr, {1, 2, kMost, 0}},
                                     .d_v = {nullptr, {1, 2, kMost, 0}},
                                     .d_bias = {d_bias.data(), {8, 1}},
                                     .d_sinks = d_sinks};
  const AttentionResults results{.out = q, .lse = {lse.data(), {1, 2, 8}}};
  const size_t before = context_.scratch_bytes();
  Status status = attention_backward(q, k, k, options, results, q, gradients, context_);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(d_bias, std::vector<float>(8, 0.0F));
  EXPECT_EQ(d_sinks, std::vector<float>(2, 0.0F));
  EXPECT_LT(context_.scratch_bytes(), before + (1U << 16));
  PreparedAttentionBackward prepared;
  expect_ok(PreparedAttentionBackward::create(q, k, k, options, results, q, gradients, context_,
                                              prepared));
  std::fill(d_bias.begin(), d_bias.end(), kNaN);
  expect_ok(prepared.run({.q = nullptr,
                          .k = nullptr,
                          .v = nullptr,
                          .out = nullptr,
                          .lse = lse.data(),
                          .d_out = nullptr,
                          .d_q = nullptr,
                          .d_k = nullptr,
                          .d_v = nullptr}));
  EXPECT_EQ(d_bias, std::vector<float>(8, 0.0F));
  // An LSE of other keys is still refused.
  for (float& value : lse) value -= 3.0F;
  status = attention_backward(q, k, k, options, results, q, gradients, context_);
  EXPECT_EQ(status.code(), StatusCode::kOption) << status.message();
}

TEST_F(ClosedForm, GradientsOfPackedSequences) {
  // WebAssembly plans one job for all keys of a head, whose scratch memory grows with them.
  const int64_t keys = sizeof(void*) == 4 ? 1 << 20 : kMost;
  const std::vector<int32_t> cu_q{0, 4, 8}, cu_k{0, 1000, static_cast<int32_t>(keys)};
  const ConstTensor q = none({8, 2, 0}), k = none({keys, 2, 0});
  const std::vector<float> sinks{0.5F, 1.0F};
  AttentionOptions options{.scale = 1.0F};
  options.sinks = sinks;
  std::vector<float> lse(16), d_sinks(2, kNaN);
  expect_ok(attention_varlen(q, k, k, cu_q, cu_k, options,
                             {.out = {nullptr, {8, 2, 0}}, .lse = {lse.data(), {2, 8}}}, context_));
  const AttentionResults results{.out = q, .lse = {lse.data(), {2, 8}}};
  expect_ok(attention_varlen_backward(q, k, k, cu_q, cu_k, options, results, q,
                                      {.d_sinks = d_sinks}, context_));
  EXPECT_EQ(d_sinks, std::vector<float>(2, 0.0F));
  // No queries: any number of heads.
  const ConstTensor no_q = none({0, kMany, 0}), many_k = none({keys, kMany, 0});
  const std::vector<int32_t> none_of{0, 0, 0};
  expect_ok(attention_varlen_backward(no_q, many_k, many_k, none_of, cu_k, {.scale = 1.0F},
                                      {.out = no_q, .lse = none({kMany, 0})}, no_q, {}, context_));
}

TEST_F(ClosedForm, GradientsOfNoQueries) {
  const Dims many{kMany, kMany, kMany, 0};
  const ConstTensor q = none({kMany, kMany, 0, 0}), k = none(many);
  float d_bias = kNaN;
  const float bias = 1.0F;
  AttentionOptions options{.scale = 1.0F};
  options.bias = {&bias, {1, 1}};
  const AttentionResults results{.out = q, .lse = none({kMany, kMany, 0})};
  expect_ok(attention_backward(q, k, k, options, results, q,
                               {.d_k = {nullptr, many}, .d_bias = {&d_bias, {1, 1}}}, context_));
  EXPECT_EQ(d_bias, 0.0F);
}

}  // namespace
}  // namespace multihead
