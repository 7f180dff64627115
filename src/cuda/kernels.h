// The interface between the entry points and the CUDA kernels. Arguments are already checked and
// planned: a kernel validates nothing and has no defaults.
//
// Each launch function only enqueues work on the stream: it allocates nothing, waits for nothing
// and keeps no state, so it may run while a CUDA graph is captured. It returns CUDA's error code,
// or 0.
#pragma once

#include <cstdint>

#include "cuda/params.h"

namespace multihead::cuda {

using StreamHandle = void*;  // a cudaStream_t

// Properties of the device that a plan depends on.
struct Device {
  int compute_capability = 0;  // 80, 90
  int multiprocessors = 0;
  int shared_bytes = 0;  // limit of shared memory per block
};

// Shared memory per block that every device of compute capability 8.0 or newer has (8.6, 8.9 and
// 12.0 have no more). All kernels but Hopper's fit in it.
inline constexpr int64_t kLeastSharedBytes = 99 << 10;
// Compute capability 9.0, for which Hopper's kernels are made.
inline constexpr int64_t kHopperSharedBytes = 227 << 10;

// Largest supported d_k and d_v.
inline constexpr int64_t kMaxWidth = 256;

// Returns CUDA's error code if the build has no code for the current device, or 0. All kernels but
// Hopper's are built for the same devices.
int find_code();

// Computes out and lse. Supports every option, and every type of q, k and v except int8.
int launch_forward_f32(const ForwardParams& params, const Device& device, StreamHandle stream);

// Computes out and lse through mma.sync. q, k and v are all bf16 or all f16, their addresses and
// strides are multiples of 16 bytes, and d_k and d_v are multiples of 8.
int launch_forward_half(const ForwardParams& params, const Device& device, StreamHandle stream);

// Computes out and lse through TMA and wgmma, only if hopper_objection() is null.
int launch_forward_hopper(const ForwardParams& params, const Device& device, StreamHandle stream);

// Returns the reason why launch_forward_hopper() does not support a call; null if it does.
const char* hopper_objection(const ForwardParams& params, const Device& device);

}  // namespace multihead::cuda
