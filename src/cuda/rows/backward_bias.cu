// d_bias: the gradients of the scores, summed along the axes that the bias broadcasts (stride 0).
// The gradients are recomputed from Q, K, V, d_out and the LSE, in the tiles of backward_tile.h.
//
// A block computes 16 queries x 32 keys of d_bias, and loops over the batch entries and heads that
// share them. If d_bias is broadcast along queries or keys, the block also loops over all tiles of
// that axis, and at the end adds up its 16 rows or 32 columns. All sums are in a fixed order.
#include <cstddef>
#include <cstdint>

#include "cuda/backward_pair.h"
#include "cuda/backward_params.h"
#include "cuda/device/device.h"
#include "cuda/device/launch.h"
#include "cuda/f32/backward_tile.h"
#include "cuda/kernels.h"
#include "cuda/params.h"
#include "cuda/rows.h"
#include "rules/attention_params.h"
#include "rules/backward_params.h"
#include "rules/visibility.h"

namespace multihead::cuda {
namespace backward {
namespace {

// An axis of the scores. `blocks`: thread blocks along the axis of d_bias, 1 if the bias is
// broadcast. `shared`: indices (for queries and keys, tiles) that each of these blocks sums over.
struct Axis {
  int64_t blocks, shared;
};

__host__ __device__ Axis axis_of(int64_t stride, int64_t extent) {
  return stride == 0 ? Axis{1, extent} : Axis{extent, 1};
}

struct Axes {
  Axis batch, head, queries, keys;  // queries and keys: in tiles

  __host__ __device__ explicit Axes(const BackwardParams& p)
      : batch(axis_of(p.d_bias.stride[0], p.forward.call.batch)),
        head(axis_of(p.d_bias.stride[1], p.forward.call.heads)),
        queries(axis_of(p.d_bias.stride[2], (p.forward.call.queries + kHeld - 1) / kHeld)),
        keys(axis_of(p.d_bias.stride[3], (p.forward.call.keys + kStreamed - 1) / kStreamed)) {}
  __host__ __device__ int64_t blocks() const {
    return batch.blocks * head.blocks * queries.blocks * keys.blocks;
  }
};

// One tile of scores.
struct ScoreTile {
  int64_t batch, head, first_query, first_key;
};

// Adds the score gradients of a tile: each lane has one key, and the 4 queries of its warp.
__device__ __forceinline__ void add_tile(const BackwardParams& p, const Tiles& tiles,
                                         const ScoreTile& tile, double (&sums)[kHeldOfWarp]) {
  const rules::AttentionParams& call = p.forward.call;
  const Entry entry = entry_of(p.forward, tile.batch);
  const int64_t end_query = rules::least_of(tile.first_query + kHeld, call.queries);
  const int64_t end_key = rules::least_of(tile.first_key + kStreamed, call.keys);
  // The first and the last visible key never decrease as the query rises, so a tile whose last
  // query sees only earlier keys, or whose first query sees only later keys, is hidden.
  if (entry.visibility.seen_by(end_query - 1).last <= tile.first_key ||
      entry.visibility.seen_by(tile.first_query).first >= end_key) {
    return;
  }
  const auto place_of = [&](int i) {
    return Place{tile.first_query + i < end_query, tile.head, tile.first_query + i};
  };
  // Wait until every warp has used the previous tile.
  sync_threads();
  copy_queries<kHeld>(p, tiles, entry, tiles.held_keys, tiles.head_dim, tiles.held_values,
                      tiles.value_dim, place_of);
  copy_keys<kStreamed>(p, tiles, entry, tile.head / call.group(), tile.first_key, end_key,
                       tiles.keys, tiles.key_stride, tiles.values, tiles.value_stride);
  sync_threads();
  scale_held(tiles, call.scale.queries);
  sync_threads();
  float product[kHeldOfWarp], d_weight[kHeldOfWarp];
  multiply(tiles.held_keys, tiles.keys, tiles.head_dim, tiles.key_stride, product);
  multiply(tiles.held_values, tiles.values, tiles.value_dim, tiles.value_stride, d_weight);
#pragma unroll
  for (int r = 0; r < kHeldOfWarp; ++r) {
    const Place place = place_of(warp() * kHeldOfWarp + r);
    if (!place.exists) continue;
    const BackwardRow row = backward_row(p, entry, place.head, place.query);
    const PairGradient pair =
        pair_gradient(call, entry, row, tile.first_key + lane(), product[r], d_weight[r]);
    sums[r] += static_cast<double>(pair.d_score);
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    differentiate_bias(const __grid_constant__ BackwardParams p) {
  const rules::AttentionParams& call = p.forward.call;
  const Axes axes(p);
  const Tiles tiles(call);
  int64_t index = block_number();
  if (index >= axes.blocks()) return;
  const int64_t of_keys = index % axes.keys.blocks;
  index /= axes.keys.blocks;
  const int64_t of_queries = index % axes.queries.blocks;
  index /= axes.queries.blocks;
  const int64_t of_head = index % axes.head.blocks, of_batch = index / axes.head.blocks;

  double sums[kHeldOfWarp] = {};
  for (int64_t batch = 0; batch < axes.batch.shared; ++batch) {
    for (int64_t head = 0; head < axes.head.shared; ++head) {
      for (int64_t queries = 0; queries < axes.queries.shared; ++queries) {
        for (int64_t keys = 0; keys < axes.keys.shared; ++keys) {
          add_tile(p, tiles,
                   {of_batch + batch, of_head + head, (of_queries + queries) * kHeld,
                    (of_keys + keys) * kStreamed},
                   sums);
        }
      }
    }
  }

  const int64_t key = of_keys * kStreamed + lane();
  const bool queries_shared = p.d_bias.stride[2] == 0, keys_shared = p.d_bias.stride[3] == 0;
  const auto write = [&](int64_t query, double sum) {
    if (keys_shared) sum = warp_sum(sum);
    if (keys_shared ? lane() == 0 : key < call.keys) {
      *p.d_bias.at(of_batch, of_head, query, keys_shared ? 0 : key) = static_cast<float>(sum);
    }
  };
  if (!queries_shared) {
#pragma unroll
    for (int r = 0; r < kHeldOfWarp; ++r) {
      const int64_t query = of_queries * kHeld + warp() * kHeldOfWarp + r;
      if (query < call.queries) write(query, sums[r]);
    }
    return;
  }
  double of_warp = 0.0;
#pragma unroll
  for (int r = 0; r < kHeldOfWarp; ++r) of_warp += sums[r];
  auto* const exchange = reinterpret_cast<double*>(shared_memory());
  sync_threads();
  exchange[thread_index()] = of_warp;
  sync_threads();
  if (warp() != 0) return;
  double total = 0.0;
  for (int w = 0; w < kWarps; ++w) total += exchange[w * kWarpSize + lane()];
  write(0, total);
}

}  // namespace
}  // namespace backward

int launch_bias_gradient(const BackwardParams& params, StreamHandle stream) {
  return launch({.blocks = backward::Axes(params).blocks(),
                 .threads = backward::kThreads,
                 .shared_bytes = backward::Tiles::bytes(params.forward.call),
                 .stream = stream},
                backward::differentiate_bias, params);
}

}  // namespace multihead::cuda
