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

struct SplitParams {
  ForwardParams forward;
  int64_t pool_pages = 0;  // pages of a paged cache; tokens with other page numbers are hidden
  bool mma = false;        // products through mma.sync; requires why_not_mma() == null
  int64_t splits = 0;      // number of KV splits
  int64_t split_keys = 0;  // keys per split, a multiple of key_step()
  // (B, H_kv, rows of a key/value head, splits, d_v + 2), with scores s, their maximum m and the
  // factor f = scale.softmax. Per row and split: sum of exp(f (s - m)) v, then m, then sum of exp(f
  // (s
  // - m)).
  float* partials = nullptr;

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
  const rules::AttentionParams& call = params.forward.call;
  return static_cast<uint64_t>(call.batch * call.heads * call.queries * params.splits) *
         static_cast<uint64_t>(call.value_dim + 2) * sizeof(float);
}

// Chooses the number of splits: about two blocks per multiprocessor, but at most N_k / 128 splits,
// rounded up. Depends only on the shape and the device.
inline void cut_keys(SplitParams& params, const Device& device) {
  const rules::AttentionParams& call = params.forward.call;
  const int64_t blocks = params.tiles(), step = params.key_step();
  constexpr int64_t kLeastKeys = 128;  // per split, before the split size is rounded
  const int64_t most = (call.keys + kLeastKeys - 1) / kLeastKeys;
  const int64_t wanted = blocks == 0 ? 1 : (2 * device.multiprocessors + blocks - 1) / blocks;
  const int64_t splits = rules::limited(wanted, 1, rules::most_of(most, 1));
  const int64_t keys = (call.keys + splits - 1) / splits;
  params.split_keys = (keys + step - 1) / step * step;
  if (params.split_keys == 0) params.split_keys = step;
  params.splits = rules::most_of((call.keys + params.split_keys - 1) / params.split_keys, 1);
}

}  // namespace multihead::cuda
