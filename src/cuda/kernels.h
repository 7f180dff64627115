// The interface of the CUDA kernels for the entry points. Arguments are already checked and
// planned: a kernel validates nothing and has no defaults.
//
// Each function only enqueues work on the stream: it allocates nothing, waits for nothing and keeps
// no state, so that it may run while a CUDA graph is captured. It returns CUDA's error code, 0 for
// none.
#pragma once

#include <cstdint>

#include "cuda/params.h"

namespace multihead::cuda {

using StreamHandle = void*;  // a cudaStream_t

// Facts about a processor by which a call is planned.
struct Device {
  int compute_capability = 0;  // 80, 90
  int multiprocessors = 0;
  int shared_bytes = 0;  // most shared memory of a block
};

// Widest row of q, k or v.
inline constexpr int64_t kMaxWidth = 256;

// out and lse. Any option, any types of q, k and v but int8.
int launch_forward_f32(const ForwardParams& params, const Device& device, StreamHandle stream);

// The same through mma.sync: q, k and v are all bf16 or all f16, their addresses and strides are
// multiples of 16 bytes.
int launch_forward_half(const ForwardParams& params, const Device& device, StreamHandle stream);

// The same through TMA and wgmma, on Hopper (compute capability 9.0) only, for calls without
// hopper_objection().
int launch_forward_hopper(const ForwardParams& params, const Device& device, StreamHandle stream);

// Why launch_forward_hopper() does not serve a call, in words; null if it does.
const char* hopper_objection(const ForwardParams& params);

}  // namespace multihead::cuda
