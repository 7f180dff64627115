// Attention of bf16 or f16 rows with every option, by mma.sync with sums in f32 (sm_80 and up): the
// algorithm of FlashAttention-2 (Dao, arXiv:2307.08691).
//
// A block takes 64 rows of the query heads that share a key/value head, 16 for each warp, and loops
// over 64 keys at a time (16 if rows are wider than 128). While it uses one tile, cp.async copies
// the next (two stages). Weights stay in registers: rounded to 16 bits, the sums of Q K^T have the
// layout that P V needs for its left operand.
//
// A hidden weight is 0, and 0 times a NaN or an infinity of V is NaN. The products do not check for
// this. If an output of the block is NaN, or a sum of weights is not sound, the block recomputes
// all its rows key by key and skips hidden keys. It stops when all outputs are NaN, so that inputs
// of NaN take no longer than others.
#include <cstddef>
#include <cstdint>

#include "cuda/divide.h"
#include "cuda/kernels.h"
#include "cuda/mma/options.h"
#include "cuda/mma/tile.h"
#include "cuda/params.h"
#include "cuda/rows.h"
#include "cuda/tiles.h"
#include "multihead/tensor.h"
#include "rules/lse.h"

namespace multihead::cuda {
namespace mma {
namespace {

// The keys that a row sees by position. With a whole QueryRow instead, the shared memory of sm_80
// would hold only one block at d 128 instead of two.
struct SeenKeys {
  uint32_t first = 0, last = 0;
};

// State of a block in shared memory, because registers are scarce.
struct BlockState {
  RowTile tile;
  int64_t group;         // query heads of a key/value head
  rules::KeyRange keys;  // union of the keys that its rows see
  SeenKeys rows[kRows];
  float sinks[kRows];  // -inf for none
  bool wrong[kWarps];  // the warp has rows to recompute
  bool ended[kWarps];  // later keys do not change the warp's recomputed rows
};

// Parameters that all threads of a block share. Row numbers are indices in the list of
// query rows of a key/value head.
struct BlockOfRows {
  const rules::AttentionParams& call;
  BlockState& state;

