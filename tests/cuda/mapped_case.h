// Memory of random calls, mapped as memory of the emulated device.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cuda/emulator/memory.h"
#include "cuda/splits.h"
#include "multihead/attention.h"
#include "multihead/cuda.h"
#include "multihead/status.h"
#include "support/call_outputs.h"
#include "support/random_case.h"

namespace multihead::cuda::testing {

using multihead::testing::CallOutputs;
using multihead::testing::RandomCase;

// Initial value of outputs, to check that refused calls do not write.
inline constexpr float kUntouched = 77.0F;

// Expects that the call was refused for this reason and wrote nothing.
inline void expect_refusal(const Status& status, StatusCode code, const std::string& argument,
                           const std::string& got, std::span<const float> out) {
  EXPECT_EQ(status.code(), code);
  EXPECT_EQ(status.argument(), argument);
  EXPECT_NE(status.got().find(got), std::string::npos) << status.message();
  for (const float value : out) EXPECT_EQ(value, kUntouched);
}

// Maps memory until the object is destroyed.
class Mapping {
 public:
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    for (const void* address : addresses_) emulator::device().unmap(address);
  }

  void add(const void* data, size_t bytes, emulator::Use use, const std::string& name) {
    if (bytes == 0) return;
    emulator::device().map(data, bytes, use, name);
    addresses_.push_back(data);
  }
  template <class Array>
  void add(const Array& array, emulator::Use use, const std::string& name) {
    add(array.data(), array.size() * sizeof(*array.data()), use, name);
  }
  void add_inputs(const RandomCase& c) {
    for (const auto& array : c.storage) add(array, emulator::Use::kInput, "floats");
    for (const auto& array : c.halves) add(array, emulator::Use::kInput, "halves");
    for (const auto& array : c.bytes) add(array, emulator::Use::kInput, "bytes");
    for (const auto& array : c.integers) add(array, emulator::Use::kInput, "integers");
  }
  void add_outputs(const CallOutputs& outputs) {
    for (const auto& array : outputs.bytes()) add(array, emulator::Use::kOutput, "output");
  }

 private:
  std::vector<const void*> addresses_;
};

// Mapped memory of a workspace, with the alignment of device memory.
class MappedWorkspace {
 public:
  explicit MappedWorkspace(uint64_t bytes) : memory_(bytes + kAlignment) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    const size_t gap = (kAlignment - address % kAlignment) % kAlignment;
    workspace_ = {memory_.data() + gap, bytes};
    mapping_.add(workspace_.data, bytes, emulator::Use::kWorkspace, "workspace");
  }
  const Workspace& get() const { return workspace_; }

 private:
  static constexpr size_t kAlignment = 256;
  std::vector<std::byte> memory_;
  Workspace workspace_;
  Mapping mapping_;
};

// Mapped memory of the partial results and the counters of decoding. Nobody sets the counters.
class SplitMemory {
 public:
  explicit SplitMemory(SplitParams& params)
      : partials_(partial_bytes(params) / sizeof(float)),
        ended_(params.counts() ? static_cast<size_t>(params.tiles()) : 0, 0x7FC12345000000FFU) {
    params.partials = partials_.data();
    params.ended = ended_.data();
    mapping_.add(partials_, emulator::Use::kWorkspace, "partials");
    mapping_.add(ended_, emulator::Use::kWorkspace, "ended");
    emulator::device().set_waits_first(true);
  }
  SplitMemory(const SplitMemory&) = delete;
  SplitMemory& operator=(const SplitMemory&) = delete;
  ~SplitMemory() { emulator::device().set_waits_first(false); }

 private:
  std::vector<float> partials_;
  std::vector<uint64_t> ended_;
  Mapping mapping_;
};

// The elements of a tensor as floats, in order and without gaps.
inline std::vector<float> floats_of(const ConstAnyTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.shape.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = multihead::testing::element(tensor, static_cast<int64_t>(i));
  }
  return values;
}

inline void expect_no_findings() {
  for (const std::string& finding : emulator::device().take_findings()) {
    ADD_FAILURE() << finding;
  }
}

}  // namespace multihead::cuda::testing
