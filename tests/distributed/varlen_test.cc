// Compares packed sequences that continue on the next rank with one process.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "multihead/distributed.h"
#include "support/packed_case.h"
#include "support/random_case.h"
#include "support/sharded_case.h"
#include "support/special_values.h"
#include "support/thread_ranks.h"

namespace multihead::distributed {
namespace {

using testing::PackedCase;
using testing::Random;
using testing::RowList;

// Calls attention_varlen() with a rank's rows or with all rows.
template <class Run>
Status call(const PackedCase& c, const RowList& queries, const RowList& keys,
            std::vector<float>& out, std::vector<float>& lse, const Run& run) {
  const auto rows = static_cast<int64_t>(queries.size());
  const auto key_rows = static_cast<int64_t>(keys.size());
  const std::vector<float> q = testing::rows_of(c.q, c.heads * c.width, queries);
  const std::vector<float> k = testing::rows_of(c.k, c.kv_heads * c.width, keys);
  const std::vector<float> v = testing::rows_of(c.v, c.kv_heads * c.value_dim, keys);
  out.assign(static_cast<size_t>(rows * c.heads * c.value_dim), kNaN);
  lse.assign(static_cast<size_t>(rows * c.heads), kNaN);
  return run(ConstTensor(q.data(), {rows, c.heads, c.width}),
             ConstTensor(k.data(), {key_rows, c.kv_heads, c.width}),
             ConstTensor(v.data(), {key_rows, c.kv_heads, c.value_dim}),
             AttentionOutputs{.out = Tensor(out.data(), {rows, c.heads, c.value_dim}),
                              .lse = {lse.data(), {c.heads, rows}}});
}

void expect_packed_rows_equal_one_process(Method method, uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  const PackedCase c(seed);
  Random random(seed + 4242);
  int ranks = static_cast<int>(random.integer(1, 5));
  if (method == Method::kHeads) ranks = std::min(ranks, static_cast<int>(c.kv_heads));
  const testing::Divided divided = testing::divide(random, c.queries(), c.keys(), method, ranks);
  const AttentionOptions options = c.options();
  std::vector<float> out, lse;
  Context alone(1);
  const RowList all_queries = testing::rows_of({{0, c.queries()}});
  const Status whole =
      call(c, all_queries, testing::rows_of({{0, c.keys()}}), out, lse,
           [&](const auto& q, const auto& k, const auto& v, const auto& to) {
             return multihead::attention_varlen(q, k, v, c.cu_q, c.cu_k, options, to, alone);
           });
  ASSERT_TRUE(whole.ok()) << whole.message();
  std::vector<std::vector<float>> outs(static_cast<size_t>(ranks)), lses = outs;
  testing::in_ranks(ranks, {}, [&](Communicator& communicator) {
    Context context(1);
    const auto rank = static_cast<size_t>(communicator.rank());
    const Status status = call(c, divided.queries[rank], divided.keys[rank], outs[rank], lses[rank],
                               [&](const auto& q, const auto& k, const auto& v, const auto& to) {
                                 return attention_varlen(q, k, v, c.cu_q, c.cu_k, options, to,
                                                         divided.sharding, communicator, context);
                               });
    EXPECT_TRUE(status.ok()) << status.message();
  });
  for (size_t rank = 0; rank < outs.size(); ++rank) {
    const RowList& rows = divided.queries[rank];
    const std::vector<float> expected = testing::rows_of(out, c.heads * c.value_dim, rows);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(outs[rank][i], expected[i], 6e-6) << "rank " << rank << " element " << i;
    }
    for (size_t i = 0; i < lses[rank].size(); ++i) {
      const auto head = static_cast<int64_t>(i / rows.size());
      const float whole_lse = lse[static_cast<size_t>(head * c.queries() + rows[i % rows.size()])];
      if (lses[rank][i] != whole_lse) {
        ASSERT_NEAR(lses[rank][i], whole_lse, 6e-6);
      }
    }
  }
}

class PackedRanks : public ::testing::TestWithParam<Method> {};

TEST_P(PackedRanks, EqualOneProcess) {
  for (const uint64_t seed : testing::random_seeds(300)) {
    expect_packed_rows_equal_one_process(GetParam(), seed);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, PackedRanks,
                         ::testing::Values(Method::kRing, Method::kAllGather, Method::kHeads,
                                           Method::kDecode));

}  // namespace
}  // namespace multihead::distributed