  __device__ __forceinline__ int64_t head_of(int64_t row) const {
    return state.tile.kv_head * state.group + divide(row, state.group).remainder;
  }
  __device__ __forceinline__ int64_t query_of(int64_t row) const {
    return divide(row, state.group).quotient;
  }
  // Index in the block of a thread's row: row lane / 4 of its warp for half 0, and 8 rows below for
  // half 1.
  __device__ __forceinline__ int index_of(int half) const {
    return warp() * kRowsOfWarp + lane() / 4 + 8 * half;
  }
  __device__ __forceinline__ int64_t row_of(int half) const {
    return state.tile.first_row + index_of(half);
  }
  // Keys that the row sees by position.
  __device__ __forceinline__ const SeenKeys& seen(int half) const {
    return state.rows[index_of(half)];
  }
  // True if all rows of this warp see all keys of a tile of `keys` keys from `first` on. Rows
  // beyond the last one are not stored, so they may see any. The first and the last visible key
  // never decrease as the query rises.
  __device__ __forceinline__ bool all_visible(int64_t first, int keys) const {
    const int first_of_warp = warp() * kRowsOfWarp;
    const auto last_of_warp = static_cast<int>(rules::least_of(
        first_of_warp + kRowsOfWarp - 1, state.tile.last_row - state.tile.first_row));
    return state.rows[last_of_warp].first <= first &&
           first + keys <= state.rows[first_of_warp].last;
  }
  // The keys of such a tile that a row sees by position.
  __device__ __forceinline__ KeyPart part(int half, int64_t first, int keys) const {
    return part_of({seen(half).first, seen(half).last}, first, keys);
  }
};

template <class T, int kWidth>
__device__ __forceinline__ void start_copy(const BlockOfRows& b, int64_t first, T* keys,
                                           T* values) {
  constexpr int kKeys = Tile<kWidth>::kKeys;
  const rules::AttentionParams& call = b.call;
  const auto copy = [&](const rules::StoredRows& rows, int64_t width, T* tile) {
    const int64_t start = rules::row_offset(rows.stride, b.state.tile.entry.batch,
                                            b.state.tile.kv_head, b.state.tile.entry.first_key);
    RowCopier<T, kWidth>::of(rows, start, width)
        .template copy<kKeys>(first, b.state.keys.last, tile);
  };
  copy(call.k, call.head_dim, keys);
  copy(call.v, call.value_dim, values);
  commit_copies();
}

// Hides the scores of keys that a row does not see by position, in a tile of keys that begins at
// `first`.
template <int kTiles>
__device__ __forceinline__ void hide_keys(const BlockOfRows& b, int64_t first,
                                          float (&scores)[kTiles][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const KeyPart part = b.part(half, first, 8 * kTiles);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (!part.contains(n * 8 + 2 * (lane() % 4) + i)) scores[n][2 * half + i] = -INFINITY;
      }
    }
  }
}

// One pass over all keys that the block sees. kOptions: the call has options besides visibility by
// position, sinks and a positive scale. With kSingly, the pass recomputes the rows that were not
// sound, and ends as soon as later keys can change neither their outputs nor their sums.
template <bool kSingly, bool kOptions, class T, int kWidth>
__device__ __forceinline__ void attend(const BlockOfRows& b, T* shared, Sums<kWidth>& sums,
                                       const Sound& sound) {
  using Shape = Tile<kWidth>;
  constexpr int kKeys = Shape::kKeys;
  const rules::AttentionParams& call = b.call;
  T* const stages = shared + Shape::kQueryElements;
  const float to_power = call.scale.softmax * kLog2E;
  const float unit = unit_of_scores<kOptions>(call);
  QueryOptions options{call, b.state.tile.entry};
  if constexpr (kOptions) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Rows beyond the last one have the addresses of the last one.
      const int64_t row = rules::least_of(b.row_of(half), b.state.tile.last_row);
      options.set(half, b.head_of(row), b.query_of(row));
    }
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sink = b.state.sinks[b.index_of(half)];
    sums.largest[half] = sink;
    // Four threads share a row and later add up their sums, so only one of them counts the sink.
    sums.weights[half] = sink != -INFINITY && lane() % 4 == 0 ? 1.0F : 0.0F;
  }
  each_of_fragment<kWidth / 8>([&](int n, int i) { sums.out[n][i] = 0.0F; });

  const int64_t end_key = b.state.keys.last;
  int stage = 0;
  if (!kSingly && b.state.keys.first < end_key) {
    start_copy<T, kWidth>(b, b.state.keys.first, stages, stages + Shape::kElements);
  }
  for (int64_t first = b.state.keys.first; first < end_key; first += kKeys) {
    T* const keys = stages + stage * 2 * Shape::kElements;
    T* const values = keys + Shape::kElements;
    const bool whole = b.all_visible(first, kKeys);
    const auto part = [&](int half) { return b.part(half, first, kKeys); };
    FragmentTerms<kKeys / 8> terms;
    // Load before the waits: the terms arrive during the waits and the product.
    if constexpr (kOptions) options.load(first, whole && !kSingly, part, terms);
    if (kSingly) {
      sync_threads();
      if (first != b.state.keys.first) {
        bool ended = true;
        for (const bool of_warp : b.state.ended) ended = ended && of_warp;
        if (ended) break;
      }
      start_copy<T, kWidth>(b, first, keys, values);
    }
    wait_copies<0>();
    // The tile has arrived, and every warp has used the other stage.
    sync_threads();
    if (!kSingly && first + kKeys < end_key) {
      stage ^= 1;
      T* const next = stages + stage * 2 * Shape::kElements;
      start_copy<T, kWidth>(b, first + kKeys, next, next + Shape::kElements);
    }

    float scores[kKeys / 8][4];
    multiply_keys<T, kWidth>(rows_of_warp<kWidth>(shared), keys, scores);
    if constexpr (kOptions) {
      options.template apply<false>(first, part, terms, scores, [](int, int, float) {});
    }
    if (!whole) hide_keys(b, first, scores);
    add_weights<kSingly>(scores, unit, to_power, sums);
    if constexpr (kOptions) {
      if (call.dropout.given()) {
        drop_weights<kSingly>(options.template kept<kKeys / 8>(first), scores);
      }
    }
    if constexpr (kSingly) {
      add_values_singly<T, kWidth>(
          scores, values,
          reinterpret_cast<float*>(stages + 2 * Shape::kElements) + warp() * kRowsOfWarp * kKeys,
          sums.out);
      bool ended = true;
      for (int half = 0; half < 2; ++half) {
        const bool of_row = (sound.row[half] || sums.weights[half] != sums.weights[half]) &&
                            all_nan(sums, half, call.value_dim);
        ended = ended && (of_row || b.seen(half).last <= first + kKeys);
      }
      const bool all = ballot(!ended) == 0;
      if (lane() == 0) b.state.ended[warp()] = all;
    } else {
      multiply_values<T, kWidth>(scores, values, sums.out);
    }
  }
}

