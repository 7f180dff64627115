// The parameters of one call of attention_backward() or attention_varlen_backward() on the device.
#pragma once

#include <type_traits>
#include <utility>

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
  // out and d_out are both bf16 or both f16, and all pieces of 8 elements are aligned to 16 bytes.
  bool wide_rows = false;
};
static_assert(std::is_trivially_copyable_v<BackwardParams> && sizeof(BackwardParams) <= 4096);

// The launches of a call's kernels of products. They depend on launch_backward_rows(), but not on
// each other. So each but the first may be launched early (LaunchShape): while the last blocks of
// the previous kernel run, multiprocessors without work begin with the next one.
struct BackwardLaunches {
  StreamHandle stream;
  bool allows_early;  // Device::early_launches
  bool early = false;

  // True if the next launch may be early. Each launch calls it once.
  bool next_is_early() { return std::exchange(early, allows_early); }
};

}  // namespace multihead::cuda
