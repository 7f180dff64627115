// Attention of bf16 or f16 rows with every option, by mma.sync with sums in f32 (sm_80 and up): the
// algorithm of FlashAttention-2 (Dao, arXiv:2307.08691).
//
// A block takes 64 rows of the query heads that share a key/value head, 16 for each warp, and loops
// over 64 keys at a time (16 if rows are wider than 128). While it uses one tile, cp.async copies
// the next (two stages). Weights stay in registers: rounded to 16 bits, the sums of Q K^T have the
// layout that P V needs for its left operand.
//
// A hidden weight is 0, and 0 times a NaN or an infinity of V is NaN. The products do not check for
// this. If an output of the block is NaN, the block recomputes all its rows key by key and skips
// hidden keys.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/mma/tile.h"
#include "cuda/row_tile.h"
#include "cuda/rows.h"
#include "multihead/tensor.h"
#include "rules/lse.h"

namespace multihead::cuda {
namespace mma {
namespace {

// The keys that a row sees by position. Calls without options store this instead of QueryRow: with
// 64 QueryRow, the shared memory of sm_80 holds only one block at d 128 instead of two.
struct SeenKeys {
  uint32_t first = 0, last = 0;
};

// State of a block in shared memory, because registers are scarce.
template <bool kOptions>
struct BlockState {
  Entry entry;
  std::conditional_t<kOptions, QueryRow, SeenKeys> rows[kRows];
  float sinks[kRows];  // -inf for none
  uint32_t lanes_with_nan[kWarps];
};

// Parameters that all threads of a block share. Row numbers are indices in the list of
// query rows of a key/value head.
template <bool kOptions>
struct BlockOfRows {
  const rules::AttentionParams& call;
  const BlockState<kOptions>& state;
  int64_t kv_head, first_row, last_row;
  int64_t first_key, end_key;  // union of the keys its rows see

  __device__ __forceinline__ int64_t head_of(int64_t row) const {
    return kv_head * call.group() + row % call.group();
  }
  __device__ __forceinline__ int64_t query_of(int64_t row) const { return row / call.group(); }
  // Index in the block of a thread's row: row lane / 4 of its warp for half 0, and 8 rows below for
  // half 1.
  __device__ __forceinline__ int index_of(int half) const {
    return warp() * kRowsOfWarp + lane() / 4 + 8 * half;
  }
  __device__ __forceinline__ int64_t row_of(int half) const { return first_row + index_of(half); }
  // Keys that the row sees by position.
  __device__ __forceinline__ rules::KeyRange seen(int half) const {
    const auto& row = state.rows[index_of(half)];
    if constexpr (kOptions) {
      return row.seen;
    } else {
      return {row.first, row.last};
    }
  }
};

template <class T, int kWidth, bool kOptions>
__device__ __forceinline__ void start_copy(const BlockOfRows<kOptions>& b, int64_t first, T* keys,
                                           T* values) {
  constexpr int kKeys = Tile<kWidth>::kKeys;
  const rules::AttentionParams& call = b.call;
  const auto copy = [&](const rules::StoredRows& rows, int64_t width, T* tile) {
    const int64_t start = rules::row_offset(rows.stride, b.state.entry.batch, b.kv_head,
                                            b.state.entry.first_key + first);
    const int64_t left = b.end_key - first;
    copy_tile<T, kWidth, kKeys>(rows.data, static_cast<int>(width), tile, [&](int row) {
      return row < left ? start + row * rows.stride[2] : int64_t{-1};
    });
  };
  copy(call.k, call.head_dim, keys);
  copy(call.v, call.value_dim, values);
  commit_copies();
}

// One pass over all keys that the block sees. kOptions: the call has options besides visibility by
// position and sinks.
template <bool kSingly, bool kOptions, class T, int kWidth>
__device__ __forceinline__ void attend(const BlockOfRows<kOptions>& b, T* shared,
                                       Sums<kWidth>& sums) {
  using Shape = Tile<kWidth>;
  constexpr int kKeys = Shape::kKeys;
  const rules::AttentionParams& call = b.call;
  T* const stages = shared + Shape::kQueryElements;
  const float to_score = call.scale.queries * call.scale.scores;
  const float to_power = call.scale.softmax * kLog2E;

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sink = b.state.sinks[b.index_of(half)];
    sums.largest[half] = sink;
    // Four threads share a row and later add up their sums, so only one of them counts the sink.
    sums.weights[half] = sink != -INFINITY && lane() % 4 == 0 ? 1.0F : 0.0F;
  }
#pragma unroll
  for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums.out[n][i] = 0.0F;
  }

