// The parts of a call compared with attention(), bit for bit.
#include "engine/attention_part.h"

#include <gtest/gtest.h>

#include <cstdint>

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

// The tensor (B, H, ...) whose data begin at a head, counted over all batch entries.
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
      const Status status = engine::attention_part(from_head(c.q, query_head, bytes_of(c.q.dtype)),
                                                   from_head(c.k, first, bytes_of(c.k.dtype)),
                                                   from_head(c.v, first, bytes_of(c.v.dtype)),
                                                   c.options, own, part, context);
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
  const Status status = engine::divide_attention(c.q, c.k, c.v, c.options, actual.outputs(), parts);
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

TEST(AttentionPart, RefusesWhatAttentionRefuses) {
  const float numbers[8] = {};
  const ConstTensor q(numbers, {1, 1, 2, 4}), k(numbers, {1, 1, 2, 3});
  float out[8];
  AttentionParts parts;
  const Status status = engine::divide_attention(q, k, q, {}, {.out = Tensor(out, q.shape)}, parts);
  EXPECT_EQ(status.code(), StatusCode::kShape);
  EXPECT_EQ(parts.heads, 0);
}

}  // namespace
}  // namespace multihead
