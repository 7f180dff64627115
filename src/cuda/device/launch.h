// Launches kernels. Only .cu files may include it.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cuda/device/device.h"
#include "cuda/device/grid.h"
#include "cuda/device/recorded.h"

namespace multihead::cuda {

struct LaunchShape {
  int64_t blocks = 1;
  int threads = 0;          // threads per block
  size_t shared_bytes = 0;  // bytes per block
  void* stream = nullptr;   // a cudaStream_t
  // The launch need not wait until the previous kernel of the stream has ended: the kernel itself
  // calls wait_for_previous_kernel(). Only with Device::early_launches.
  bool early = false;
};

// Lets a kernel use all shared memory of a block; CUDA's limit is 48 KB without it. Asks CUDA only
// once for a kernel on a device, because that takes about a microsecond. `again`: asks in any case.
inline cudaError_t allow_shared_memory(const void* kernel, bool again) {
  static std::array<std::atomic<uintptr_t>, 256> allowed{};
  int device = 0, most = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  // Kernels are aligned to 16 bytes at least.
  const auto key = reinterpret_cast<uintptr_t>(kernel) + static_cast<uintptr_t>(device) + 1;
  std::atomic<uintptr_t>& place = allowed[key / 16 % allowed.size()];
  if (!again && place.load(std::memory_order_relaxed) == key) return cudaSuccess;
  cudaError_t error =
      cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
  }
  if (error == cudaSuccess) place.store(key, std::memory_order_relaxed);
  return error;
}

// Returns CUDA's error if the build has no code of a kernel for the current device. `version`: the
// compute capability that its code was compiled for, times 10.
template <class... Params>
int find_code(void (*kernel)(Params...), int& version) {
  cudaFuncAttributes attributes{};
  const cudaError_t error =
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
  version = attributes.ptxVersion;
  return static_cast<int>(error);
}

// Enqueues one launch; returns its cudaError_t. Blocks may be more than the grid's x allows, see
// grid_of().
template <class... Params>
int enqueue(const LaunchShape& shape, void (*kernel)(Params...), const Params&... params) {
  Grid grid;
  if (!grid_of(shape.blocks, grid)) return static_cast<int>(cudaErrorInvalidConfiguration);
  constexpr size_t kWithoutAsking = 48 << 10;
  const bool asks = shape.shared_bytes > kWithoutAsking;
  const auto* const address = reinterpret_cast<const void*>(kernel);
  if (asks) {
    const cudaError_t error = allow_shared_memory(address, /*again=*/false);
    if (error != cudaSuccess) return static_cast<int>(error);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid.x, grid.y);
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(shape.stream);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  if (shape.early) {
    config.attrs = &attribute;
    config.numAttrs = 1;
  }
  cudaError_t error = cudaLaunchKernelEx(&config, kernel, params...);
  // cudaDeviceReset() makes CUDA forget the permission.
  if (error == cudaErrorInvalidValue && asks &&
      allow_shared_memory(address, /*again=*/true) == cudaSuccess) {
    cudaGetLastError();
    error = cudaLaunchKernelEx(&config, kernel, params...);
  }
  return static_cast<int>(error);
}

// Enqueues one launch, or keeps it if this thread keeps its launches.
template <class... Params>
int launch(const LaunchShape& shape, void (*kernel)(Params...),
           const std::type_identity_t<Params>&... params) {
  RecordedLaunches* const recorded = recorded_launches();
  if (recorded == nullptr) return enqueue<Params...>(shape, kernel, params...);
  recorded->emplace_back([=](void* stream) {
    LaunchShape again = shape;
    again.stream = stream;
    return enqueue<Params...>(again, kernel, params...);
  });
  return 0;
}

}  // namespace multihead::cuda
