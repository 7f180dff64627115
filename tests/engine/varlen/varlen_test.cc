// Backward of varlen calls: the bits of a plain call for each sequence, with any number of threads;
// invalid calls.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "multihead/attention_backward.h"
#include "support/random_backward.h"
#include "support/random_case.h"

namespace multihead {
namespace {

using testing::poisoned;
using testing::Random;
using testing::same_bits;

// Returns rows first .. last - 1 of (T, H, d), as (1, H, rows, d).
template <class T>
TensorView<T> rows_of(T* data, int64_t heads, int64_t width, int64_t first, int64_t last) {
  return {
      data + first * heads * width, {1, heads, last - first, width}, {0, width, heads * width, 1}};
}

TEST(VarlenBackward, HasTheBitsOfAPlainCallForEachSequence) {
  Context context(2);
  for (const uint64_t seed : testing::random_seeds(150)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const int64_t kv_heads = random.integer(1, 3), heads = kv_heads * random.integer(1, 2);
    const int64_t width = 2 * random.integer(1, 6), value_dim = random.integer(1, 9);
    std::vector<int32_t> cu_q{0}, cu_k{0};
    for (int64_t s = random.integer(0, 5); s > 0; --s) {
      const int64_t longest = random.chance(0.1) ? 1500 : 12;
      cu_q.push_back(cu_q.back() + static_cast<int32_t>(random.integer(0, 12)));
      cu_k.push_back(cu_k.back() + static_cast<int32_t>(random.integer(0, longest)));
    }
    const int64_t queries = cu_q.back(), keys = cu_k.back();
    const std::vector<float> q = random.floats(queries * heads * width),
                             k = random.floats(keys * kv_heads * width),
                             v = random.floats(keys * kv_heads * value_dim),
                             d_out = random.floats(queries * heads * value_dim),
                             sinks = random.floats(heads), gain = random.floats(width, 0.5F, 1.5F),
                             slopes = random.floats(heads, 0.0F, 0.5F);
    AttentionOptions options;
    if (random.chance(0.5)) options.causal = Causal::bottom_right();
    if (random.chance(0.3)) options.window = {.left = random.integer(0, 4)};
    if (random.chance(0.3)) options.softcap = 2.0F;
    if (random.chance(0.3)) options.sinks = sinks;
    if (random.chance(0.3)) options.alibi_slopes = slopes;
    if (random.chance(0.3)) options.rope.style = Rope::Style::kHalf;
    if (random.chance(0.3)) options.dropout = {0.3F, seed};
    if (random.chance(0.3)) {
      options.qk_norm = {.q_gain = gain, .k_gain = gain, .eps = 1e-3F, .enabled = true};
    }
    std::vector<float> out(d_out.size()), lse(static_cast<size_t>(heads * queries));
    const ConstTensor packed_q(q.data(), {queries, heads, width}),
        packed_k(k.data(), {keys, kv_heads, width}),
        packed_v(v.data(), {keys, kv_heads, value_dim}),
        packed_out(out.data(), {queries, heads, value_dim});
    Status status = attention_varlen(
        packed_q, packed_k, packed_v, cu_q, cu_k, options,
        {.out = Tensor(out.data(), packed_out.shape), .lse = {lse.data(), {heads, queries}}},
        context);
    ASSERT_TRUE(status.ok()) << status.message();

    const auto count = [](const std::vector<float>& of) { return static_cast<int64_t>(of.size()); };
    std::vector<float> d_q = poisoned(count(q)), d_k = poisoned(count(k)), d_v = poisoned(count(v));
    std::vector<float> d_sinks = poisoned(options.sinks.empty() ? 0 : heads);
    std::vector<float> d_gain = poisoned(options.qk_norm.enabled ? width : 0);
    status = attention_varlen_backward(
        packed_q, packed_k, packed_v, cu_q, cu_k, options,
        {.out = packed_out, .lse = ConstTensor(lse.data(), {heads, queries})},
        ConstTensor(d_out.data(), packed_out.shape),
        {.d_q = {d_q.data(), packed_q.shape},
         .d_k = {d_k.data(), packed_k.shape},
         .d_v = {d_v.data(), packed_v.shape},
         .d_sinks = d_sinks,
         .d_q_gain = d_gain},
        context);
    ASSERT_TRUE(status.ok()) << status.message();

    std::vector<float> one_q = d_q, one_k = d_k, one_v = d_v;
    std::vector<float> sum_sinks(d_sinks.size(), 0.0F), sum_gain(d_gain.size(), 0.0F);
    for (size_t s = 0; s + 1 < cu_q.size(); ++s) {
      AttentionOptions alone = options;
      alone.dropout.seed += static_cast<uint64_t>(s) << 32U;
      const auto of_q = [&](auto* data, int64_t columns) {
        return rows_of(data, heads, columns, cu_q[s], cu_q[s + 1]);
      };
      const auto of_k = [&](auto* data, int64_t columns) {
        return rows_of(data, kv_heads, columns, cu_k[s], cu_k[s + 1]);
      };
      std::vector<float> part_sinks(d_sinks.size()), part_gain(d_gain.size());
      status = attention_backward(
          of_q(q.data(), width), of_k(k.data(), width), of_k(v.data(), value_dim), alone,
          {.out = ConstTensor(of_q(out.data(), value_dim)),
           .lse = ConstTensor(lse.data() + cu_q[s], {1, heads, cu_q[s + 1] - cu_q[s]},
                              {0, queries, 1})},
          of_q(d_out.data(), value_dim),
          {.d_q = of_q(one_q.data(), width),
           .d_k = of_k(one_k.data(), width),
           .d_v = of_k(one_v.data(), value_dim),
           .d_sinks = part_sinks,
           .d_q_gain = part_gain},
          context);
      ASSERT_TRUE(status.ok()) << status.message();
      for (size_t i = 0; i < part_sinks.size(); ++i) sum_sinks[i] += part_sinks[i];
      for (size_t i = 0; i < part_gain.size(); ++i) sum_gain[i] += part_gain[i];
    }
    EXPECT_TRUE(same_bits(d_q, one_q));
    EXPECT_TRUE(same_bits(d_k, one_k));
    EXPECT_TRUE(same_bits(d_v, one_v));
    EXPECT_TRUE(same_bits(d_sinks, sum_sinks));
    // d_gain is summed over all tokens, not per sequence, so its rounding differs.
    for (size_t i = 0; i < d_gain.size(); ++i) {
      EXPECT_NEAR(d_gain[i], sum_gain[i], 1e-4F * (1.0F + std::abs(sum_gain[i])));
    }
    if (HasFailure()) return;
  }
}

// 200 short sequences in one list of jobs, and one much longer sequence.
TEST(VarlenBackward, TheBitsDoNotDependOnTheThreads) {
  Random random(1);
  std::vector<int32_t> cu{0};
  for (int s = 0; s < 200; ++s) {
    const int64_t tokens = s == 100 ? 1400 : random.integer(1, 24);
    cu.push_back(cu.back() + static_cast<int32_t>(tokens));
  }
  const Dims shape{cu.back(), 2, 8};
  const std::vector<float> x = random.floats(shape.elements()), sinks = random.floats(2);
  const ConstTensor packed(x.data(), shape);
  const AttentionOptions options{.causal = Causal::bottom_right(),
                                 .sinks = sinks,
                                 .qk_norm = {.enabled = true},
                                 .rope = {.style = Rope::Style::kHalf}};
  const auto gradients = [&](int threads) {
    Context context(threads);
    std::vector<float> out(x.size()), lse(static_cast<size_t>(2 * cu.back()));
    const Tensor of_lse(lse.data(), {2, cu.back()});
    EXPECT_TRUE(attention_varlen(packed, packed, packed, cu, cu, options,
                                 {.out = Tensor(out.data(), shape), .lse = of_lse}, context)
                    .ok());
    std::vector<float> all = poisoned(3 * shape.elements() + 2 + 8);
    const auto part = [&](int64_t i) {
      return Tensor(&all[static_cast<size_t>(i) * x.size()], shape);
    };
    const std::span<float> sums = std::span(all).subspan(3 * x.size());
    EXPECT_TRUE(attention_varlen_backward(packed, packed, packed, cu, cu, options,
                                          {.out = ConstTensor(out.data(), shape), .lse = of_lse},
                                          packed,
                                          {.d_q = part(0),
                                           .d_k = part(1),
                                           .d_v = part(2),
                                           .d_sinks = sums.first(2),
                                           .d_q_gain = sums.subspan(2)},
                                          context)
                    .ok());
    return all;
  };
  const std::vector<float> alone = gradients(1);
  for (const int threads : {2, 7}) EXPECT_TRUE(same_bits(gradients(threads), alone)) << threads;
}

// An LSE that is wrong for one sequence, at any place, is refused, and nothing is written.
TEST(VarlenBackward, RefusesAnLseOfOtherInputs) {
  Random random(2);
  const std::vector<int32_t> cu{0, 5, 5, 9, 30};
  const Dims shape{30, 1, 4};
  const std::vector<float> x = random.floats(shape.elements());
  const ConstTensor packed(x.data(), shape);
  for (const int threads : {1, 2}) {
    Context context(threads);
    std::vector<float> out(x.size()), lse(30), d(x.size(), 42.0F);
    const Tensor of_lse(lse.data(), {1, 30});
    ASSERT_TRUE(attention_varlen(packed, packed, packed, cu, cu, {},
                                 {.out = Tensor(out.data(), shape), .lse = of_lse}, context)
                    .ok());
    const auto argument = [&] {
      return attention_varlen_backward(packed, packed, packed, cu, cu, {},
                                       {.out = ConstTensor(out.data(), shape), .lse = of_lse},
                                       packed, {.d_q = Tensor(d.data(), shape)}, context)
          .argument();
    };
    for (const size_t last_row : {4U, 8U, 29U}) {
      lse[last_row] += 5.0F;
      EXPECT_EQ(argument(), "lse") << last_row;
      lse[last_row] -= 5.0F;
    }
    EXPECT_EQ(d, std::vector<float>(x.size(), 42.0F));
    EXPECT_EQ(argument(), "");
  }
}

TEST(VarlenBackward, RefusesInvalidCallsAndWritesNothing) {
  Context context(1);
  std::vector<float> x(24), lse(6), d(24, 42.0F), bias(9);
  const std::vector<int32_t> cu{0, 2, 3}, wrong{0, 2, 4};
  const ConstTensor packed(x.data(), {3, 2, 4});
  ASSERT_TRUE(attention_varlen(packed, packed, packed, cu, cu, {},
                               {.out = Tensor(d.data(), packed.shape), .lse = {lse.data(), {2, 3}}},
                               context)
                  .ok());
  d.assign(24, 42.0F);
  const auto argument = [&](const std::vector<int32_t>& cu_q, const AttentionOptions& options,
                            const Dims& lse_shape, const AttentionGradients& gradients) {
    return attention_varlen_backward(packed, packed, packed, cu_q, cu, options,
                                     {.out = packed, .lse = ConstTensor(lse.data(), lse_shape)},
                                     packed, gradients, context)
        .argument();
  };
  const AttentionGradients good{.d_q = {d.data(), {3, 2, 4}}};
  const Dims rows{2, 3};
  EXPECT_EQ(argument(wrong, {}, rows, good), "cu_q");
  EXPECT_EQ(argument(cu, {}, {3, 2}, good), "lse");
  EXPECT_EQ(argument(cu, {}, rows, {.d_q = {d.data(), {3, 4, 2}}}), "d_q");
  EXPECT_EQ(argument(cu, {}, rows, {.d_v = {d.data(), {2, 2, 4}}}), "d_v");
  EXPECT_EQ(argument(cu, {.bias = {bias.data(), {3, 3}}}, rows, good), "bias");
  EXPECT_EQ(argument(cu, {}, rows, {.d_bias = {bias.data(), {3, 3}}}), "d_bias");
  EXPECT_EQ(argument(cu, {.softcap = -1.0F}, rows, good), "softcap");
  EXPECT_EQ(d, std::vector<float>(24, 42.0F));
  EXPECT_EQ(argument(cu, {}, rows, good), "");
}

}  // namespace
}  // namespace multihead
