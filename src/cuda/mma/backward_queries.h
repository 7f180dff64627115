// d_q through mma.sync: a block keeps 64 query rows of the heads that share a key/value head, and
// loops over the keys that they see.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cuda/backward_pair.h"
#include "cuda/backward_params.h"
#include "cuda/backward_singly.h"
#include "cuda/device/device.h"
#include "cuda/kernels.h"
#include "cuda/mma/backward_tile.h"
#include "cuda/mma/options.h"
#include "cuda/mma/tile.h"
#include "cuda/params.h"
#include "cuda/tiles.h"
#include "multihead/tensor.h"
#include "rules/attention_params.h"
#include "rules/visibility.h"

namespace multihead::cuda::mma {

// State of a block in shared memory, because registers are scarce.
struct QueriesState {
  Entry entry;
  struct Row {
    int head = 0;
    uint32_t query = 0;
    uint32_t first = 0, last = 0;  // keys that it sees by position; none if there is no row
    float reference = 0.0F, delta = 0.0F;
  } rows[kRows];
};

template <bool kOptions, class T, int kWidth>
struct QueriesBlock {
  using Shape = GradientTile<kWidth>;
  static constexpr int kStep = Shape::kStep;

  const BackwardParams& p;
  const RowTile& tile;
  T* shared;
  const QueriesState& state;
  rules::KeyRange keys;  // union of the keys that its rows see; `first` is a multiple of kStep

  __device__ __forceinline__ int index_of(int half) const {
    return warp() * kRowsOfWarp + lane() / 4 + 8 * half;
  }

  __device__ __forceinline__ void copy_queries() const {
    const rules::AttentionParams& call = p.forward.call;
    const auto copy = [&](const rules::StoredRows& from, int64_t width, T* to) {
      copy_tile<T, kWidth, kRows>(from.data, static_cast<int>(width), to, [&](int r) {
        if (tile.first_row + r > tile.last_row) return int64_t{-1};
        return rules::row_offset(from.stride, state.entry.batch, state.rows[r].head,
                                 state.entry.first_query + state.rows[r].query);
      });
    };
    copy(call.q, call.head_dim, shared);
    copy(p.d_out, call.value_dim, shared + Shape::kKeptElements);
  }

  __device__ __forceinline__ void start_copy(int64_t first, int stage) const {
    const rules::AttentionParams& call = p.forward.call;
    T* const passing = passing_rows<T, kWidth>(shared, stage);
    const auto copy = [&](const rules::StoredRows& from, int64_t width, T* to) {
      const int64_t start =
          rules::row_offset(from.stride, state.entry.batch, tile.kv_head, state.entry.first_key);
      RowCopier<T, kWidth>::of(from, start, width).template copy<kStep>(first, keys.last, to);
    };
    copy(call.k, call.head_dim, passing);
    copy(call.v, call.value_dim, passing + Shape::kPassingElements);
    commit_copies();
  }

  // True if all rows of this warp see all keys of a step. Rows beyond the last one are not stored,
  // so they may see any. The first and the last visible key never decrease as the query rises.
  __device__ __forceinline__ bool all_visible(int64_t first) const {
    const int first_row = warp() * kRowsOfWarp;
    const auto last_row = static_cast<int>(
        rules::least_of(first_row + kRowsOfWarp - 1, tile.last_row - tile.first_row));
    return state.rows[last_row].first <= first && first + kStep <= state.rows[first_row].last;
  }

  // The options of a thread's rows. Rows beyond the last one have the addresses of the last one.
  __device__ __forceinline__ QueryOptions options() const {
    QueryOptions options{p.forward.call, state.entry};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t at = rules::least_of(index_of(half), tile.last_row - tile.first_row);
      options.set(half, state.rows[at].head, state.rows[at].query);
    }
    return options;
  }
  // The keys of a step that a thread's row sees by position.
  __device__ __forceinline__ KeyPart part(int half, int64_t first) const {
    const QueriesState::Row& row = state.rows[index_of(half)];
    return part_of({row.first, row.last}, first, kStep);
  }

  // Turns gradients of weights into gradients of products; 0 for a hidden pair.
  __device__ __forceinline__ void differentiate(const float (&products)[Shape::kTiles][4],
                                                float (&gradients)[Shape::kTiles][4]) const {
    const WeightFactors factors = weight_factors(p.forward.call.scale);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const QueriesState::Row& row = state.rows[index_of(half)];
      const float shift = row.reference * factors.of_reference, delta = row.delta;
#pragma unroll
      for (int n = 0; n < Shape::kTiles; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          const float weight = exp2_approx(fmaf(products[n][i], factors.of_product, -shift));
          gradients[n][i] = weight * (gradients[n][i] - delta);
        }
      }
    }
  }
  // Computes the gradients of products for a call with options. Also turns products into scores.
  __device__ __forceinline__ void differentiate(const QueryOptions& options, int64_t first,
                                                const FragmentTerms<Shape::kTiles>& terms,
                                                float (&products)[Shape::kTiles][4],
                                                float (&gradients)[Shape::kTiles][4]) const {
    const rules::AttentionParams& call = p.forward.call;
    if (call.dropout.given()) {
      scale_kept(options.template kept<Shape::kTiles>(first), call.dropout.scale, gradients);
    }
    each_of_fragment<Shape::kTiles>(
        [&](int n, int i) { gradients[n][i] -= state.rows[index_of(i / 2)].delta; });
    options.template apply<true>(
        first, [&](int half) { return part(half, first); }, terms, products,
        [&](int n, int i, float ratio) { gradients[n][i] *= 1.0F - ratio * ratio; });
    const float unit = unit_of_scores<true>(call), to_power = call.scale.softmax * kLog2E;
    each_of_fragment<Shape::kTiles>([&](int n, int i) {
      const float reference = state.rows[index_of(i / 2)].reference;
      const float weight = exp2_approx(fmaf(products[n][i], unit, -reference) * to_power);
      gradients[n][i] = products[n][i] == -INFINITY ? 0.0F : weight * gradients[n][i];
    });
  }

  // Clears the gradients of pairs that are not visible by position.
  __device__ __forceinline__ void hide(int64_t first, float (&gradients)[Shape::kTiles][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const KeyPart seen = part(half, first);
#pragma unroll
      for (int n = 0; n < Shape::kTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (!seen.contains(n * 8 + 2 * (lane() % 4) + i)) gradients[n][2 * half + i] = 0.0F;
        }
      }
    }
  }
};

