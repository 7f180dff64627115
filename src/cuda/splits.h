// Attention of few query rows over many keys, in tensors or in a cache. The keys are split among
// blocks, and the results of the splits are merged (flash-decoding, Dao et al., 2023).
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/params.h"

namespace multihead::cuda {

// f32/decode.cu: query rows of a key/value head per block, and keys per step.
inline constexpr int64_t kDecodeRows = 8;
inline constexpr int64_t kDecodeKeyStep = 32;
// mma/decode.cu: query rows per block, and a multiple of the keys per step.
inline constexpr int64_t kDecodeMmaRows = 16;
inline constexpr int64_t kDecodeMmaKeyStep = 64;
// The most shared memory of a block of mma/decode.cu.
inline constexpr int64_t kDecodeMmaBytes = 76 << 10;

struct SplitParams {
  ForwardParams forward;
  int64_t pool_pages = 0;  // pages of a paged cache; tokens with other page numbers are hidden
  bool mma = false;        // products through mma.sync; requires why_not_mma() == null
  int64_t group = 1;       // call.group()
  int64_t splits = 0;      // number of KV splits
  int64_t split_keys = 0;  // keys per split, a multiple of key_step()
  // Kernels are launched before the previous ones have ended, and wait for them: their launches
  // then take no time of their own.
  bool early = false;
  // (B, H_kv, rows of a key/value head, splits, d_v + 2). With scores s, their maximum m and the
  // factor f = scale.softmax, a row of a split has the sum of exp(f (s - m)) v, then m, then the
  // sum of exp(f (s - m)). Not used without a merge.
  float* partials = nullptr;
  uint64_t* ended = nullptr;  // (tiles()), if counts(); see merge_parts.h

  // False if the kernel of the splits writes out and lse itself, without partial results.
  constexpr bool merges() const { return !mma || splits > 1; }
  // True if the last block of a tile merges its splits; false if a kernel of its own does, which
  // takes as long as about six rounds of loads of a warp (planned, not measured).
  constexpr bool counts() const {
    const rules::AttentionParams& call = forward.call;
    const bool wide = rules::most_of(call.head_dim, call.value_dim) > 128;
    const int64_t rows = rules::least_of(call.queries * call.group(), rows_of_block());
    const int64_t warps = mma && wide ? 2 : 4;      // of the block
    const int64_t at_once = mma && !wide ? 16 : 8;  // splits, at least: kPartsAtOnce
    const int64_t rounds = (rows + warps - 1) / warps * ((splits + at_once - 1) / at_once);
    return merges() && rounds <= 6;
  }
  constexpr int64_t rows_of_block() const { return mma ? kDecodeMmaRows : kDecodeRows; }
  constexpr int64_t key_step() const { return mma ? kDecodeMmaKeyStep : kDecodeKeyStep; }
  // Blocks per split.
  constexpr int64_t tiles() const {
    const rules::AttentionParams& call = forward.call;
    const int64_t rows = call.queries * call.group();
    return call.batch * call.kv_heads * ((rows + rows_of_block() - 1) / rows_of_block());
  }
};
static_assert(std::is_trivially_copyable_v<SplitParams> && sizeof(SplitParams) <= 4096);

inline uint64_t partial_bytes(const SplitParams& params) {
  if (!params.merges()) return 0;
  const rules::AttentionParams& call = params.forward.call;
  return static_cast<uint64_t>(call.batch * call.heads * call.queries * params.splits) *
         static_cast<uint64_t>(call.value_dim + 2) * sizeof(float);
}

// Blocks that run at the same time: two on a multiprocessor, if its shared memory is enough.
inline int64_t blocks_at_once(const SplitParams& params, const Device& device) {
  const bool one = params.mma && device.shared_bytes < 2 * kDecodeMmaBytes;
  return int64_t{device.multiprocessors} * (one ? 1 : 2);
}

// Chooses the number of splits. Blocks run in waves of blocks_at_once(); a wave that is not full
// takes as long as a full one. So the number with the least waves * keys of a split is the fastest,
// where the work before and after a block's loop, and the merge, count as keys. Depends only on the
// shape and the device.
inline void cut_keys(SplitParams& params, const Device& device) {
  const rules::AttentionParams& call = params.forward.call;
  constexpr int64_t kLeastKeys = 64;  // per split, before the split size is rounded
  constexpr int64_t kFixedKeys = 128;
  constexpr int64_t kMergeKeys = 192;  // of the merge; planned, not measured
  const int64_t blocks = rules::most_of(params.tiles(), 1), step = params.key_step();
  const int64_t at_once = rules::most_of(blocks_at_once(params, device), 1);
  const auto ceiling = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  params.group = call.group();
  params.early = device.early_launches;
  const int64_t most = rules::most_of(ceiling(call.keys, kLeastKeys), 1);
  // More splits than fill two waves only make the merge longer.
  const int64_t enough = rules::least_of(most, ceiling(2 * at_once, blocks));
  int64_t least_time = 0;
  for (int64_t splits = 1; splits <= enough; ++splits) {
    const int64_t keys = rules::most_of(ceiling(ceiling(call.keys, splits), step), 1) * step;
    const int64_t in_use = rules::most_of(ceiling(call.keys, keys), 1);
    const int64_t time =
        ceiling(blocks * in_use, at_once) * (keys + kFixedKeys) + (in_use > 1 ? kMergeKeys : 0);
    if (splits > 1 && time >= least_time) continue;
    least_time = time;
    params.split_keys = keys;
    params.splits = in_use;
  }
}

}  // namespace multihead::cuda
