// The interface between the entry points and the CUDA kernels. Arguments are already checked and
// planned: a kernel validates nothing and has no defaults.
//
// Each launch function only enqueues work on the stream: it allocates nothing, waits for nothing
// and keeps no state, so it may run while a CUDA graph is captured. It returns CUDA's error code,
// or 0.
#pragma once

#include <cstdint>

namespace multihead::cuda {

struct ForwardParams;     // params.h
struct BackwardParams;    // backward_params.h
struct SplitParams;       // splits.h
struct MergeParams;       // rows/merge_params.h
struct RotateParams;      // rows/rotate_params.h
struct RotateBackParams;  // rows/rotate_params.h
struct ScoresParams;      // rows/scores_params.h

using StreamHandle = void*;  // a cudaStream_t

// Properties of the device that a plan depends on.
struct Device {
  int compute_capability = 0;  // 80, 90
  int multiprocessors = 0;
  int shared_bytes = 0;  // limit of shared memory per block
  // A kernel may be launched before the previous one has ended, see LaunchShape::early: its code
  // was compiled for compute capability 9.0 or newer, since code for older ones would not wait, and
  // CUDA is 12.3 or newer, whose graphs take such launches.
  bool early_launches = false;
};

// Shared memory per block that every device of compute capability 8.0 or newer has (8.6, 8.9 and
// 12.0 have no more). All kernels but Hopper's fit in it.
inline constexpr int64_t kLeastSharedBytes = 99 << 10;
// Compute capability 9.0, for which Hopper's kernels are made.
inline constexpr int64_t kHopperSharedBytes = 227 << 10;

// Largest supported d_k and d_v.
inline constexpr int64_t kMaxWidth = 256;

// Returns CUDA's error code if the build has no code for the current device, or 0. `version`: the
// compute capability that the code was compiled for, times 10; newer devices run it too. All
// kernels but Hopper's are built for the same devices.
int find_code(int& version);

// --- Forward ---

// Computes out and lse. Supports every option, and every type of q, k and v except int8.
int launch_forward_f32(const ForwardParams& params, const Device& device, StreamHandle stream);

// Computes out and lse through mma.sync. q, k and v are all bf16 or all f16, their addresses and
// strides are multiples of 16 bytes, and d_k and d_v are multiples of 8.
int launch_forward_mma(const ForwardParams& params, const Device& device, StreamHandle stream);

// Computes out and lse through TMA and wgmma, only if hopper_objection() is null.
int launch_forward_hopper(const ForwardParams& params, const Device& device, StreamHandle stream);

// Returns the reason why launch_forward_hopper() does not support a call; null if it does.
const char* hopper_objection(const ForwardParams& params, const Device& device);

// --- Decode ---

// Enqueues the splits, and the merge that writes out and lse if a kernel of its own does.
int launch_decode(const SplitParams& params, StreamHandle stream);
// Enqueue the splits, in f32 from any type, or through mma.sync if params.mma.
int launch_decode_f32(const SplitParams& params, StreamHandle stream);
int launch_decode_mma(const SplitParams& params, StreamHandle stream);

// --- Backward. A call enqueues launch_backward_rows(), one of the three that follow it, and then
// the gradients of the bias and the sinks if they are requested. All are deterministic: one thread
// or block adds up each result, in a fixed order. ---

// Computes delta and reference of every query row.
int launch_backward_rows(const BackwardParams& params, StreamHandle stream);

// Computes d_q, d_k and d_v, except gradients with null data. Supports every option, and every type
// of q, k, v and d_out except int8.
int launch_backward_f32(const BackwardParams& params, const Device& device, StreamHandle stream);

// Computes d_q, d_k and d_v through mma.sync. q, k, v and d_out are all bf16 or all f16, their
// addresses and strides are multiples of 16 bytes, and all widths are multiples of 8.
int launch_backward_mma(const BackwardParams& params, const Device& device, StreamHandle stream);

// Computes d_q, d_k and d_v through TMA and wgmma, only if hopper_backward_objection() is null.
int launch_backward_hopper(const BackwardParams& params, const Device& device, StreamHandle stream);

// Returns the reason why launch_backward_hopper() does not support a call; null if it does.
const char* hopper_backward_objection(const BackwardParams& params, const Device& device);

// Compute d_bias and d_sinks, which must not be null.
int launch_bias_gradient(const BackwardParams& params, StreamHandle stream);
int launch_sink_gradient(const BackwardParams& params, StreamHandle stream);

// --- Kernels that work row by row ---

// QK-norm and RoPE, and their backward.
int launch_rotate(const RotateParams& params, StreamHandle stream);
int launch_rotate_back(const RotateBackParams& params, StreamHandle stream);

// Merges two attention results over disjoint keys.
int launch_merge(const MergeParams& params, StreamHandle stream);

// Captures one stage of the scores.
int launch_scores(const ScoresParams& params, StreamHandle stream);
// Writes call.dropout_mask.
int launch_dropout_mask(const ForwardParams& params, StreamHandle stream);

}  // namespace multihead::cuda
