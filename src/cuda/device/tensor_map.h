// Tensor descriptors for Hopper's tensor memory accelerator (TMA). The host makes them without a
// call to the GPU, and passes them to kernels by value, as `const __grid_constant__ TensorMap`.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <array>
#include <atomic>

#include "cuda/device/tensor_map_shape.h"
#include "multihead/tensor.h"

namespace multihead::cuda {

using TensorMap = CUtensorMap;

using EncodeTensorMap = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                     const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                     const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                     CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// Gets the driver's function through the runtime, so that programs do not link the driver's
// library. Looks it up by name only once: that takes a microsecond. Returns the runtime's error
// code: cudaErrorNotSupported if the driver lacks the function.
inline int find_encode_tensor_map(EncodeTensorMap& encode) {
  static std::atomic<void*> known = nullptr;
  void* function = known.load(std::memory_order_relaxed);
  encode = reinterpret_cast<EncodeTensorMap>(function);
  if (function != nullptr) return 0;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  constexpr unsigned kSince = 12000;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             kSince, cudaEnableDefault, &found);
#else
  const cudaError_t error =
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
  if (error != cudaSuccess) return static_cast<int>(error);
  if (found != cudaDriverEntryPointSuccess) return static_cast<int>(cudaErrorNotSupported);
  known.store(function, std::memory_order_relaxed);
  encode = reinterpret_cast<EncodeTensorMap>(function);
  return 0;
}

// Returns the runtime's error code.
inline int encode_tensor_map(TensorMap& map, const TensorMapShape& shape) {
  EncodeTensorMap encode = nullptr;
  if (const int error = find_encode_tensor_map(encode); error != 0) return error;
  constexpr std::array<cuuint32_t, 4> kEveryElement = {1, 1, 1, 1};
  const CUresult result =
      encode(&map,
             shape.type == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                        : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
             4, const_cast<void*>(shape.data), shape.extents.data(), shape.byte_strides.data(),
             shape.box.data(), kEveryElement.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  // CUresult and cudaError_t have the same codes for invalid values.
  return static_cast<int>(result);
}

}  // namespace multihead::cuda
