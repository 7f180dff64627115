// The GPU functions that the benchmarks need in addition to multihead/cuda.h: memory, timing by
// events, and facts about the device. device_cuda.cc implements them with CUDA's runtime,
// no_device.cc replaces it in builds without CUDA, and the tests have an emulated device. Errors
// are exceptions with CUDA's text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "multihead/cuda.h"

namespace multihead::bench {

// Memory of the device. Enqueued work runs in order on the default stream.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(size_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  // upload() and download() wait until the copy has ended.
  void upload(const void* host, size_t at, size_t bytes) const;
  void download(void* host) const;
  // copy_to(), copy_within() and fill() only enqueue.
  void copy_to(const DeviceMemory& other) const;  // `other` is at least as large
  void copy_within(size_t from, size_t to, size_t bytes) const;
  void fill(int byte) const;

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// The time between two events on the default stream.
class DeviceTimer {
 public:
  DeviceTimer();
  ~DeviceTimer();
  DeviceTimer(const DeviceTimer&) = delete;
  DeviceTimer& operator=(const DeviceTimer&) = delete;

  void start() const;           // enqueues the first event
  double stop_seconds() const;  // enqueues the second event and waits for it

 private:
  [[maybe_unused]] void *first_ = nullptr, *last_ = nullptr;  // unused in no_device.cc
};

// A CUDA graph of the work that `enqueue` puts on the stream it is given.
class DeviceGraph {
 public:
  explicit DeviceGraph(const std::function<void(cuda::Stream)>& enqueue);
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  void launch() const;  // enqueues all of its work on the default stream

 private:
  [[maybe_unused]] void* instance_ = nullptr;  // unused in no_device.cc
};

// Facts about the current device for people to read: { name, value }.
std::vector<std::pair<std::string, std::string>> device_facts();
int64_t device_l2_bytes();

// Bytes per second that a copy within the device reads plus writes. The first call measures it.
double device_copy_speed();

}  // namespace multihead::bench
