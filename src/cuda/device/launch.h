// Launches kernels. Only .cu files may include it.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

#include "cuda/device/device.h"

namespace multihead::cuda {

struct LaunchShape {
  Index3 grid = {1, 1, 1};
  int threads = 0;          // threads per block
  size_t shared_bytes = 0;  // bytes per block
  void* stream = nullptr;   // a cudaStream_t
};

// Enqueues one launch; returns its cudaError_t.
template <class... Params>
int launch(const LaunchShape& shape, void (*kernel)(Params...),
           std::type_identity_t<Params>... params) {
  constexpr size_t kWithoutAsking = 48 << 10;
  if (shape.shared_bytes > kWithoutAsking) {
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   static_cast<int>(shape.shared_bytes));
    if (error != cudaSuccess) return static_cast<int>(error);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.grid.x, shape.grid.y, shape.grid.z);
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(shape.stream);
  return static_cast<int>(cudaLaunchKernelEx(&config, kernel, params...));
}

}  // namespace multihead::cuda
