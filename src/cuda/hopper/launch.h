// Host code that the launches of all Hopper kernels share.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "cuda/device/tensor_map.h"
#include "cuda/hopper/rows.h"
#include "rules/attention_params.h"

namespace multihead::cuda {

// Describes a (batch, head, row, column) tensor to TMA. A copy moves one 64-column block of Rows:
// Rows::kCount / heads_of_copy rows of each of heads_of_copy heads. `extents`: the first three
// axes. An axis of extent 1 may have any stride, so its stride is replaced by a valid one.
template <class Rows>
int encode_rows(TensorMap& map, const rules::StoredRows& rows,
                const std::array<int64_t, 3>& extents, uint32_t heads_of_copy = 1) {
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
            .box = {64, Rows::kCount / heads_of_copy, heads_of_copy, 1}});
}

// Returns how many heads are served at once, see HopperSchedule and HopperPlace. `bytes`: operands
// that the blocks of one head share.
inline int64_t heads_at_once(int64_t bytes, int64_t heads) {
  // 32 MiB of the 50 MB L2 cache of an H100. A guess, not measured.
  constexpr int64_t kResidentBytes = 32 << 20;
  return std::clamp<int64_t>(kResidentBytes / std::max<int64_t>(1, bytes), 1, heads);
}

}  // namespace multihead::cuda
