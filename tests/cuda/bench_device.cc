// native/bench/device.h for the emulator: host memory that kernels may use, and the host's clock.
// Enqueued work has finished when the call returns; a graph computes when it is launched.
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cuda/emulator/memory.h"
#include "device.h"

namespace multihead::bench {
namespace {

constexpr std::align_val_t kAlignment{256};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

DeviceMemory::DeviceMemory(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  data_ = static_cast<std::byte*>(::operator new(bytes, kAlignment));
  cuda::emulator::device().map(data_, bytes, cuda::emulator::Use::kInPlace, "memory of a case");
}

DeviceMemory::~DeviceMemory() {
  if (data_ == nullptr) return;
  cuda::emulator::device().unmap(data_);
  ::operator delete(data_, kAlignment);
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void DeviceMemory::upload(const void* host, size_t at, size_t bytes) const {
  std::memcpy(data_ + at, host, bytes);
}
void DeviceMemory::download(void* host) const { std::memcpy(host, data_, bytes_); }
void DeviceMemory::copy_to(const DeviceMemory& other) const {
  std::memcpy(other.data_, data_, bytes_);
}
void DeviceMemory::copy_within(size_t from, size_t to, size_t bytes) const {
  std::memcpy(data_ + to, data_ + from, bytes);
}
void DeviceMemory::fill(int byte) const {
  if (bytes_ != 0) std::memset(data_, byte, bytes_);
}

DeviceTimer::DeviceTimer() : first_(new double(0)) {}
DeviceTimer::~DeviceTimer() { delete static_cast<double*>(first_); }
void DeviceTimer::start() const { *static_cast<double*>(first_) = now(); }
double DeviceTimer::stop_seconds() const { return now() - *static_cast<double*>(first_); }

DeviceGraph::DeviceGraph(const std::function<void(cuda::Stream)>& enqueue) {
  cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeThreadLocal);
  enqueue(nullptr);
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(nullptr, &graph);
  instance_ = graph;
}
DeviceGraph::~DeviceGraph() { cudaGraphDestroy(static_cast<cudaGraph_t>(instance_)); }
void DeviceGraph::launch() const { cudaGraphLaunch(static_cast<cudaGraph_t>(instance_), nullptr); }

std::vector<std::pair<std::string, std::string>> device_facts() { return {{"gpu", "emulated"}}; }
int64_t device_l2_bytes() { return 4096; }
double device_copy_speed() { return 1e9; }

}  // namespace multihead::bench
