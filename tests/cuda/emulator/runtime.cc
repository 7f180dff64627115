// src/cuda/runtime/runtime.h for the emulator: memory that a test has mapped belongs to device 0.
#include "cuda/runtime/runtime.h"

#include <string>

#include "cuda/emulator/memory.h"
#include "cuda/emulator/runtime.h"

namespace multihead::cuda {
namespace emulator {

RuntimeState& runtime_state() {
  static RuntimeState state;
  return state;
}

}  // namespace emulator

namespace {
using emulator::runtime_state;
}  // namespace

Status current_device(Device& device) {
  device = runtime_state().device;
  if (device.compute_capability >= 80) return {};
  return {StatusCode::kDevice, "device", "compute capability 8.0 or newer",
          std::to_string(device.compute_capability)};
}

Status validate_stream(Stream) { return status_of(runtime_state().stream_error); }

Status validate_memory(const char* argument, const void* address) {
  if (emulator::device().find(address, 1) != nullptr) return {};
  return {StatusCode::kDevice, argument, "memory of the current device", "memory of the host"};
}

Status status_of(int error) {
  if (error == 0) return {};
  return {StatusCode::kDevice, "stream", "a kernel that starts", "error " + std::to_string(error)};
}

}  // namespace multihead::cuda
