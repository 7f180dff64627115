// The properties that a TensorMap (tensor_map.h) describes.
#pragma once

#include <array>
#include <cstdint>

#include "multihead/tensor.h"

namespace multihead::cuda {

// A tensor of 16-bit numbers with four axes, the contiguous axis first. Copies move boxes of `box`
// elements. Rows of a box are 128 bytes long. Chunk p (16 bytes) of row r is stored at p ^ (r % 8),
// so that wgmma reads without bank conflicts.
struct TensorMapShape {
  const void* data = nullptr;              // aligned to 16 bytes
  DType type = DType::kBF16;               // or kF16
  std::array<uint64_t, 4> extents{};       // 1 to 2^31 - 1
  std::array<uint64_t, 3> byte_strides{};  // of axes 1 to 3; multiples of 16 below 2^40
  std::array<uint32_t, 4> box{};           // at most 256 each
};

}  // namespace multihead::cuda
