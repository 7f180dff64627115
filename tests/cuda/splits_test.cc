// The number of splits of decoding's keys.
#include "cuda/splits.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "cuda/kernels.h"

namespace multihead::cuda::testing {
namespace {

constexpr Device kH100{.compute_capability = 90, .multiprocessors = 132, .shared_bytes = 227 << 10};
constexpr Device kRtx4090{
    .compute_capability = 89, .multiprocessors = 128, .shared_bytes = 99 << 10};

SplitParams cut(int64_t batch, int64_t kv_heads, int64_t keys, const Device& device, bool mma) {
  SplitParams params;
  rules::AttentionParams& call = params.forward.call;
  call.batch = batch;
  call.heads = 4 * kv_heads;
  call.kv_heads = kv_heads;
  call.queries = 1;
  call.keys = keys;
  call.head_dim = call.value_dim = 128;
  params.mma = mma;
  cut_keys(params, device);
  return params;
}

int64_t blocks_of(const SplitParams& params) { return params.tiles() * params.splits; }

TEST(CudaSplits, CoverAllKeysOnce) {
  for (const bool mma : {false, true}) {
    for (const int64_t batch : {1, 3, 16, 64, 500}) {
      for (const int64_t keys : {0, 1, 63, 64, 128, 129, 1000, 8192, 100000}) {
        const SplitParams params = cut(batch, 8, keys, kH100, mma);
        ASSERT_GT(params.split_keys, 0);
        ASSERT_EQ(params.split_keys % params.key_step(), 0);
        ASSERT_GE(params.splits * params.split_keys, keys);
        if (keys > 0) {
          ASSERT_LT((params.splits - 1) * params.split_keys, keys);
        } else {
          ASSERT_EQ(params.splits, 1);
        }
      }
    }
  }
}

TEST(CudaSplits, FillWholeWaves) {
  // Two blocks on each multiprocessor make 264 places; one wave takes nearly all.
  for (const int64_t batch : {1, 2, 4, 8, 16}) {
    const int64_t blocks = blocks_of(cut(batch, 8, 8192, kH100, true));
    EXPECT_LE(blocks, 264) << batch;
    EXPECT_GE(blocks, 240) << batch;
  }
  // With 384 blocks, splits of a third would take two waves; halves take one.
  EXPECT_EQ(cut(16, 8, 8192, kH100, true).splits, 2);
  // 99 KB hold one block of mma.sync.
  EXPECT_EQ(blocks_of(cut(1, 8, 8192, kRtx4090, true)), 128);
}

TEST(CudaSplits, AreNotNeededWithoutIdleMultiprocessors) {
  EXPECT_EQ(cut(64, 8, 8192, kH100, true).splits, 1);
  EXPECT_EQ(cut(1, 8, 100, kH100, true).splits, 1);
}

}  // namespace
}  // namespace multihead::cuda::testing
