// Checks of calls on the device that calls on the CPU do not need.
#pragma once

#include <cstdint>
#include <span>

#include "engine/attention/validate.h"
#include "multihead/attention.h"
#include "multihead/cuda.h"
#include "multihead/status.h"

namespace multihead::cuda {

// An address that kernels of a call read or write. Null is not checked.
struct Address {
  const char* argument;
  const void* data;
  int64_t alignment;  // bytes per element
};

template <class TensorLike>
Address address_of(const char* argument, const TensorLike& tensor) {
  int64_t bytes = sizeof(uint8_t);
  if constexpr (requires { tensor.dtype; }) {
    bytes = bytes_of(tensor.dtype);
  } else {
    bytes = sizeof(*tensor.data);
  }
  return {argument, tensor.shape.elements() == 0 ? nullptr : tensor.data, bytes};
}

template <class T>
Address address_of(const char* argument, std::span<T> values) {
  return {argument, values.empty() ? nullptr : values.data(), sizeof(T)};
}

// Returns kShape for an address that is not a multiple of its element size, and kDevice for an
// address outside the memory of the current device.
Status validate_addresses(std::span<const Address> addresses);

// Check every address in options and outputs.
Status validate_option_addresses(const AttentionOptions& options);
Status validate_output_addresses(const AttentionOutputs& outputs);

Status validate_sequence_addresses(const PackedSequences& sequences);

// Checks that max_queries and max_keys are not negative.
Status validate_longest(const PackedSequences& sequences);

// Checks that d_k and d_v are at most kMaxWidth.
Status validate_widths(const engine::AttentionShape& shape);

// Checks that the workspace has `bytes` bytes of device memory, aligned to 256 bytes.
Status validate_workspace(const Workspace& workspace, uint64_t bytes);

}  // namespace multihead::cuda
