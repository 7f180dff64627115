// Implements device.h with CUDA's runtime.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "device.h"

namespace multihead::bench {
namespace {

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clear it, or the next check would report it again
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(error) + " (" +
                           cudaGetErrorString(error) + ")");
}

cudaEvent_t event(void* handle) { return static_cast<cudaEvent_t>(handle); }

int current_device() {
  int device = 0;
  must(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

int attribute(cudaDeviceAttr which) {
  int value = 0;
  must(cudaDeviceGetAttribute(&value, which, current_device()), "cudaDeviceGetAttribute");
  return value;
}

// A stream of its own, since CUDA does not capture the default stream.
class OwnStream {
 public:
  OwnStream() {
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  ~OwnStream() { cudaStreamDestroy(stream_); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// Converts CUDA's version number: 13000 gives "13.0".
std::string version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

}  // namespace

DeviceMemory::DeviceMemory(size_t bytes) : bytes_(bytes) {
  void* data = nullptr;
  if (bytes != 0) must(cudaMalloc(&data, bytes), "cudaMalloc");
  data_ = static_cast<std::byte*>(data);
}

DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) cudaFree(data_);
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void DeviceMemory::upload(const void* host, size_t at, size_t bytes) const {
  must(cudaMemcpy(data_ + at, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
}

void DeviceMemory::download(void* host) const {
  must(cudaMemcpy(host, data_, bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy to the host");
}

void DeviceMemory::copy_to(const DeviceMemory& other) const {
  must(cudaMemcpyAsync(other.data_, data_, bytes_, cudaMemcpyDeviceToDevice, nullptr),
       "cudaMemcpyAsync");
}

void DeviceMemory::copy_within(size_t from, size_t to, size_t bytes) const {
  must(cudaMemcpyAsync(data_ + to, data_ + from, bytes, cudaMemcpyDeviceToDevice, nullptr),
       "cudaMemcpyAsync");
}

void DeviceMemory::fill(int byte) const {
  if (bytes_ != 0) must(cudaMemsetAsync(data_, byte, bytes_, nullptr), "cudaMemsetAsync");
}

DeviceTimer::DeviceTimer() {
  cudaEvent_t first = nullptr, last = nullptr;
  must(cudaEventCreate(&first), "cudaEventCreate");
  first_ = first;
  if (const cudaError_t error = cudaEventCreate(&last); error != cudaSuccess) {
    cudaEventDestroy(first);
    must(error, "cudaEventCreate");
  }
  last_ = last;
}

DeviceTimer::~DeviceTimer() {
  cudaEventDestroy(event(first_));
  cudaEventDestroy(event(last_));
}

void DeviceTimer::start() const {
  must(cudaEventRecord(event(first_), nullptr), "cudaEventRecord");
}

double DeviceTimer::stop_seconds() const {
  must(cudaEventRecord(event(last_), nullptr), "cudaEventRecord");
  must(cudaEventSynchronize(event(last_)), "cudaEventSynchronize");
  float milliseconds = 0;
  must(cudaEventElapsedTime(&milliseconds, event(first_), event(last_)), "cudaEventElapsedTime");
  return static_cast<double>(milliseconds) * 1e-3;
}

DeviceGraph::DeviceGraph(const std::function<void(cuda::Stream)>& enqueue) {
  const OwnStream stream;
  must(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal),
       "cudaStreamBeginCapture");
  cudaGraph_t graph = nullptr;
  try {
    enqueue(stream.get());
  } catch (...) {
    cudaStreamEndCapture(stream.get(), &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  must(cudaStreamEndCapture(stream.get(), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t instance = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&instance, graph, 0);
  cudaGraphDestroy(graph);
  must(error, "cudaGraphInstantiate");
  instance_ = instance;
}

DeviceGraph::~DeviceGraph() { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(instance_)); }

void DeviceGraph::launch() const {
  must(cudaGraphLaunch(static_cast<cudaGraphExec_t>(instance_), nullptr), "cudaGraphLaunch");
}

std::vector<std::pair<std::string, std::string>> device_facts() {
  cudaDeviceProp properties{};
  must(cudaGetDeviceProperties(&properties, current_device()), "cudaGetDeviceProperties");
  int driver = 0, runtime = 0;
  must(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  must(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  return {{"gpu", properties.name},
          {"compute_capability",
           std::to_string(properties.major) + "." + std::to_string(properties.minor)},
          {"multiprocessors", std::to_string(properties.multiProcessorCount)},
          {"l2_mb", std::to_string(device_l2_bytes() >> 20)},
          {"cuda_driver", version(driver)},
          {"cuda_runtime", version(runtime)}};
}

int64_t device_l2_bytes() { return attribute(cudaDevAttrL2CacheSize); }

double device_copy_speed() {
  static const double measured = [] {
    const DeviceMemory from(size_t{1} << 30), to(size_t{1} << 30);
    from.fill(1);
    const DeviceTimer timer;
    double best = 0;
    for (int run = 0; run < 12; ++run) {
      timer.start();
      from.copy_to(to);
      const double seconds = timer.stop_seconds();
      best = std::max(best, 2 * static_cast<double>(from.bytes()) / seconds);
    }
    return best;
  }();
  return measured;
}

}  // namespace multihead::bench
