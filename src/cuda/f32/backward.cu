// d_q, d_k and d_v for every option and type, with products and sums in f32 (FlashAttention-2: Dao,
// arXiv:2307.08691, section 3.1.2). Two kernels recompute the weights from the LSE. Each sum
// belongs to one block, and so has a fixed order:
//
//   - backward_keys: a block holds 16 keys of a key/value head, and loops over the query rows that
//     see them, 32 at a time: d_k and d_v;
//   - backward_queries: a block holds 16 query rows, and loops over the keys that they see, 32 at a
//     time: d_q.
//
// A warp takes 4 of the 16 held rows. For each of these, lane i computes the product with streamed
// row i of 32; then each lane adds its columns of the sums.
#include <cstdint>

#include "cuda/backward_pair.h"
#include "cuda/backward_params.h"
#include "cuda/f32/backward_tile.h"
#include "cuda/kernels.h"
#include "cuda/tiles.h"
#include "rules/attention_params.h"
#include "rules/visibility.h"

namespace multihead::cuda {
namespace backward {
namespace {

template <int kColumns>
__device__ __forceinline__ void clear(float (&sums)[kHeldOfWarp][kColumns]) {
#pragma unroll
  for (int r = 0; r < kHeldOfWarp; ++r) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) sums[r][n] = 0.0F;
  }
}

// Multiplies a row of sums by `factor` and stores it.
template <int kColumns>
__device__ __forceinline__ void store(const float (&sums)[kColumns], float factor, int width,
                                      float* to) {
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    const int c = lane() + n * kWarpSize;
    if (c < width) to[c] = sums[n] * factor;
  }
}

// kColumns: columns of d_k or d_v per lane.
template <int kColumns>
__global__ void __launch_bounds__(kThreads)
    backward_keys(const __grid_constant__ BackwardParams p) {
  const rules::AttentionParams& call = p.forward.call;
  const int64_t group = call.group();
  const KeyTile tile = key_tile<kHeld>(p.forward);
  if (tile.empty()) return;
  const auto& [entry, kv_head, first_key, last_key] = tile;
  const Tiles tiles(call);
  copy_keys<kHeld>(p, tiles, entry, kv_head, first_key, last_key + 1, tiles.held_keys,
                   tiles.head_dim, tiles.held_values, tiles.value_dim);
  sync_threads();
  scale_held(tiles, call.scale.queries);

  float d_keys[kHeldOfWarp][kColumns], d_values[kHeldOfWarp][kColumns];
  clear(d_keys);
  clear(d_values);
  const int64_t key = first_key + warp() * kHeldOfWarp;
  const RowRange rows = tile.rows(group, kStreamed);
  for (int64_t first = rows.first; first < rows.last; first += kStreamed) {
    const auto place_of = [&](int i) {
      const int64_t row = first + i;
      return Place{row < rows.last, kv_head * group + row % group, row / group};
    };
    // Wait until every warp has used the previous tiles.
    sync_threads();
    copy_queries<kStreamed>(p, tiles, entry, tiles.keys, tiles.key_stride, tiles.values,
                            tiles.value_stride, place_of);
    sync_threads();
    BackwardRow row;
    if (const Place place = place_of(lane()); place.exists) {
      row = backward_row(p, entry, place.head, place.query);
    }
    float product[kHeldOfWarp], d_weight[kHeldOfWarp], d_product[kHeldOfWarp];
    uint32_t visible[kHeldOfWarp], kept[kHeldOfWarp];
    multiply(tiles.held_keys, tiles.keys, tiles.head_dim, tiles.key_stride, product);
    multiply(tiles.held_values, tiles.values, tiles.value_dim, tiles.value_stride, d_weight);
#pragma unroll
    for (int r = 0; r < kHeldOfWarp; ++r) {
      const PairGradient pair = pair_gradient(call, entry, row, key + r, product[r], d_weight[r]);
      visible[r] = ballot(pair.visible);
      kept[r] = ballot(pair.kept);
      d_product[r] = pair.d_product;
      tiles.factors[r * kStreamed + lane()] = pair.weight;
    }
    sync_warp();
    if (p.d_v.data != nullptr) {
      add_rows(tiles.factors, kept, tiles.values, tiles.value_dim, tiles.value_stride, d_values);
    }
    if (p.d_k.data == nullptr) continue;
    sync_warp();
#pragma unroll
    for (int r = 0; r < kHeldOfWarp; ++r) {
      tiles.factors[r * kStreamed + lane()] = d_product[r];
    }
    sync_warp();
    add_rows(tiles.factors, visible, tiles.keys, tiles.head_dim, tiles.key_stride, d_keys);
  }
#pragma unroll
  for (int r = 0; r < kHeldOfWarp; ++r) {
    if (key + r > last_key) continue;
    const int64_t at = entry.first_key + key + r;
    if (p.d_k.data != nullptr) {
      store(d_keys[r], p.scale, tiles.head_dim, p.d_k.row(entry.batch, kv_head, at));
    }
    if (p.d_v.data != nullptr) {
      store(d_values[r], 1.0F, tiles.value_dim, p.d_v.row(entry.batch, kv_head, at));
    }
  }
}

