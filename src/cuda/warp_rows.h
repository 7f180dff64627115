// Kernels with a warp for each row.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/device/device.h"
#include "cuda/device/launch.h"
#include "cuda/kernels.h"

namespace multihead::cuda {

// Kernels whose __launch_bounds__ name one block more would spill with the few registers that ptxas
// chooses otherwise.
inline constexpr int kWarpRowThreads = 128;
inline constexpr int kRowsOfBlock = kWarpRowThreads / kWarpSize;

// The row of this warp. The last block may have more warps than there are rows.
__device__ __forceinline__ int64_t row_of_warp() {
  return static_cast<int64_t>(block_index().x) * kRowsOfBlock + warp();
}

// Starts a kernel with a warp for each of so many rows.
template <class Params>
int launch_warp_rows(int64_t rows, StreamHandle stream, void (*kernel)(Params),
                     const std::type_identity_t<Params>& params) {
  return launch({.grid = {static_cast<uint32_t>((rows + kRowsOfBlock - 1) / kRowsOfBlock), 1, 1},
                 .threads = kWarpRowThreads,
                 .shared_bytes = 0,
                 .stream = stream},
                kernel, params);
}

}  // namespace multihead::cuda
