// Compares short heads with the oracle and with blocks on every SIMD target.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "reference/reference_attention.h"
#include "support/random_case.h"
#include "support/simd_targets.h"
#include "support/special_values.h"

namespace multihead {
namespace {

using testing::Random;
using testing::RandomCase;

// Uses everything that short heads support: causal order, lengths, a window with an open left side,
// any scale, any strides. More queries than decoding takes, up to several blocks; rarely so few
// keys that some queries see none.
RandomCase short_case(uint64_t seed) {
  Random random(seed);
  RandomCase c;
  const int64_t batch = random.integer(1, 2), heads = random.integer(1, 6);
  const int64_t queries = random.chance(0.05) ? random.integer(100, 400) : random.integer(13, 70);
  const int64_t keys = random.chance(0.4) ? queries % 64 + 1 : random.integer(1, 64);
  const int64_t width = random.chance(0.5) ? random.integer(1, 5) * 16 : random.integer(1, 40);
  const int64_t value_dim = random.integer(1, 20) * (random.chance(0.2) ? 1 : 16);
  const auto tensor = [&](int64_t rows, int64_t columns) {
    const Dims shape{batch, heads, rows, columns};
    const int64_t row = columns + (random.chance(0.2) ? random.integer(1, 9) : 0);
    const bool interleaved = random.chance(0.3);  // (B, N, H, d)
    const Dims strides{heads * rows * row, interleaved ? row : rows * row,
                       interleaved ? heads * row : row, 1};
    return stored(c, random.floats(batch * strides[0]), DType::kF32, shape, strides);
  };
  c.q = tensor(queries, width);
  c.k = tensor(keys, width);
  c.v = tensor(keys, value_dim);
  c.out_shape = {batch, heads, queries, value_dim};
  c.lse_shape = {batch, heads, queries};
  if (random.chance(0.5)) {
    c.options.causal = random.chance(0.5) ? Causal::top_left() : Causal::bottom_right();
  }
  if (random.chance(0.2)) c.options.window.right = random.integer(0, 20);
  if (random.chance(0.2)) {
    std::vector<int32_t>& lengths = c.integers.emplace_back();
    for (int64_t b = 0; b < batch; ++b) {
      lengths.push_back(static_cast<int32_t>(random.integer(0, keys)));
    }
    c.options.kv_lengths = lengths;
  }
  if (random.chance(0.3)) c.options.scale = random.uniform(-2.0F, 2.0F);
  c.description = "seed " + std::to_string(seed) + ", q " + c.q.shape.to_string() + ", v " +
                  c.v.shape.to_string();
  return c;
}

struct ShortHeadsResult {
  std::vector<float> out, lse;
};

// A dropout mask, which short heads do not support, makes blocks compute the call.
ShortHeadsResult run(const RandomCase& c, bool by_blocks, Context& context) {
  ShortHeadsResult result{std::vector<float>(static_cast<size_t>(c.out_shape.elements()), kNaN),
                          std::vector<float>(static_cast<size_t>(c.lse_shape.elements()), kNaN)};
  const Dims scores{c.q.shape[0], c.q.shape[1], c.q.shape[2], c.k.shape[2]};
  std::vector<uint8_t> dropout_mask(static_cast<size_t>(scores.elements()));
  AttentionOutputs outputs{.out = {result.out.data(), c.out_shape},
                           .lse = {result.lse.data(), c.lse_shape}};
  if (by_blocks) outputs.dropout_mask = {dropout_mask.data(), scores};
  const Status status = attention(c.q, c.k, c.v, c.options, outputs, context);
  EXPECT_TRUE(status.ok()) << status.message();
  return result;
}

class ShortHeads : public ::testing::Test {
 protected:
  Context context_{2};
};

TEST_F(ShortHeads, EqualOracleAndBlocks) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    const RandomCase c = short_case(seed);
    SCOPED_TRACE(c.description);
    const reference::ReferenceOutputs expected = reference::attention(c.q, c.k, c.v, c.options);
    testing::on_every_target([&] {
      const ShortHeadsResult got = run(c, false, context_);
      ASSERT_EQ(got.out.size(), expected.out.size());
      for (size_t i = 0; i < got.out.size(); ++i) {
        ASSERT_NEAR(static_cast<double>(got.out[i]), expected.out[i], 4e-6) << "element " << i;
      }
      for (size_t i = 0; i < got.lse.size(); ++i) {
        if (static_cast<double>(got.lse[i]) == expected.lse[i]) continue;  // -inf
        const double allowed = 1e-6 * (4.0 + std::abs(expected.lse[i]));
        ASSERT_NEAR(static_cast<double>(got.lse[i]), expected.lse[i], allowed) << "row " << i;
      }
      const ShortHeadsResult by_blocks = run(c, true, context_);
      ASSERT_EQ(got.out, by_blocks.out);
      ASSERT_EQ(got.lse, by_blocks.lse);
    });
    if (HasFatalFailure()) return;
  }
}

// NaN and infinity, hidden from some queries or from all, and scores that overflow. The tiles
// determine which rows read hidden values and must be recomputed.
TEST_F(ShortHeads, PoisonReachesWhatItReachesInBlocks) {
  int touched = 0;
  for (uint64_t seed = 1000; seed < 1100; ++seed) {
    RandomCase c = short_case(seed);
    Random random(seed);
    for (std::vector<float>& values : c.storage) {
      if (random.chance(0.5)) continue;
      const int64_t at = random.integer(0, static_cast<int64_t>(values.size()) - 1);
      values[static_cast<size_t>(at)] = random.pick({kNaN, kInf, -kInf, 3e38F, -3e38F});
    }
    SCOPED_TRACE(c.description);
    testing::on_every_target([&] {
      const std::vector<float> got = run(c, false, context_).out;
      const std::vector<float> expected = run(c, true, context_).out;
      for (size_t i = 0; i < got.size(); ++i) {
        if (got[i] == expected[i]) continue;
        ASSERT_EQ(std::isnan(got[i]), std::isnan(expected[i])) << "element " << i;
        if (!std::isnan(got[i])) {
          ASSERT_NEAR(got[i], expected[i], 4e-6F) << "element " << i;
        }
      }
      touched += std::any_of(got.begin(), got.end(), [](float x) { return std::isnan(x); }) ? 1 : 0;
    });
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(touched, 20);
}

}  // namespace
}  // namespace multihead
