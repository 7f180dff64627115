// Launches the Hopper kernels of forward_hopper.h.
#include <algorithm>
#include <array>
#include <cstdint>

#include "cuda/forward_hopper.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/rows.h"
#include "cuda/tensor_map.h"

namespace multihead::cuda {
namespace {

// A (batch, head, row, column) tensor. The stride of an axis of extent 1 means nothing and may be
// anything: it is replaced.
int encode_rows(TensorMap& map, const rules::StoredRows& rows, int64_t batch, int64_t heads,
                int64_t count, int64_t width, int box_rows) {
  const auto stride = [&](int64_t extent, int64_t elements) {
    return static_cast<uint64_t>(extent == 1 ? width : elements) * 2;
  };
  return encode_tensor_map(
      map, {.data = rows.data,
            .type = rows.type,
            .extents = {static_cast<uint64_t>(width), static_cast<uint64_t>(count),
                        static_cast<uint64_t>(heads), static_cast<uint64_t>(batch)},
            .byte_strides = {stride(count, rows.stride[2]), stride(heads, rows.stride[1]),
                             stride(batch, rows.stride[0])},
            .box = {64, static_cast<uint32_t>(box_rows), 1, 1}});
}

template <class T, class Tile>
int launch_tile(const ForwardParams& params, StreamHandle stream) {
  const rules::AttentionParams& attention = params.call;
  const bool packed = params.cu_q != nullptr;
  HopperCall call{};
  call.params = params;
  const int64_t entries = packed ? 1 : attention.batch;
  const int64_t queries = packed ? params.packed_queries : attention.queries;
  const int64_t keys = packed ? params.packed_keys : attention.keys;
  if (keys > 0) {  // else nothing is loaded
    for (const int error : {encode_rows(call.q, attention.q, entries, attention.heads, queries,
                                        Tile::kWidth, Tile::kRows),
                            encode_rows(call.k, attention.k, entries, attention.kv_heads, keys,
                                        Tile::kWidth, Tile::kKeys),
                            encode_rows(call.v, attention.v, entries, attention.kv_heads, keys,
                                        Tile::kWidth, Tile::kKeys)}) {
      if (error != 0) return error;
    }
  }
  call.scale_log2 =
      attention.scale.of_queries * attention.scale.of_scores * attention.scale.of_softmax * kLog2E;
  const int64_t rows = attention.end_query - attention.first_query;
  call.row_tiles = (rows + Tile::kRows - 1) / Tile::kRows;
  // Of the 50 MB of an H100's L2 cache. Not measured.
  constexpr int64_t kResidentBytes = 32 << 20;
  const int64_t bytes_of_head =
      std::max<int64_t>(1, attention.keys * Tile::kWidth * 4 / attention.group());
  const int64_t heads = attention.batch * attention.heads;
  call.heads_at_once = std::clamp<int64_t>(kResidentBytes / bytes_of_head, 1, heads);
  return launch({.grid = {static_cast<uint32_t>(call.row_tiles * heads), 1, 1},
                 .threads = Tile::kThreads,
                 .shared_bytes = Tile::kSharedBytes,
                 .stream = stream},
                forward_hopper<T, Tile>, call);
}

template <class T>
int launch_width(const ForwardParams& params, StreamHandle stream) {
  const rules::Visibility& visibility = params.call.visibility;
  const bool open = !visibility.causal && visibility.left < 0 && visibility.right < 0;
  switch (params.call.key_width) {
    case 64:
      return launch_tile<T, HopperTile<64, 128, 3, true>>(params, stream);
    case 128:
      // A step of 176 keys leaves less time without products, one of 128 wastes less where a tile
      // is partly hidden.
      return open ? launch_tile<T, HopperTile<128, 176, 2, true>>(params, stream)
                  : launch_tile<T, HopperTile<128, 128, 2, true>>(params, stream);
    default:
      // The products take four times as long as the exponentials, so turns would only add waits.
      return launch_tile<T, HopperTile<256, 80, 2, false>>(params, stream);
  }
}

}  // namespace

int launch_forward_hopper(const ForwardParams& params, const Device& /*device*/,
                          StreamHandle stream) {
  return params.call.q.type == DType::kBF16 ? launch_width<BFloat16>(params, stream)
                                            : launch_width<Float16>(params, stream);
}

}  // namespace multihead::cuda
