// Launches the Hopper kernels of hopper/backward.h.
#include <array>
#include <cstdint>
#include <type_traits>

#include "cuda/backward_params.h"
#include "cuda/device/launch.h"
#include "cuda/hopper/backward.h"
#include "cuda/hopper/launch.h"
#include "cuda/kernels.h"
#include "cuda/rows.h"
#include "cuda/tiles.h"

namespace multihead::cuda {
namespace {

template <class T, class Tile>
int launch_tile(const BackwardParams& params, BackwardLaunches& launches) {
  const rules::AttentionParams& attention = params.forward.call;
  const Extents stored = extents_of(params.forward);
  const TileAxis axis = axis_of<Tile>(params.forward);
  const bool packed = params.forward.cu_q != nullptr;
  const int64_t passing = Tile::kOfKeys ? stored.queries : stored.keys;
  const int64_t heads =
      (packed ? 1 : attention.batch) * (Tile::kOfKeys ? attention.kv_heads : attention.heads);
  if (axis.rows * heads == 0) return 0;
  HopperBackwardCall call{};
  call.params = params;
  if (stored.queries > 0 && stored.keys > 0) {  // without rows nothing is loaded
    using OfQueries =
        std::conditional_t<Tile::kOfKeys, typename Tile::Passing, typename Tile::Kept>;
    using OfKeys = std::conditional_t<Tile::kOfKeys, typename Tile::Kept, typename Tile::Passing>;
    const std::array<int64_t, 3> of_queries{stored.batch, attention.heads, stored.queries};
    const std::array<int64_t, 3> of_keys{stored.batch, attention.kv_heads, stored.keys};
    for (const int error : {encode_rows<OfQueries>(call.q, attention.q, of_queries),
                            encode_rows<OfQueries>(call.d_out, params.d_out, of_queries),
                            encode_rows<OfKeys>(call.k, attention.k, of_keys),
                            encode_rows<OfKeys>(call.v, attention.v, of_keys)}) {
      if (error != 0) return error;
    }
  }
  const rules::ScaleFactors& scale = attention.scale;
  call.scale_log2 = scale.queries * scale.scores * scale.softmax * kLog2E;
  call.reference_log2 = scale.softmax * kLog2E;
  call.tiles = packed ? axis.slots() : tiles_of(axis.rows, Tile::kKept);
  call.heads = heads;
  // Heads that share passing rows have adjacent indices.
  const int64_t sharing = Tile::kOfKeys ? 1 : attention.group();
  const int64_t passing_heads = Tile::kOfKeys ? attention.group() : 1;
  call.heads_at_once = heads_at_once(passing * passing_heads * Tile::kWidth * 4 / sharing, heads);
  return launch({.blocks = call.tiles * heads,
                 .threads = Tile::kThreads,
                 .shared_bytes = Tile::kSharedBytes,
                 .stream = launches.stream,
                 .early = launches.next_is_early()},
                backward_hopper<T, Tile>, call);
}

template <class T>
int launch_queries(const BackwardParams& params, BackwardLaunches& launches) {
  constexpr HopperSums kSums = HopperSums::kQueries;
  switch (params.forward.call.head_dim) {
    case 64:
      return launch_tile<T, HopperBackwardTile<kSums, 64, 128, 3, 3>>(params, launches);
    case 128:
      return launch_tile<T, HopperBackwardTile<kSums, 128, 112, 3, 2>>(params, launches);
    default:
      return launch_tile<T, HopperBackwardTile<kSums, 256, 64, 2, 1>>(params, launches);
  }
}

template <class T>
int launch_keys(const BackwardParams& params, BackwardLaunches& launches) {
  constexpr HopperSums kBoth = HopperSums::kKeysAndValues;
  switch (params.forward.call.head_dim) {
    case 64:
      return launch_tile<T, HopperBackwardTile<kBoth, 64, 112, 3, 3>>(params, launches);
    case 128:
      return launch_tile<T, HopperBackwardTile<kBoth, 128, 64, 3, 3>>(params, launches);
    default:
      break;
  }
  if (params.d_k.data != nullptr) {
    using Tile = HopperBackwardTile<HopperSums::kKeys, 256, 64, 2, 1>;
    if (const int error = launch_tile<T, Tile>(params, launches); error != 0) return error;
  }
  if (params.d_v.data == nullptr) return 0;
  return launch_tile<T, HopperBackwardTile<HopperSums::kValues, 256, 64, 2, 2>>(params, launches);
}

template <class T>
int launch_type(const BackwardParams& params, BackwardLaunches launches) {
  if (params.d_k.data != nullptr || params.d_v.data != nullptr) {
    if (const int error = launch_keys<T>(params, launches); error != 0) return error;
  }
  return params.d_q.data != nullptr ? launch_queries<T>(params, launches) : 0;
}

}  // namespace

int launch_backward_hopper(const BackwardParams& params, const Device& device,
                           StreamHandle stream) {
  const BackwardLaunches launches{.stream = stream, .allows_early = device.early_launches};
  return params.forward.call.q.type == DType::kBF16 ? launch_type<BFloat16>(params, launches)
                                                    : launch_type<Float16>(params, launches);
}

}  // namespace multihead::cuda
