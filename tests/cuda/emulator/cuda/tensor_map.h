// src/cuda/tensor_map.h for the emulator: the description as it is given, and the checks that the
// driver makes.
#pragma once

#include <array>
#include <cstdint>

#include "multihead/tensor.h"

namespace multihead::cuda {

struct TensorMapShape {
  const void* data = nullptr;
  DType type = DType::kBF16;
  std::array<uint64_t, 4> extents{};
  std::array<uint64_t, 3> byte_strides{};
  std::array<uint32_t, 4> box{};
};

struct alignas(64) TensorMap {
  TensorMapShape shape;
};

int encode_tensor_map(TensorMap& map, const TensorMapShape& shape);

}  // namespace multihead::cuda
