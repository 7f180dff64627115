// Launches the Hopper kernels of hopper/forward.h.
#include <array>
#include <cstdint>

#include "cuda/device/launch.h"
#include "cuda/hopper/forward.h"
#include "cuda/hopper/forward_tile.h"
#include "cuda/hopper/launch.h"
#include "cuda/hopper/schedule.h"
#include "cuda/kernels.h"
#include "cuda/mma/options.h"
#include "cuda/params.h"
#include "cuda/rows.h"
#include "cuda/tiles.h"

namespace multihead::cuda {
namespace {

constexpr uint32_t kMostHeadBits = 6;  // a consumer has 64 rows

// Returns the base-2 logarithm of the number of heads that share a tile. The largest possible
// number gives the fewest tiles. Returns the smallest number that gives at most a tenth more: for a
// long call that is one head per tile, the case of all measurements.
template <class Tile>
uint32_t head_bits_of(const ForwardParams& params) {
  const rules::AttentionParams& attention = params.call;
  const bool packed = params.cu_q != nullptr;
  // The lengths of packed sequences are in device memory, so this uses their mean.
  const int64_t queries = packed ? tiles_of(params.packed_queries, attention.batch)
                                 : attention.end_query - attention.first_query;
  const auto tiles_of_entry = [&](uint32_t bits) {
    return tiles_of(queries, Tile::kRows >> bits) * (attention.heads >> bits);
  };
  uint32_t possible = 0;
  while (possible < kMostHeadBits && attention.group() % (int64_t{2} << possible) == 0) ++possible;
  const int64_t least = tiles_of_entry(possible);
  uint32_t bits = 0;
  while (tiles_of_entry(bits) - least > least / 10) ++bits;
  return bits;
}

template <class T, class Tile>
int launch_tile(const ForwardParams& params, const Device& device, StreamHandle stream) {
  const rules::AttentionParams& attention = params.call;
  HopperCall call{};
  call.params = params;
  call.head_bits = head_bits_of<Tile>(params);
  call.query_bits = kMostHeadBits - call.head_bits;
  const uint32_t tile_heads = 1U << call.head_bits;
  if (const Extents stored = extents_of(params); stored.keys > 0) {  // else nothing is loaded
    const std::array<int64_t, 3> of_queries{stored.batch, attention.heads, stored.queries};
    const std::array<int64_t, 3> of_keys{stored.batch, attention.kv_heads, stored.keys};
    for (const int error :
         {encode_rows<typename Tile::Queries>(call.q, attention.q, of_queries, tile_heads),
          encode_rows<typename Tile::Keys>(call.k, attention.k, of_keys),
          encode_rows<typename Tile::Keys>(call.v, attention.v, of_keys)}) {
      if (error != 0) return error;
    }
  }
  call.scale_log2 =
      mma::unit_of_scores<Tile::kOptions>(attention) * attention.scale.softmax * kLog2E;
  call.group = static_cast<uint32_t>(attention.group());
  const int64_t queries = Tile::kRows >> call.head_bits;  // of a tile
  const TileAxis axis = query_axis(params, queries, 1);
  const bool packed = params.cu_q != nullptr;
  const int64_t row_tiles = packed ? axis.slots() : tiles_of(axis.rows, queries);
  const int64_t heads = (packed ? 1 : attention.batch) * attention.heads / tile_heads;
  const int64_t keys = packed ? params.packed_keys : attention.keys;
  call.schedule = HopperSchedule::of(
      row_tiles, heads,
      heads_at_once(keys * Tile::kWidth * 4 * tile_heads / attention.group(), heads),
      device.multiprocessors);
  return launch({.blocks = call.schedule.blocks,
                 .threads = Tile::kThreads,
                 .shared_bytes = HopperShared<Tile>::kBytes,
                 .stream = stream},
                forward_hopper<T, Tile>, call);
}

template <class T>
int launch_width(const ForwardParams& params, const Device& device, StreamHandle stream) {
  const rules::Visibility& visibility = params.call.visibility;
  const bool open = !visibility.causal && visibility.left < 0 && visibility.right < 0;
  const bool options = mma::has_options(params.call);
  switch (params.call.head_dim) {
    case 64:
      if (options)
        return launch_tile<T, HopperTile<64, 80, 2, true, true>>(params, device, stream);
      return launch_tile<T, HopperTile<64, 128, 3, true>>(params, device, stream);
    case 128:
      if (options)
        return launch_tile<T, HopperTile<128, 80, 2, true, true>>(params, device, stream);
      // A step of 176 keys keeps the tensor cores busier; a step of 128 keys wastes less on partly
      // hidden tiles.
      return open ? launch_tile<T, HopperTile<128, 176, 2, true>>(params, device, stream)
                  : launch_tile<T, HopperTile<128, 128, 2, true>>(params, device, stream);
    default:
      // The products take four times as long as the exponentials, so taking turns would only add
      // waits.
      return launch_tile<T, HopperTile<256, 80, 2, false>>(params, device, stream);
  }
}

}  // namespace

int launch_forward_hopper(const ForwardParams& params, const Device& device, StreamHandle stream) {
  return params.call.q.type == DType::kBF16 ? launch_width<BFloat16>(params, device, stream)
                                            : launch_width<Float16>(params, device, stream);
}

}  // namespace multihead::cuda
