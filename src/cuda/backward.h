// One call of attention_backward() or attention_varlen_backward() on the device, and its kernels,
// which are enqueued in this order:
//
//   1. launch_backward_rows: delta and reference of every query row;
//   2. launch_backward_f32 or launch_backward_half: d_q, d_k and d_v;
//   3. launch_bias_gradient and launch_sink_gradient, where these are asked for.
//
// All are deterministic: each number is the sum of one thread or block, in a fixed order. The rules
// at the head of kernels.h hold.
#pragma once

#include <type_traits>

#include "cuda/kernels.h"
#include "cuda/params.h"
#include "rules/attention_params.h"
#include "rules/backward_params.h"

namespace multihead::cuda {

// out, d_out, lse and the gradients have the axes of AttentionGradients; of packed sequences, with
// one batch entry and the rows of all sequences, as q, k and v.
struct BackwardParams : rules::GradientParams {
  ForwardParams forward;  // without outputs; q and k are those after QK-norm and RoPE
  // (B, H_q, N_q), or for packed sequences (1, H_q, packed_queries): the sum of out * d_out over a
  // row, and the row's LSE / scale.of_softmax. Memory of the workspace.
  rules::Rows<float> delta, reference;
  float* d_sinks = nullptr;  // (H_q), may be null
};
static_assert(std::is_trivially_copyable_v<BackwardParams> && sizeof(BackwardParams) <= 4096);

// delta and reference.
int launch_backward_rows(const BackwardParams& params, StreamHandle stream);

// d_q, d_k and d_v, those that are given. Any option, any types of q, k, v and d_out but int8.
int launch_backward_f32(const BackwardParams& params, const Device& device, StreamHandle stream);

// The same through mma.sync: q, k, v and d_out are all bf16 or all f16, their addresses and strides
// are multiples of 16 bytes, and widths are multiples of 8.
int launch_backward_half(const BackwardParams& params, const Device& device, StreamHandle stream);

// The same through TMA and wgmma, on Hopper (compute capability 9.0) only, for calls without
// hopper_backward_objection().
int launch_backward_hopper(const BackwardParams& params, const Device& device, StreamHandle stream);

// Why launch_backward_hopper() does not serve a call, in words; null if it does.
const char* hopper_backward_objection(const BackwardParams& params);

// d_bias, which is given, and d_sinks, which is given.
int launch_bias_gradient(const BackwardParams& params, StreamHandle stream);
int launch_sink_gradient(const BackwardParams& params, StreamHandle stream);

}  // namespace multihead::cuda
