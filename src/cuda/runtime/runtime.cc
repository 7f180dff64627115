#include "cuda/runtime/runtime.h"

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <string>

namespace multihead::cuda {
namespace {

std::string text_of(cudaError_t error) {
  return std::string(cudaGetErrorName(error)) + " (" + std::to_string(static_cast<int>(error)) +
         "): " + cudaGetErrorString(error);
}

Status error_of(const char* argument, const char* expected, cudaError_t error) {
  // Clear the error: otherwise the caller's next cudaGetLastError() would report it again.
  cudaGetLastError();
  return {StatusCode::kDevice, argument, expected, text_of(error)};
}

// Graphs take early launches from CUDA 12.3 on, and calls may be captured in a graph.
bool graphs_take_early_launches() {
  constexpr int kFirst = 12030;
  int driver = 0;
  return CUDART_VERSION >= kFirst && cudaDriverGetVersion(&driver) == cudaSuccess &&
         driver >= kFirst;
}

}  // namespace

Status status_of(int error) {
  if (error == 0) return {};
  return error_of("stream", "a kernel that starts", static_cast<cudaError_t>(error));
}

Status current_device(Device& device) {
  // Every call asks for the device, whose properties never change. Null: not known yet.
  static std::array<std::atomic<const Device*>, 64> known{};
  int number = 0;
  if (const cudaError_t error = cudaGetDevice(&number); error != cudaSuccess) {
    return error_of("device", "a CUDA device", error);
  }
  const auto place = static_cast<size_t>(number);
  if (const Device* const found = place < known.size() ? known[place].load() : nullptr) {
    device = *found;
    return {};
  }
  int major = 0, minor = 0;
  const struct {
    int* value;
    cudaDeviceAttr attribute;
  } asked[] = {{&major, cudaDevAttrComputeCapabilityMajor},
               {&minor, cudaDevAttrComputeCapabilityMinor},
               {&device.multiprocessors, cudaDevAttrMultiProcessorCount},
               {&device.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin}};
  for (const auto& [value, attribute] : asked) {
    const cudaError_t error = cudaDeviceGetAttribute(value, attribute, number);
    if (error != cudaSuccess) return error_of("device", "a CUDA device", error);
  }
  device.compute_capability = 10 * major + minor;
  if (major < 8) {
    return {StatusCode::kDevice, "device", "compute capability 8.0 or newer",
            std::to_string(major) + "." + std::to_string(minor)};
  }
  int version = 0;
  if (const int error = find_code(version); error != 0) {
    return error_of("device",
                    "a device that this build has code for (CMake: MULTIHEAD_CUDA_ARCHITECTURES)",
                    static_cast<cudaError_t>(error));
  }
  constexpr int kFirstWithEarlyLaunches = 90;
  device.early_launches = version >= kFirstWithEarlyLaunches && graphs_take_early_launches();
  if (place < known.size()) {
    const auto* const found = new Device(device);
    const Device* none = nullptr;
    if (!known[place].compare_exchange_strong(none, found)) delete found;
  }
  return {};
}

Status validate_stream(Stream stream) {
  // Unlike cudaStreamQuery(), this call is allowed during graph capture.
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (const cudaError_t error = cudaStreamIsCapturing(stream, &capture); error != cudaSuccess) {
    return error_of("stream", "a stream that takes work", error);
  }
  if (capture == cudaStreamCaptureStatusInvalidated) {
    return {StatusCode::kDevice, "stream", "a stream that takes work",
            text_of(cudaErrorStreamCaptureInvalidated)};
  }
  return {};
}

Status validate_memory(const char* argument, const void* address) {
  constexpr const char* kExpected = "memory of the current device";
  cudaPointerAttributes attributes{};
  if (const cudaError_t error = cudaPointerGetAttributes(&attributes, address);
      error != cudaSuccess) {
    return error_of(argument, kExpected, error);
  }
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
    return error_of(argument, kExpected, error);
  }
  switch (attributes.type) {
    case cudaMemoryTypeManaged:
      return {};
    case cudaMemoryTypeDevice:
      if (attributes.device == device) return {};
      return {StatusCode::kDevice, argument, kExpected + (" " + std::to_string(device)),
              "memory of device " + std::to_string(attributes.device)};
    case cudaMemoryTypeHost:
    case cudaMemoryTypeUnregistered:
      break;
  }
  return {StatusCode::kDevice, argument, kExpected, "memory of the host"};
}

}  // namespace multihead::cuda
