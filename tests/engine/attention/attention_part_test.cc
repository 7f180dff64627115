// Compares the parts of a call with attention(), bit for bit.
#include "engine/attention/attention_part.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/call_outputs.h"
#include "support/random_case.h"
#include "support/simd_targets.h"

namespace multihead {
namespace {

using engine::AttentionPart;
using engine::AttentionParts;
using testing::CallOutputs;
using testing::CaseLimits;
using testing::Random;
using testing::random_case;
using testing::random_seeds;
using testing::RandomCase;

// Returns the tensor (B, H, ...) with data from `head` on, counted over all batch entries.
template <class TensorLike>
TensorLike from_head(TensorLike tensor, int64_t head, int64_t element_bytes) {
  if (!tensor.given() || tensor.shape.elements() == 0) return tensor;
  const int64_t heads = tensor.shape[1];
  const int64_t elements = head / heads * tensor.strides[0] + head % heads * tensor.strides[1];
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  tensor.data = reinterpret_cast<decltype(tensor.data)>(
      address + static_cast<uintptr_t>(elements * element_bytes));
  return tensor;
}

void run_in_parts(const RandomCase& c, const AttentionParts& parts, Random& random,
                  const AttentionOutputs& whole, Context& context) {
  const int64_t group = c.k.shape[1] == 0 ? 1 : c.q.shape[1] / c.k.shape[1];
  for (int64_t head = 0; head < parts.heads;) {
    const int64_t end_head = random.integer(head + 1, parts.heads);
    for (int64_t block = 0; block < parts.blocks;) {
      const int64_t end_block = random.integer(block + 1, parts.blocks);
      const int64_t first = random.integer(0, head);
      const int64_t query_head = first * group;
      AttentionOutputs own = whole;
      own.out = from_head(own.out, query_head, bytes_of(own.out.dtype));
      own.lse = from_head(own.lse, query_head, sizeof(float));
      own.weights = from_head(own.weights, query_head, sizeof(float));
      own.dropout_mask = from_head(own.dropout_mask, query_head, 1);
      const AttentionPart part{.first_in_memory = first,
                               .first_head = head,
                               .end_head = end_head,
                               .first_block = block,
                               .end_block = end_block};
      const Status status =
          engine::attention_part({from_head(c.q, query_head, bytes_of(c.q.dtype)),
                                  from_head(c.k, first, bytes_of(c.k.dtype)),
                                  from_head(c.v, first, bytes_of(c.v.dtype)), c.options, own},
                                 part, context);
      ASSERT_TRUE(status.ok()) << status.message();
      block = end_block;
    }
    head = end_head;
  }
}

void expect_same(uint64_t seed, const CaseLimits& limits, Context& context) {
  const RandomCase c = random_case(seed, limits);
  SCOPED_TRACE(c.description);
  Random random(seed);
  CallOutputs expected(c), actual(c);
  ASSERT_TRUE(attention(c.q, c.k, c.v, c.options, expected.outputs(), context).ok());
  AttentionParts parts;
  const Status status =
      engine::divide_attention({c.q, c.k, c.v, c.options, actual.outputs()}, false, parts);
  ASSERT_TRUE(status.ok()) << status.message();
  run_in_parts(c, parts, random, actual.outputs(), context);
  EXPECT_EQ(expected.bytes(), actual.bytes());
}

TEST(AttentionPart, HasTheBitsOfTheWholeCall) {
  Context context(2);
  testing::on_every_target([&] {
    for (const uint64_t seed : random_seeds(40)) expect_same(seed, {}, context);
  });
}

TEST(AttentionPart, DividesDecodingByHeads) {
  Context context(1);
  testing::on_every_target([&] {
    for (const uint64_t seed : random_seeds(40)) {
      expect_same(seed, {.max_queries = 3, .max_keys = 1500}, context);
    }
  });
}

// Reorders a packed tensor (T, H, d), whose heads lie side by side, into (H, T, d), as a part gets
// it.
std::vector<float> by_heads(const std::vector<float>& packed, int64_t tokens, int64_t heads,
                            int64_t width) {
  std::vector<float> result(packed.size());
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t head = 0; head < heads; ++head) {
      std::copy_n(packed.begin() + (token * heads + head) * width, width,
                  result.begin() + (head * tokens + token) * width);
    }
  }
  return result;
}

