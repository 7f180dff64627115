// The functions of the CUDA runtime that the checks of a device use, for the emulated device: so
// the checks themselves are tested without a GPU. Work has ended when a call returns; a
// kernel that is launched while a stream is captured runs when the graph is launched.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <new>
#include <utility>
#include <vector>

#include "cuda/emulator/block.h"
#include "cuda/emulator/memory.h"
#include "cuda/emulator/runtime.h"

enum cudaError_t { cudaSuccess = 0 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
enum cudaDeviceAttr { cudaDevAttrComputeCapabilityMajor = 75 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
constexpr unsigned cudaStreamNonBlocking = 1;
struct CUstream_st {};
using cudaStream_t = CUstream_st*;
using cudaGraph_t = std::vector<std::function<void()>>*;
using cudaGraphExec_t = cudaGraph_t;

inline const char* cudaGetErrorName(cudaError_t) { return "an error"; }
inline const char* cudaGetErrorString(cudaError_t) { return "of the emulator"; }
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = multihead::cuda::emulator::runtime_state().device.compute_capability / 10;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

inline cudaError_t cudaMalloc(void** data, size_t bytes) {
  *data = ::operator new (bytes, std::align_val_t{256});
  std::memset(*data, 0xff, bytes);
  using multihead::cuda::emulator::Use;
  multihead::cuda::emulator::device().map(*data, bytes, Use::kInPlace, "memory of a check");
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* data) {
  if (data == nullptr) return cudaSuccess;
  multihead::cuda::emulator::device().unmap(data);
  ::operator delete (data, std::align_val_t{256});
  return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemset(void* to, int byte, size_t bytes) {
  std::memset(to, byte, bytes);
  return cudaSuccess;
}

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }

namespace emulated_cuda {
inline cudaGraph_t captured = nullptr;
}  // namespace emulated_cuda

inline cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  emulated_cuda::captured = new std::vector<std::function<void()>>;
  multihead::cuda::emulator::launch_recorder() = [](std::function<void()> launch) {
    emulated_cuda::captured->push_back(std::move(launch));
  };
  return cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  multihead::cuda::emulator::launch_recorder() = nullptr;
  *graph = std::exchange(emulated_cuda::captured, nullptr);
  return cudaSuccess;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* instance, cudaGraph_t graph, unsigned) {
  *instance = new std::vector<std::function<void()>>(*graph);
  return cudaSuccess;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t instance, cudaStream_t) {
  for (const auto& launch : *instance) launch();
  return cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t instance) {
  delete instance;
  return cudaSuccess;
}
