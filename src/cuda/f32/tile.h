// Device code of the f32 kernels: copies rows of any type into shared memory as floats.
#pragma once

#include <cstdint>

#include "cuda/device/device.h"
#include "multihead/tensor.h"

namespace multihead::cuda {

// Copies a tile of kRows rows. `stride`: distance of two rows of the tile. row_at(i): offset of row
// i in `data`, or negative for a row of zeros. All in elements.
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

// Copies a tile of kRows rows of any type except int8. All threads of the block call it.
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
