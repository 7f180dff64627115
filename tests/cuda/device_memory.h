// Copies of host arrays in GPU memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <span>

#include "multihead/attention.h"

namespace multihead::testing {

// Ends the program on an error, because after most kernel errors no later call works.
inline void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s (%s)\n", what, cudaGetErrorName(error), cudaGetErrorString(error));
  std::exit(1);
}

// Copies of host arrays on the device. at() maps an address within a host array to its copy.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() {
    for (const auto& [host, copy] : copies_) cudaFree(copy.data);
  }

  template <class Array>
  void add(Array& array) {
    if (array.empty()) return;
    Copy copy{nullptr, array.size() * sizeof(array[0]), array.data()};
    must(cudaMalloc(&copy.data, copy.bytes), "cudaMalloc");
    must(cudaMemcpy(copy.data, array.data(), copy.bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    copies_[reinterpret_cast<uintptr_t>(array.data())] = copy;
  }
  void read_back() const {
    for (const auto& [host, copy] : copies_) {
      must(cudaMemcpy(copy.host, copy.data, copy.bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    }
  }
  // Returns the device address for a host address. Null, and arrays that were not added because
  // they are empty, give null.
  template <class T>
  T* at(T* host) const {
    const auto address = reinterpret_cast<uintptr_t>(host);
    auto after = copies_.upper_bound(address);
    if (after == copies_.begin()) return nullptr;
    const auto& [begin, copy] = *std::prev(after);
    if (address - begin >= copy.bytes) return nullptr;
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(copy.data) + (address - begin));
  }
  template <class Tensor>
  void move(Tensor& tensor) const {
    tensor.data = at(static_cast<decltype(tensor.data)>(tensor.data));
  }
  template <class T>
  void move(std::span<const T>& values) const {
    if (!values.empty()) values = {at(values.data()), values.size()};
  }

 private:
  struct Copy {
    void* data;
    size_t bytes;
    void* host;
  };
  std::map<uintptr_t, Copy> copies_;
};

// Makes options point to the copies of their arrays.
inline void move_options(AttentionOptions& options, const DeviceMemory& memory) {
  memory.move(options.mask);
  memory.move(options.bias);
  memory.move(options.kv_lengths);
  memory.move(options.alibi_slopes);
  memory.move(options.sinks);
  memory.move(options.qk_norm.q_gain);
  memory.move(options.qk_norm.k_gain);
  memory.move(options.rope.q_positions);
  memory.move(options.rope.k_positions);
}

}  // namespace multihead::testing
