// A fake CUDA runtime for runtime_test.cc: the part that src/cuda/runtime/runtime.cc uses, with the
// constants of CUDA's own header. Tests set its answers.
#pragma once

#include <map>

#define CUDART_VERSION 12030

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorIllegalAddress = 700,
  cudaErrorStreamCaptureInvalidated = 901,
};
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};
enum cudaMemoryType {
  cudaMemoryTypeUnregistered = 0,
  cudaMemoryTypeHost = 1,
  cudaMemoryTypeDevice = 2,
  cudaMemoryTypeManaged = 3,
};
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2,
};
struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
};
struct CUstream_st;

namespace fake_cuda {

struct Runtime {
  cudaError_t of_device = cudaSuccess, of_attributes = cudaSuccess, of_stream = cudaSuccess,
              of_pointer = cudaSuccess;
  int device = 0;
  std::map<cudaDeviceAttr, int> attributes;
  cudaPointerAttributes pointer{cudaMemoryTypeDevice, 0};
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  int asked = 0;  // calls of cudaDeviceGetAttribute()
  cudaError_t of_code = cudaSuccess;
  int code_version = 90;
  int driver_version = 12030;
  cudaError_t last = cudaSuccess;  // next result of cudaGetLastError()
};
inline Runtime runtime;

inline cudaError_t answer(cudaError_t error) {
  if (error != cudaSuccess) runtime.last = error;
  return error;
}

}  // namespace fake_cuda

inline const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorNoKernelImageForDevice:
      return "cudaErrorNoKernelImageForDevice";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    default:
      return "cudaErrorInvalidValue";
  }
}
inline const char* cudaGetErrorString(cudaError_t) { return "what CUDA says of it"; }
inline cudaError_t cudaGetLastError() {
  const cudaError_t last = fake_cuda::runtime.last;
  fake_cuda::runtime.last = cudaSuccess;
  return last;
}
inline cudaError_t cudaDriverGetVersion(int* version) {
  *version = fake_cuda::runtime.driver_version;
  return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = fake_cuda::runtime.device;
  return fake_cuda::answer(fake_cuda::runtime.of_device);
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  ++fake_cuda::runtime.asked;
  *value = fake_cuda::runtime.attributes[attribute];
  return fake_cuda::answer(fake_cuda::runtime.of_attributes);
}
inline cudaError_t cudaStreamIsCapturing(CUstream_st*, cudaStreamCaptureStatus* status) {
  *status = fake_cuda::runtime.capture;
  return fake_cuda::answer(fake_cuda::runtime.of_stream);
}
inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void*) {
  *attributes = fake_cuda::runtime.pointer;
  return fake_cuda::answer(fake_cuda::runtime.of_pointer);
}
