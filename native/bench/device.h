// What the benchmarks need of a GPU besides multihead/cuda.h: memory, times of events, and facts.
// device_cuda.cc asks CUDA's runtime, no_device.cc stands in its place in builds without, and the
// tests have an emulated device. Errors are exceptions with CUDA's text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace multihead::bench {

// Memory of the device. What is enqueued runs in order on the default stream.
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

  // These wait until it is done.
  void upload(const void* host, size_t at, size_t bytes) const;
  void download(void* host) const;
  // These only enqueue.
  void copy_to(const DeviceMemory& other) const;  // of at least the same size
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
  double stop_seconds() const;  // enqueues the second one, and waits for it

 private:
  [[maybe_unused]] void *first_ = nullptr, *last_ = nullptr;  // unused in no_device.cc
};

// Of the current device: { name, value } for people to read.
std::vector<std::pair<std::string, std::string>> device_facts();
int64_t device_l2_bytes();

// Bytes a second that a copy within the device reads and writes; measured by the first call.
double device_copy_speed();

}  // namespace multihead::bench