// has_lse: rows whose LSE is already written.
template <class T, int kWidth>
__device__ __forceinline__ void write_rows(const BlockOfRows& b, const Sums<kWidth>& sums,
                                           const Sound& has_lse) {
  const rules::AttentionParams& call = b.call;
  const rules::WritableRows& to = call.out;
  // True if all columns are stored in aligned pairs of 4 bytes. In one loop with the other stores,
  // the code that the pairs skip took a tenth of a kernel's time: it was not in the cache.
  const bool in_pairs = to.type == kDTypeOf<T> && reinterpret_cast<uintptr_t>(to.data) % 4 == 0 &&
                        (to.stride[0] | to.stride[1] | to.stride[2] | call.value_dim) % 2 == 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    bool sound = false;
    const float sum = sum_of_row(sums, half, sound);
    const int64_t row = b.row_of(half);
    if (row > b.state.tile.last_row) continue;
    const int64_t query = b.state.tile.entry.first_query + b.query_of(row);
    if (call.lse.data != nullptr && lane() % 4 == 0 && !has_lse.row[half]) {
      *call.lse.row(b.state.tile.entry.batch, b.head_of(row), query) =
          rules::lse_of(sums.largest[half], call.scale.softmax, static_cast<double>(sum));
    }
    if (to.data == nullptr) continue;
    const float factor = sum == 0.0F ? 0.0F : call.dropout.scale / sum;
    const int64_t start =
        rules::row_offset(to.stride, b.state.tile.entry.batch, b.head_of(row), query);
    const int own = 2 * (lane() % 4), width = static_cast<int>(call.value_dim);
    if (in_pairs) {
      T* const row_out = static_cast<T*>(to.data) + start + own;
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n) {
        const uint32_t pair =
            pack<T>(sums.out[n][2 * half] * factor, sums.out[n][2 * half + 1] * factor);
        if (n * 8 + own < width) *reinterpret_cast<uint32_t*>(row_out + n * 8) = pair;
      }
      continue;
    }
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int c = n * 8 + own + i;
        if (c < width) {
          set_element(to.data, to.type, start + c, sums.out[n][2 * half + i] * factor);
        }
      }
    }
  }
}

// Not inlined, so that it takes no registers from the usual pass.
template <bool kOptions, class T, int kWidth>
__device__ __noinline__ void recompute(const BlockOfRows& b, T* shared, Sound sound) {
  Sums<kWidth> sums;
  attend<true, kOptions, T, kWidth>(b, shared, sums, sound);
  write_rows<T, kWidth>(b, sums, sound);
}

// Blocks of a multiprocessor for which its shared memory is enough, from sm_80 on.
template <int kWidth>
inline constexpr int kBlocks = kWidth <= 64    ? 3
                               : kWidth <= 128 ? 2
                                               : 1;

