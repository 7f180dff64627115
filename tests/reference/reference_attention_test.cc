// Compares the oracle with numbers worked out by hand.
#include "reference/reference_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "rules/dropout_mask.h"
#include "rules/element.h"

namespace multihead::reference {
namespace {

// One head of width 1 with scale 1. With queries of 1, the scores equal the keys.
struct Line {
  std::vector<float> q, k, v;
  AttentionOptions options{.scale = 1.0F};

  Line(std::vector<float> queries, std::vector<float> keys, std::vector<float> values)
      : q(std::move(queries)), k(std::move(keys)), v(std::move(values)) {}

  static Dims shape(const std::vector<float>& x) {
    return {1, 1, static_cast<int64_t>(x.size()), 1};
  }
  ReferenceOutputs run() const {
    return attention({q.data(), shape(q)}, {k.data(), shape(k)}, {v.data(), shape(v)}, options,
                     true);
  }
};

TEST(Reference, SoftmaxOfTwoScores) {
  const ReferenceOutputs got = Line({1}, {0, std::log(3.0F)}, {1, 2}).run();
  EXPECT_NEAR(got.weights[0], 0.25, 1e-7);
  EXPECT_NEAR(got.weights[1], 0.75, 1e-7);
  EXPECT_NEAR(got.out[0], 1.75, 1e-7);
  EXPECT_NEAR(got.lse[0], std::log(4.0), 1e-7);
}

TEST(Reference, StagesInTheirOrder) {
  Line line({2}, {1, 2, 3}, {0, 0, 0});
  const std::vector<float> slopes{0.5F};
  const std::vector<float> bias{0, 10, 0};
  line.options.softcap = 2.0F;
  line.options.alibi_slopes = slopes;
  line.options.bias = {bias.data(), {1, 3}};
  line.options.window = {.left = 1, .right = -1, .alignment = Alignment::kBottomRight};
  const ReferenceOutputs got = line.run();
  EXPECT_EQ(got.raw, (std::vector<double>{2, 4, 6}));
  EXPECT_DOUBLE_EQ(got.capped[0], 2 * std::tanh(1.0));
  EXPECT_DOUBLE_EQ(got.capped[2], 2 * std::tanh(3.0));
  // The query is at the last key; the first key is outside the window.
  EXPECT_EQ(got.masked[0], -INFINITY);
  EXPECT_DOUBLE_EQ(got.masked[1], 2 * std::tanh(2.0) + 10 - 0.5);
  EXPECT_DOUBLE_EQ(got.masked[2], 2 * std::tanh(3.0));
}

TEST(Reference, SinkJoinsTheDenominatorOnly) {
  Line line({1, 1}, {0, 0}, {4, 8});
  const std::vector<float> sinks{std::log(2.0F)};
  const std::vector<uint8_t> mask{1, 1, 0, 0};
  line.options.sinks = sinks;
  line.options.mask = {mask.data(), {2, 2}};
  const ReferenceOutputs got = line.run();
  EXPECT_NEAR(got.weights[0], 0.25, 1e-7);
  EXPECT_NEAR(got.out[0], 3.0, 1e-6);
  EXPECT_NEAR(got.lse[0], std::log(4.0), 1e-7);
  // This query sees no key, so all weight goes to the sink.
  EXPECT_EQ(got.out[1], 0.0);
  EXPECT_EQ(got.weights[2], 0.0);
  EXPECT_EQ(got.lse[1], static_cast<double>(sinks[0]));
}

TEST(Reference, QueryWithoutKeys) {
  Line line({1, 1}, {5, NAN}, {7, NAN});
  const std::vector<int32_t> lengths{1};
  line.options.kv_lengths = lengths;
  line.options.causal = Causal::at_offset(-1);
  const ReferenceOutputs got = line.run();
  EXPECT_EQ(got.out, (std::vector<double>{0, 7}));
  EXPECT_EQ(got.lse, (std::vector<double>{-INFINITY, 5}));
  EXPECT_EQ(got.weights, (std::vector<double>{0, 0, 1, 0}));
}

TEST(Reference, NormThenRotation) {
  const std::vector<float> q{3, 4}, k{0, 2}, v{1, 1};
  const std::vector<float> gain{2, 1};
  const std::vector<int32_t> q_positions{1}, k_positions{0};
  AttentionOptions options{.scale = 1.0F};
  options.qk_norm = {.q_gain = gain, .eps = 0.0F, .enabled = true};
  options.rope = {
      .style = Rope::Style::kHalf, .q_positions = q_positions, .k_positions = k_positions};
  const Dims shape{1, 1, 1, 2};
  const ReferenceOutputs got =
      attention({q.data(), shape}, {k.data(), shape}, {v.data(), shape}, options, true);
  // q / rms = (3, 4) / sqrt(12.5), times the gain, rotated by 1 radian; k / rms = (0, sqrt(2)).
  const double x = 6 / std::sqrt(12.5), y = 4 / std::sqrt(12.5);
  EXPECT_NEAR(got.raw[0], std::sqrt(2.0) * (x * std::sin(1.0) + y * std::cos(1.0)), 1e-12);
}

TEST(Reference, DropoutOnTheOutputAlone) {
  Line line({1}, {0, 0, 0, 0, 0, 0, 0, 0}, {1, 2, 4, 8, 16, 32, 64, 128});
  line.options.dropout = {.probability = 0.5F, .seed = 99};
  const ReferenceOutputs got = line.run();
  double expected = 0;
  for (int64_t j = 0; j < 8; ++j) {
    const bool kept = rules::dropout_keeps(99, 0, 0, 0, j, rules::dropout_threshold(0.5F));
    if (kept) expected += std::ldexp(1.0, static_cast<int>(j)) / 8 * 2;
    EXPECT_DOUBLE_EQ(got.weights[static_cast<size_t>(j)], 0.125);
  }
  EXPECT_DOUBLE_EQ(got.out[0], expected);
}

TEST(Reference, HalfPrecisionIsReadExactly) {
  const std::vector<Float16> half{rules::to_float16(0.1F)};
  const std::vector<BFloat16> brain{rules::to_bfloat16(0.1F)};
  const Dims shape{1, 1, 1, 1};
  const ReferenceOutputs got = attention({half.data(), shape}, {brain.data(), shape},
                                         {half.data(), shape}, {.scale = 1.0F}, true);
  EXPECT_EQ(got.raw[0], 0.0999755859375 * 0.10009765625);
  EXPECT_EQ(got.out[0], 0.0999755859375);
}

}  // namespace
}  // namespace multihead::reference
