// Launches the Hopper kernels of hopper/forward.h.
#include <array>
#include <cstdint>

#include "cuda/device/launch.h"
#include "cuda/hopper/forward.h"
#include "cuda/hopper/forward_tile.h"
#include "cuda/hopper/launch.h"
#include "cuda/hopper/schedule.h"
#include "cuda/kernels.h"
#include "cuda/params.h"
#include "cuda/rows.h"
#include "cuda/tiles.h"

namespace multihead::cuda {
namespace {

template <class T, class Tile>
int launch_tile(const ForwardParams& params, const Device& device, StreamHandle stream) {
  const rules::AttentionParams& attention = params.call;
  HopperCall call{};
  call.params = params;
  if (const Extents stored = extents_of(params); stored.keys > 0) {  // else nothing is loaded
    const std::array<int64_t, 3> of_queries{stored.batch, attention.heads, stored.queries};
    const std::array<int64_t, 3> of_keys{stored.batch, attention.kv_heads, stored.keys};
    for (const int error : {encode_rows<typename Tile::Queries>(call.q, attention.q, of_queries),
                            encode_rows<typename Tile::Keys>(call.k, attention.k, of_keys),
                            encode_rows<typename Tile::Keys>(call.v, attention.v, of_keys)}) {
      if (error != 0) return error;
    }
  }
  call.scale_log2 =
      attention.scale.queries * attention.scale.scores * attention.scale.softmax * kLog2E;
  call.group = static_cast<uint32_t>(attention.group());
  const TileAxis axis = query_axis(params, Tile::kRows, 1);
  const bool packed = params.cu_q != nullptr;
  const int64_t row_tiles = packed ? axis.slots() : tiles_of(axis.rows, Tile::kRows);
  const int64_t heads = (packed ? 1 : attention.batch) * attention.heads;
  const int64_t keys = packed ? params.packed_keys : attention.keys;
  call.schedule = HopperSchedule::of(
      row_tiles, heads, heads_at_once(keys * Tile::kWidth * 4 / attention.group(), heads),
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
  switch (params.call.head_dim) {
    case 64:
      return launch_tile<T, HopperTile<64, 128, 3, true>>(params, device, stream);
    case 128:
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