  int stage = 0;
  if (!kSingly && b.first_key < b.end_key) {
    start_copy<T, kWidth>(b, b.first_key, stages, stages + Shape::kElements);
  }
  for (int64_t first = b.first_key; first < b.end_key; first += kKeys) {
    T* const keys = stages + stage * 2 * Shape::kElements;
    T* const values = keys + Shape::kElements;
    if (kSingly) {
      sync_threads();
      start_copy<T, kWidth>(b, first, keys, values);
    }
    wait_copies<0>();
    // The tile has arrived, and every warp has used the other stage.
    sync_threads();
    if (!kSingly && first + kKeys < b.end_key) {
      stage ^= 1;
      T* const next = stages + stage * 2 * Shape::kElements;
      start_copy<T, kWidth>(b, first + kKeys, next, next + Shape::kElements);
    }

    float scores[kKeys / 8][4];
    multiply_keys<T, kWidth>(rows_of_warp<kWidth>(shared), keys, static_cast<int>(call.head_dim),
                             scores);

    // Keys of the tile that each row sees by position: begin .. end - 1.
    int begin[2], end[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const rules::KeyRange seen = b.seen(half);
      begin[half] = static_cast<int>(rules::limited(seen.first - first, 0, kKeys));
      end[half] = static_cast<int>(rules::limited(seen.last - first, 0, kKeys));
    }
    float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int half = i / 2;
        const int at = n * 8 + 2 * (lane() % 4) + i % 2;
        bool visible = at >= begin[half] && at < end[half];
        float score = scores[n][i] * to_score;
        if constexpr (kOptions) {
          const QueryRow& row = b.state.rows[b.index_of(half)];
          visible = visible && sees(call, row, first + at);
          if (visible) {
            score = biased_score(call, row, first + at,
                                 capped_score(call, scores[n][i] * call.scale.queries));
          }
        }
        if (!visible) score = -INFINITY;
        scores[n][i] = score;
        // A NaN stays the maximum.
        if (!(score <= most[half])) most[half] = score;
      }
    }
    add_weights<kSingly>(scores, most, to_power, sums, [&](int half, int key) {
      if (!kOptions || !call.dropout.given()) return true;
      const int64_t row = b.row_of(half);
      return keeps(call, b.state.entry, b.head_of(row), b.query_of(row), first + key);
    });
    if (kSingly) {
      add_values_singly<T, kWidth>(
          scores, values,
          reinterpret_cast<float*>(stages + 2 * Shape::kElements) + warp() * kRowsOfWarp * kKeys,
          sums.out);
    } else {
      multiply_values<T, kWidth>(scores, values, static_cast<int>(call.value_dim), sums.out);
    }
  }
}

template <class T, int kWidth, bool kOptions>
__device__ __forceinline__ void write_rows(const BlockOfRows<kOptions>& b,
                                           const Sums<kWidth>& sums) {
  const rules::AttentionParams& call = b.call;
  const rules::WritableRows& to = call.out;
  // True if two adjacent columns fit in one aligned 4-byte store.
  const bool in_pairs = to.type == kDTypeOf<T> && reinterpret_cast<uintptr_t>(to.data) % 4 == 0 &&
                        (to.stride[0] | to.stride[1] | to.stride[2]) % 2 == 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = sums.weights[half];
    sum += shuffle_xor(sum, 1);
    sum += shuffle_xor(sum, 2);
    const int64_t row = b.row_of(half);
    if (row > b.last_row) continue;
    const int64_t query = b.state.entry.first_query + b.query_of(row);
    if (call.lse.data != nullptr && lane() % 4 == 0) {
      *call.lse.row(b.state.entry.batch, b.head_of(row), query) =
          rules::lse_of(sums.largest[half], call.scale.softmax, static_cast<double>(sum));
    }
    if (to.data == nullptr) continue;
    const float factor = sum == 0.0F ? 0.0F : call.dropout.scale / sum;
    const int64_t start = rules::row_offset(to.stride, b.state.entry.batch, b.head_of(row), query);
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
      const int c = n * 8 + 2 * (lane() % 4);
      const float first = sums.out[n][2 * half] * factor;
      const float second = sums.out[n][2 * half + 1] * factor;
      if (in_pairs && c + 1 < call.value_dim) {
        *reinterpret_cast<uint32_t*>(static_cast<T*>(to.data) + start + c) = pack<T>(first, second);
        continue;
      }
      if (c < call.value_dim) set_element(to.data, to.type, start + c, first);
      if (c + 1 < call.value_dim) set_element(to.data, to.type, start + c + 1, second);
    }
  }
}