template <bool kOptions, class T, int kWidth>
__global__ void __launch_bounds__(kThreads, kBlocks<kWidth>)
    forward_mma(const __grid_constant__ ForwardParams p) {
  using Shape = Tile<kWidth>;
  const rules::AttentionParams& call = p.call;
  T* const shared = reinterpret_cast<T*>(shared_memory());
  auto* const state = reinterpret_cast<BlockState*>(shared + Shape::kAllElements);
  {
    const RowTile tile = row_tile<kRows>(p);
    if (tile.empty()) return;
    const int64_t group = divide(call.heads, call.kv_heads).quotient;
    if (thread_index() == 0) {
      state->tile = tile;
      state->group = group;
      state->keys = tile.keys(group, Shape::kKeys);
    }
  }
  sync_threads();
  const RowTile& tile = state->tile;
  const BlockOfRows b{call, *state};
  if (thread_index() < kRows) {
    const int64_t row = tile.first_row + thread_index();
    SeenKeys seen_keys;  // none, if there is no row
    float sink = -INFINITY;
    if (row <= tile.last_row) {
      const rules::KeyRange keys = tile.entry.visibility.seen_by(b.query_of(row));
      seen_keys = {static_cast<uint32_t>(rules::limited(keys.first, 0, UINT32_MAX)),
                   static_cast<uint32_t>(rules::limited(keys.last, 0, UINT32_MAX))};
      const int64_t head = b.head_of(row);
      if (call.sinks != nullptr) sink = call.sinks[head] / call.scale.softmax;
    }
    state->rows[thread_index()] = seen_keys;
    state->sinks[thread_index()] = sink;
  }
  sync_threads();

  // These copies belong to the group of the first tile. Without a first tile, nothing would wait
  // for them.
  if (b.state.keys.first < b.state.keys.last) {
    copy_tile<T, kWidth, kRows>(call.q.data, static_cast<int>(call.head_dim), shared, [&](int r) {
      const int64_t row = tile.first_row + r;
      if (row > tile.last_row) return int64_t{-1};
      return rules::row_offset(call.q.stride, tile.entry.batch, b.head_of(row),
                               tile.entry.first_query + b.query_of(row));
    });
  }
  Sums<kWidth> sums;
  attend<false, kOptions, T, kWidth>(b, shared, sums, {});

  Sound sound{};
  bool wrong = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum_of_row(sums, half, sound.row[half]);
    wrong = wrong || (is_wrong(sums, half, sound) && b.row_of(half) <= tile.last_row);
  }
  const bool of_warp = ballot(wrong) != 0;
  if (lane() == 0) state->wrong[warp()] = of_warp;
  write_rows<T, kWidth>(b, sums, {});
  sync_threads();
  bool any = false;
  for (const bool one : state->wrong) any = any || one;
  if (any) recompute<kOptions, T, kWidth>(b, shared, sound);
}

template <bool kOptions, class T, int kWidth>
int launch_of_width(const ForwardParams& params, StreamHandle stream) {
  constexpr size_t kBytes = Tile<kWidth>::kAllElements * sizeof(T) + sizeof(BlockState);
  static_assert(kBytes <= kLeastSharedBytes);
  return launch_tiles(query_axis(params, kRows, params.call.group()), params.call.kv_heads,
                      kThreads, kBytes, stream, forward_mma<kOptions, T, kWidth>, params);
}

template <bool kOptions, class T>
int launch_width(const ForwardParams& params, StreamHandle stream) {
  const int64_t width = rules::most_of(params.call.head_dim, params.call.value_dim);
  if (width <= 64) return launch_of_width<kOptions, T, 64>(params, stream);
  if (width <= 128) return launch_of_width<kOptions, T, 128>(params, stream);
  static_assert(kMaxWidth <= 256);
  return launch_of_width<kOptions, T, 256>(params, stream);
}

template <class T>
int launch_type(const ForwardParams& params, StreamHandle stream) {
  return has_options(params.call) ? launch_width<true, T>(params, stream)
                                  : launch_width<false, T>(params, stream);
}

}  // namespace
}  // namespace mma

int launch_forward_mma(const ForwardParams& params, const Device&, StreamHandle stream) {
  return params.call.q.type == DType::kF16 ? mma::launch_type<Float16>(params, stream)
                                           : mma::launch_type<BFloat16>(params, stream);
}

}  // namespace multihead::cuda
