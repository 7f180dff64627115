// The parameters of one call of attention_backward() or attention_varlen_backward() on the device,
// and the kernels that it enqueues, in this order:
//
//   1. launch_backward_rows: delta and reference of every query row;
//   2. launch_backward_hopper, launch_backward_half or launch_backward_f32: d_q, d_k and d_v;
//   3. launch_bias_gradient and launch_sink_gradient, if these gradients are requested.
//
// All kernels are deterministic: one thread or block adds up each result, in a fixed order. They
// follow the rules at the head of kernels.h.
#pragma once

#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/params.h"
#include "rules/attention_params.h"
#include "rules/backward_params.h"

namespace multihead::cuda {

// out, d_out, lse and the gradients have the axes of AttentionGradients. For packed sequences they
// have one batch entry with the rows of all sequences, like q, k and v.
struct BackwardParams : rules::GradientParams {
  ForwardParams forward;  // without outputs; q and k after QK-norm and RoPE
  // Both are (B, H_q, N_q), or (1, H_q, packed_queries) for packed sequences, in the workspace.
  // delta: sum of out * d_out over a row. reference: the row's LSE / scale.softmax.
  rules::Rows<float> delta, reference;
  float* d_sinks = nullptr;  // (H_q), may be null
};
static_assert(std::is_trivially_copyable_v<BackwardParams> && sizeof(BackwardParams) <= 4096);

// Computes delta and reference.
int launch_backward_rows(const BackwardParams& params, StreamHandle stream);

// Computes d_q, d_k and d_v, except gradients with null data. Supports every option, and every type
// of q, k, v and d_out except int8.
int launch_backward_f32(const BackwardParams& params, const Device& device, StreamHandle stream);

// Computes d_q, d_k and d_v through mma.sync. q, k, v and d_out are all bf16 or all f16, their
// addresses and strides are multiples of 16 bytes, and all widths are multiples of 8.
int launch_backward_half(const BackwardParams& params, const Device& device, StreamHandle stream);

// Computes d_q, d_k and d_v through TMA and wgmma, only if hopper_backward_objection() is null.
int launch_backward_hopper(const BackwardParams& params, const Device& device, StreamHandle stream);

// Returns the reason why launch_backward_hopper() does not support a call; null if it does.
const char* hopper_backward_objection(const BackwardParams& params, const Device& device);

// Compute d_bias and d_sinks, which must not be null.
int launch_bias_gradient(const BackwardParams& params, StreamHandle stream);
int launch_sink_gradient(const BackwardParams& params, StreamHandle stream);

}  // namespace multihead::cuda
