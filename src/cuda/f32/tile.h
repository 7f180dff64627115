// Device code of the f32 kernels: rows of any type as floats in shared memory.
#pragma once

#include <cstdint>

#include "cuda/device/device.h"
#include "multihead/tensor.h"

namespace multihead::cuda {

// A tile of kRows rows. `stride` is from row to row of the tile; row_at(i) is where row i begins in
// `data`, or negative for a row of zeros.
template <int kRows, class T, class RowAt>
__device__ __forceinline__ void copy_rows_of(const void* data, int width, float* tile, int stride,
                                             const RowAt& row_at) {
  const int warps = thread_count() / kWarpSize;
  for (int i = warp(); i < kRows; i += warps) {
    const int64_t row = row_at(i);
    const T* const from = static_cast<const T*>(data) + (row < 0 ? 0 : row);
    for (int c = lane(); c < width; c += kWarpSize) {
      tile[i * stride + c] = row < 0 ? 0.0F : to_float(from[c]);
    }
  }
}

// By all threads of the block. Not of int8.
template <int kRows, class RowAt>
__device__ __forceinline__ void copy_rows(const void* data, DType type, int width, float* tile,
                                          int stride, const RowAt& row_at) {
  switch (type) {
    case DType::kF16:
      return copy_rows_of<kRows, Float16>(data, width, tile, stride, row_at);
    case DType::kBF16:
      return copy_rows_of<kRows, BFloat16>(data, width, tile, stride, row_at);
    default:
      return copy_rows_of<kRows, float>(data, width, tile, stride, row_at);
  }
}

}  // namespace multihead::cuda
