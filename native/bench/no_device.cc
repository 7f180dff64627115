// Replaces device_cuda.cc in builds without CUDA. These functions are never reached, because the
// program checks cuda::available() first.
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

[[noreturn]] void no_cuda() { throw std::runtime_error("this build has no CUDA"); }

}  // namespace

DeviceMemory::DeviceMemory(size_t) { no_cuda(); }
DeviceMemory::~DeviceMemory() = default;
DeviceMemory::DeviceMemory(DeviceMemory&&) noexcept = default;
DeviceMemory& DeviceMemory::operator=(DeviceMemory&&) noexcept = default;
void DeviceMemory::upload(const void*, size_t, size_t) const { no_cuda(); }
void DeviceMemory::download(void*) const { no_cuda(); }
void DeviceMemory::copy_to(const DeviceMemory&) const { no_cuda(); }
void DeviceMemory::copy_within(size_t, size_t, size_t) const { no_cuda(); }
void DeviceMemory::fill(int) const { no_cuda(); }

DeviceTimer::DeviceTimer() { no_cuda(); }
DeviceTimer::~DeviceTimer() = default;
void DeviceTimer::start() const { no_cuda(); }
double DeviceTimer::stop_seconds() const { no_cuda(); }

DeviceGraph::DeviceGraph(const std::function<void(cuda::Stream)>&) { no_cuda(); }
DeviceGraph::~DeviceGraph() = default;
void DeviceGraph::launch() const { no_cuda(); }

std::vector<std::pair<std::string, std::string>> device_facts() { no_cuda(); }
int64_t device_l2_bytes() { no_cuda(); }
double device_copy_speed() { no_cuda(); }

}  // namespace multihead::bench
