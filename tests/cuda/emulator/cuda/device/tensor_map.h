// src/cuda/device/tensor_map.h for the emulator: stores the description unchanged, and makes the
// driver's checks.
#pragma once

#include "cuda/device/tensor_map_shape.h"

namespace multihead::cuda {

struct TensorMap {
  TensorMapShape shape;
};

int encode_tensor_map(TensorMap& map, const TensorMapShape& shape);

}  // namespace multihead::cuda