// Not inlined, so that it takes no registers from the usual pass.
template <bool kOptions, class T, int kWidth>
__device__ __noinline__ void recompute(const BlockOfRows<kOptions>& b, T* shared) {
  Sums<kWidth> sums;
  attend<true, kOptions, T, kWidth>(b, shared, sums);
  write_rows<T, kWidth>(b, sums);
}

template <bool kOptions, class T, int kWidth>
__global__ void __launch_bounds__(kThreads) forward_half(const __grid_constant__ ForwardParams p) {
  using Shape = Tile<kWidth>;
  const rules::AttentionParams& call = p.call;
  const RowTile tile = row_tile<kRows>(p);
  if (tile.empty()) return;
  const auto& [entry, kv_head, first_row, last_row] = tile;
  T* const shared = reinterpret_cast<T*>(shared_memory());
  auto* const state = reinterpret_cast<BlockState<kOptions>*>(shared + Shape::kAllElements);
  const rules::KeyRange seen = tile.keys(call.group(), Shape::kKeys);
  const BlockOfRows<kOptions> b{call, *state, kv_head, first_row, last_row, seen.first, seen.last};
  if (thread_index() == 0) state->entry = entry;
  if (thread_index() < kRows) {
    const int64_t row = first_row + thread_index();
    auto& described = state->rows[thread_index()];
    described = {};  // sees no key
    float sink = -INFINITY;
    if (row <= last_row) {
      const int64_t head = b.head_of(row);
      if constexpr (kOptions) {
        described = query_row(call, entry, head, b.query_of(row));
      } else {
        const rules::KeyRange keys = entry.visibility.seen_by(b.query_of(row));
        described = {static_cast<uint32_t>(rules::limited(keys.first, 0, UINT32_MAX)),
                     static_cast<uint32_t>(rules::limited(keys.last, 0, UINT32_MAX))};
      }
      if (call.sinks != nullptr) sink = call.sinks[head] / call.scale.softmax;
    }
    state->sinks[thread_index()] = sink;
  }
  sync_threads();

  // These copies belong to the group of the first tile. Without a first tile, nothing would wait
  // for them.
  if (b.first_key < b.end_key) {
    copy_tile<T, kWidth, kRows>(call.q.data, static_cast<int>(call.head_dim), shared, [&](int r) {
      const int64_t row = first_row + r;
      if (row > last_row) return int64_t{-1};
      return rules::row_offset(call.q.stride, entry.batch, b.head_of(row),
                               entry.first_query + b.query_of(row));
    });
  }
  Sums<kWidth> sums;
  attend<false, kOptions, T, kWidth>(b, shared, sums);

  bool has_nan = false;
#pragma unroll
  for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) has_nan = has_nan || sums.out[n][i] != sums.out[n][i];
  }
  const uint32_t lanes = ballot(has_nan);
  if (lane() == 0) state->lanes_with_nan[warp()] = lanes;
  sync_threads();
  uint32_t any = 0;
  for (const uint32_t of_warp : state->lanes_with_nan) any |= of_warp;
  if (any != 0) return recompute<kOptions, T, kWidth>(b, shared);
  write_rows<T, kWidth>(b, sums);
}

template <bool kOptions, class T, int kWidth>
int launch_tiles(const ForwardParams& params, StreamHandle stream) {
  return launch_row_tiles<kRows>(
      params.call, kThreads, Tile<kWidth>::kAllElements * sizeof(T) + sizeof(BlockState<kOptions>),
      stream, forward_half<kOptions, T, kWidth>, params);
}

template <bool kOptions, class T>
int launch_width(const ForwardParams& params, StreamHandle stream) {
  const int64_t width = rules::most_of(params.call.head_dim, params.call.value_dim);
  if (width <= 64) return launch_tiles<kOptions, T, 64>(params, stream);
  if (width <= 128) return launch_tiles<kOptions, T, 128>(params, stream);
  static_assert(kMaxWidth <= 256);
  return launch_tiles<kOptions, T, 256>(params, stream);
}

template <class T>
int launch_type(const ForwardParams& params, StreamHandle stream) {
  const rules::AttentionParams& call = params.call;
  const bool has_options = call.changes_scores() || call.mask.given() || call.dropout.given();
  return has_options ? launch_width<true, T>(params, stream)
                     : launch_width<false, T>(params, stream);
}

}  // namespace
}  // namespace mma

int launch_forward_half(const ForwardParams& params, const Device&, StreamHandle stream) {
  return params.call.q.type == DType::kF16 ? mma::launch_type<Float16>(params, stream)
                                           : mma::launch_type<BFloat16>(params, stream);
}

}  // namespace multihead::cuda
