// Kernels with one warp per row.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/device/device.h"
#include "cuda/device/launch.h"
#include "cuda/kernels.h"

namespace multihead::cuda {

// Threads per block of these kernels. Some use __launch_bounds__(kWarpRowThreads, 1): without the
// 1, ptxas chooses so few registers that they spill.
inline constexpr int kWarpRowThreads = 128;
inline constexpr int kRowsOfBlock = kWarpRowThreads / kWarpSize;

// Row of this warp. Blocks may have more warps than there are rows.
__device__ __forceinline__ int64_t row_of_warp() { return block_number() * kRowsOfBlock + warp(); }

// Launches a kernel with one warp for each of `rows` rows.
template <class Params>
int launch_warp_rows(int64_t rows, StreamHandle stream, void (*kernel)(Params),
                     const std::type_identity_t<Params>& params) {
  return launch({.blocks = (rows + kRowsOfBlock - 1) / kRowsOfBlock,
                 .threads = kWarpRowThreads,
                 .shared_bytes = 0,
                 .stream = stream},
                kernel, params);
}

}  // namespace multihead::cuda
