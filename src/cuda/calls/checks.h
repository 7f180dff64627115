// The checks of calls on the device that calls on the CPU do not need.
#pragma once

#include <cstdint>
#include <span>

#include "engine/attention/validate.h"
#include "multihead/attention.h"
#include "multihead/cuda.h"
#include "multihead/status.h"

namespace multihead::cuda {

// An address that kernels of a call read or write; null is not looked at.
struct Address {
  const char* argument;
  const void* data;
  int64_t alignment;  // bytes of an element
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

// kShape for an address that is not a multiple of its elements' size, kDevice for one that is not
// memory of the current device.
Status validate_addresses(std::span<const Address> addresses);

// Every address that options and outputs name.
Status validate_option_addresses(const AttentionOptions& options);
Status validate_output_addresses(const AttentionOutputs& outputs);

Status validate_sequence_addresses(const PackedSequences& sequences);

// max_queries and max_keys.
Status validate_longest(const PackedSequences& sequences);

// Rows of queries, keys and values that the kernels support.
Status validate_widths(const engine::AttentionShape& shape);

// That the workspace has `bytes`, aligned, in memory of the device.
Status validate_workspace(const Workspace& workspace, uint64_t bytes);

}  // namespace multihead::cuda