// kColumns: columns of d_q per lane.
template <int kColumns>
__global__ void __launch_bounds__(kThreads)
    backward_queries(const __grid_constant__ BackwardParams p) {
  const rules::AttentionParams& call = p.forward.call;
  const int64_t group = call.group();
  const RowTile tile = row_tile<kHeld>(p.forward);
  if (tile.empty()) return;
  const auto& [entry, kv_head, first_row, last_row] = tile;
  const Tiles tiles(call);
  const auto place_of = [&](int i) {
    const int64_t row = first_row + i;
    return Place{row <= last_row, kv_head * group + row % group, row / group};
  };
  copy_queries<kHeld>(p, tiles, entry, tiles.held_keys, tiles.head_dim, tiles.held_values,
                      tiles.value_dim, place_of);
  sync_threads();
  scale_held(tiles, call.scale.queries);

  BackwardRow rows[kHeldOfWarp];
#pragma unroll
  for (int r = 0; r < kHeldOfWarp; ++r) {
    const Place place = place_of(warp() * kHeldOfWarp + r);
    if (place.exists) rows[r] = backward_row(p, entry, place.head, place.query);
  }
  float d_queries[kHeldOfWarp][kColumns];
  clear(d_queries);
  const rules::KeyRange seen = tile.keys(group, kStreamed);
  for (int64_t first = seen.first; first < seen.last; first += kStreamed) {
    sync_threads();
    copy_keys<kStreamed>(p, tiles, entry, kv_head, first, seen.last, tiles.keys, tiles.key_stride,
                         tiles.values, tiles.value_stride);
    sync_threads();
    float product[kHeldOfWarp], d_weight[kHeldOfWarp];
    uint32_t visible[kHeldOfWarp];
    multiply(tiles.held_keys, tiles.keys, tiles.head_dim, tiles.key_stride, product);
    multiply(tiles.held_values, tiles.values, tiles.value_dim, tiles.value_stride, d_weight);
#pragma unroll
    for (int r = 0; r < kHeldOfWarp; ++r) {
      const PairGradient pair =
          pair_gradient(call, entry, rows[r], first + lane(), product[r], d_weight[r]);
      visible[r] = ballot(pair.visible);
      tiles.factors[r * kStreamed + lane()] = pair.d_product;
    }
    sync_warp();
    add_rows(tiles.factors, visible, tiles.keys, tiles.head_dim, tiles.key_stride, d_queries);
  }
#pragma unroll
  for (int r = 0; r < kHeldOfWarp; ++r) {
    const Place place = place_of(warp() * kHeldOfWarp + r);
    if (!place.exists) continue;
    store(d_queries[r], p.scale, tiles.head_dim,
          p.d_q.row(entry.batch, place.head, entry.first_query + place.query));
  }
}

template <int kColumns>
int launch_keys(const BackwardParams& params, StreamHandle stream) {
  const rules::AttentionParams& call = params.forward.call;
  return launch_tiles(key_axis(params.forward, kHeld), call.kv_heads, kThreads, Tiles::bytes(call),
                      stream, backward_keys<kColumns>, params);
}

template <int kColumns>
int launch_queries(const BackwardParams& params, StreamHandle stream) {
  const rules::AttentionParams& call = params.forward.call;
  return launch_tiles(query_axis(params.forward, kHeld, call.group()), call.kv_heads, kThreads,
                      Tiles::bytes(call), stream, backward_queries<kColumns>, params);
}

constexpr int64_t columns_of(int64_t width) { return (width + kWarpSize - 1) / kWarpSize; }
static_assert(columns_of(kMaxWidth) <= 8);

}  // namespace
}  // namespace backward

int launch_backward_f32(const BackwardParams& params, const Device&, StreamHandle stream) {
  const rules::AttentionParams& call = params.forward.call;
  if ((params.d_k.data != nullptr || params.d_v.data != nullptr) && call.keys > 0) {
    const int64_t columns = backward::columns_of(rules::most_of(call.head_dim, call.value_dim));
    const int error = columns <= 2   ? backward::launch_keys<2>(params, stream)
                      : columns <= 4 ? backward::launch_keys<4>(params, stream)
                                     : backward::launch_keys<8>(params, stream);
    if (error != 0) return error;
  }
  if (params.d_q.data == nullptr || call.rows() == 0) return 0;
  const int64_t columns = backward::columns_of(call.head_dim);
  if (columns <= 2) return backward::launch_queries<2>(params, stream);
  if (columns <= 4) return backward::launch_queries<4>(params, stream);
  return backward::launch_queries<8>(params, stream);
}

}  // namespace multihead::cuda
