// Host code that launches of the Hopper kernels share.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "cuda/device/tensor_map.h"
#include "cuda/hopper/rows.h"
#include "rules/attention_params.h"

namespace multihead::cuda {

// Describes a (batch, head, row, column) tensor to TMA, of which boxes of one block of Rows are
// copied. `extents` are those of the first three axes. The stride of an axis of extent 1 means
// nothing and may be anything: it is replaced.
template <class Rows>
int encode_rows(TensorMap& map, const rules::StoredRows& rows,
                const std::array<int64_t, 3>& extents) {
  const auto [batch, heads, count] = extents;
  const auto stride = [](int64_t extent, int64_t elements) {
    return static_cast<uint64_t>(extent == 1 ? Rows::kWidth : elements) * 2;
  };
  return encode_tensor_map(
      map, {.data = rows.data,
            .type = rows.type,
            .extents = {Rows::kWidth, static_cast<uint64_t>(count), static_cast<uint64_t>(heads),
                        static_cast<uint64_t>(batch)},
            .byte_strides = {stride(count, rows.stride[2]), stride(heads, rows.stride[1]),
                             stride(batch, rows.stride[0])},
            .box = {64, Rows::kCount, 1, 1}});
}

// How many heads are served at once, see HopperPlace; `bytes` are those that blocks of a head
// share.
inline int64_t heads_at_once(int64_t bytes, int64_t heads) {
  // Of the 50 MB of an H100's L2 cache. Not measured.
  constexpr int64_t kResidentBytes = 32 << 20;
  return std::clamp<int64_t>(kResidentBytes / std::max<int64_t>(1, bytes), 1, heads);
}

}  // namespace multihead::cuda