TEST(AttentionPart, HasTheBitsOfAPackedSequence) {
  Context context(1);
  testing::on_every_target([&] {
    for (const uint64_t seed : random_seeds(12)) {
      Random random(seed);
      const int64_t kv_heads = random.integer(1, 3), heads = kv_heads * random.integer(1, 2);
      const int64_t queries = random.integer(1, 120), keys = random.integer(1, 600);
      const int64_t width = random.pick({8, 17, 64}), value_dim = random.pick({8, 33});
      const auto q = random.floats(queries * heads * width);
      const auto k = random.floats(keys * kv_heads * width);
      const auto v = random.floats(keys * kv_heads * value_dim);
      AttentionOptions options;
      if (random.chance(0.5)) options.causal = Causal::bottom_right();
      if (random.chance(0.5)) options.rope.style = Rope::Style::kHalf, options.rope.rotary_dim = 8;
      if (random.chance(0.3)) options.dropout = {.probability = 0.3F, .seed = seed};
      const Dims q_shape{1, heads, queries, width}, k_shape{1, kv_heads, keys, width},
          v_shape{1, kv_heads, keys, value_dim}, out_shape{1, heads, queries, value_dim};
      const std::vector<float> own_q = by_heads(q, queries, heads, width),
                               own_k = by_heads(k, keys, kv_heads, width),
                               own_v = by_heads(v, keys, kv_heads, value_dim);
      std::vector<float> expected(static_cast<size_t>(out_shape.elements()));
      std::vector<float> expected_lse(static_cast<size_t>(heads * queries));
      const int32_t cu_q[] = {0, static_cast<int32_t>(queries)};
      const int32_t cu_k[] = {0, static_cast<int32_t>(keys)};
      ASSERT_TRUE(attention_varlen(ConstTensor(q.data(), {queries, heads, width}),
                                   ConstTensor(k.data(), {keys, kv_heads, width}),
                                   ConstTensor(v.data(), {keys, kv_heads, value_dim}), cu_q, cu_k,
                                   options,
                                   {.out = Tensor(expected.data(), {queries, heads, value_dim}),
                                    .lse = {expected_lse.data(), {heads, queries}}},
                                   context)
                      .ok());
      std::vector<float> out(expected.size()), lse(expected_lse.size());
      const AttentionOutputs outputs{.out = Tensor(out.data(), out_shape),
                                     .lse = {lse.data(), {1, heads, queries}}};
      const ConstTensor part_q(own_q.data(), q_shape), part_k(own_k.data(), k_shape),
          part_v(own_v.data(), v_shape);
      AttentionParts parts;
      ASSERT_TRUE(
          engine::divide_attention({part_q, part_k, part_v, options, outputs}, true, parts).ok());
      for (int64_t head = 0; head < parts.heads; ++head) {
        for (int64_t block = 0; block < parts.blocks; ++block) {
          const AttentionPart part{.first_head = head,
                                   .end_head = head + 1,
                                   .first_block = block,
                                   .end_block = block + 1,
                                   .varlen = true};
          ASSERT_TRUE(
              engine::attention_part({part_q, part_k, part_v, options, outputs}, part, context)
                  .ok());
        }
      }
      EXPECT_EQ(by_heads(expected, queries, heads, value_dim), out) << "seed " << seed;
      EXPECT_EQ(expected_lse, lse) << "seed " << seed;
    }
  });
}

TEST(AttentionPart, RefusesWhatAttentionRefuses) {
  const float numbers[8] = {};
  const ConstTensor q(numbers, {1, 1, 2, 4}), k(numbers, {1, 1, 2, 3});
  float out[8];
  AttentionParts parts;
  const Status status =
      engine::divide_attention({q, k, q, {}, {.out = Tensor(out, q.shape)}}, false, parts);
  EXPECT_EQ(status.code(), StatusCode::kShape);
  EXPECT_EQ(parts.heads, 0);
}

}  // namespace
}  // namespace multihead