// Not inlined, so that it takes no registers from the usual computation. A template, so that
// several .cu files may include this header.
template <class Params>
__device__ __noinline__ void write_query(const Params& p, const Entry& entry, int64_t head,
                                         int64_t query) {
  write_query_singly(p, entry, head, query);
}

template <bool kOptions, class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    backward_queries(const __grid_constant__ BackwardParams p) {
  using Shape = GradientTile<kWidth>;
  constexpr int kStep = Shape::kStep;
  const rules::AttentionParams& call = p.forward.call;
  let_next_kernel_start();
  const RowTile tile = row_tile<kRows>(p.forward);
  if (tile.empty()) {
    wait_for_previous_kernel();
    return;
  }
  T* const shared = reinterpret_cast<T*>(shared_memory());
  auto& state = *reinterpret_cast<QueriesState*>(shared + Shape::kAllElements);
  const QueriesBlock<kOptions, T, kWidth> b{p, tile, shared, state, tile.keys(call.group(), kStep)};
  if (thread_index() == 0) state.entry = tile.entry;
  if (thread_index() < kRows) {
    const int64_t row = tile.first_row + thread_index();
    QueriesState::Row described;
    if (row <= tile.last_row) {
      const BackwardRow whole = backward_row(
          p, tile.entry, tile.kv_head * call.group() + row % call.group(), row / call.group());
      const rules::KeyRange& seen = whole.row.seen;
      described = {static_cast<int>(whole.head),
                   static_cast<uint32_t>(whole.query),
                   static_cast<uint32_t>(rules::limited(seen.first, 0, UINT32_MAX)),
                   static_cast<uint32_t>(rules::limited(seen.last, 0, UINT32_MAX)),
                   whole.reference,
                   whole.delta};
    }
    state.rows[thread_index()] = described;
  }
  sync_threads();

  const QueryOptions options = b.options();
  float d_queries[kWidth / 8][4];
  clear(d_queries);
  int stage = 0;
  if (b.keys.first < b.keys.last) {
    b.copy_queries();
    b.start_copy(b.keys.first, stage);
  }
  for (int64_t first = b.keys.first; first < b.keys.last; first += kStep) {
    const T* const keys = passing_rows<T, kWidth>(shared, stage);
    const bool whole = b.all_visible(first);
    FragmentTerms<Shape::kTiles> terms;
    if constexpr (kOptions) {
      // Load before the waits: the terms arrive during the waits and the products.
      options.load(
          first, whole, [&](int half) { return b.part(half, first); }, terms);
    }
    wait_copies<0>();
    // The keys of this step have arrived, and every warp has used the other stage.
    sync_threads();
    if (first + kStep < b.keys.last) {
      stage ^= 1;
      b.start_copy(first + kStep, stage);
    }
    float products[Shape::kTiles][4], gradients[Shape::kTiles][4];
    multiply_keys<T, kWidth>(rows_of_warp<kWidth>(shared), keys, products);
    multiply_keys<T, kWidth>(rows_of_warp<kWidth>(shared + Shape::kKeptElements),
                             keys + Shape::kPassingElements, gradients);
    if constexpr (kOptions) {
      b.differentiate(options, first, terms, products, gradients);
    } else {
      b.differentiate(products, gradients);
    }
    if (!whole) b.hide(first, gradients);
    multiply_values<T, kWidth>(gradients, keys, d_queries);
  }

  const uint32_t not_finite = rows_not_finite(d_queries);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = b.index_of(half);
    if (tile.first_row + at > tile.last_row) continue;
    if ((not_finite >> (lane() / 4 + 8 * half) & 1U) != 0) continue;
    const QueriesState::Row& row = state.rows[at];
    store_row(d_queries, half, p.scale,
              p.d_q.row(state.entry.batch, row.head, state.entry.first_query + row.query),
              call.head_dim);
  }
  for (int r = 0; r < kRowsOfWarp; ++r) {
    const int at = warp() * kRowsOfWarp + r;
    if ((not_finite >> r & 1U) == 0 || tile.first_row + at > tile.last_row) continue;
    write_query(p, state.entry, state.rows[at].head, state.rows[at].query);
  }
  // This kernel must not end before the call's previous ones.
  wait_for_previous_kernel();
}

template <bool kOptions, class T, int kWidth>
int launch_queries(const BackwardParams& params, BackwardLaunches& launches) {
  constexpr size_t kBytes = GradientTile<kWidth>::kAllElements * sizeof(T) + sizeof(QueriesState);
  static_assert(kBytes <= kLeastSharedBytes);
  const rules::AttentionParams& call = params.forward.call;
  return launch_tiles(query_axis(params.forward, kRows, call.group()), call.kv_heads, kThreads,
                      kBytes, launches.stream, backward_queries<kOptions, T, kWidth>, params,
                      launches.next_is_early());
}

}  // namespace multihead::cuda::mma
