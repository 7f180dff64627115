// The steps of MultiHeadAttention::backward(): the steps of ModuleCall in reverse order. "d" before
// a name is the gradient of the loss, `^T` a transpose, and sums over rows are over all tokens. The
// forward (Vaswani et al., arXiv:1706.03762, section 3.2) is
//
//   q = x W_q^T + b_q, likewise k and v    q', k' = RoPE(RMSNorm(q)), RoPE(RMSNorm(k))
//   a_h = softmax(scale q'_h k'_h^T) v_h   m = [s_1 a_1 | s_2 a_2 | ...]   y = dropout(m W_o^T +
//   b_o)
//
// where s_h is head_scales. Its backward:
//
//   finish_back      dy is masked and scaled as y was; dm = dy W_o, dW_o += dy^T m, db_o += the sum
//                    of the rows of dy; da_h = s_h dm_h
//   attention_back   dq', dk', dv and the gradient of the sinks: attention_backward()
//   transform_back   dq and dk: the inverse rotation, then the backward of the RMS norm
//   append_back      dbias_k, dbias_v += the sum over the batch of the appended rows
//   project_back     dx = dq W_q, plus dk W_k and dv W_v if x is also the key and value;
//                    dW_q += dq^T x, db_q += the sum of the rows of dq, likewise for k and v
//
// Latent attention (latent.h) computes [k_h | v_h] = W_b,h c from the normalized latent c, and
// shares r among the heads: dc = sum over h of [dk_h | dv_h] W_b,h and dr = sum over h of the last
// rope_head_dim columns of dk_h. The RMS norm's backward turns dc into the gradient of the first
// columns of W_a x.
#pragma once

#include "multihead/multi_head_attention.h"
#include "nn/attention/module_call.h"
#include "nn/attention/sequence.h"
#include "rules/arena.h"

namespace multihead::nn {

class ModuleGradients {
 public:
  // `call` must have computed its arrays before run(). `options` are the module's, with QK-norm and
  // RoPE. All arguments must outlive this object.
  ModuleGradients(const ModuleCall& call, const AttentionOptions& options,
                  const MultiHeadAttentionGradients& gradients)
      : call_(call), options_(options), gradients_(gradients) {}

  void lay_out(rules::Arena& take);

  // `effective`: the options that attention() got. If an input defaults to another input, its
  // gradient is added to that input's gradient. Errors: kMemory.
  Status run(const Sequence<const float>& d_out, const AttentionOptions& effective, bool key_given,
             bool value_given) const;

 private:
  // Calls project_backward() with the call's precision.
  Status matrix_back(ProjectBackward call) const;
  // Backpropagates from the output to the heads.
  Status finish_back(Sequence<const float> d_out) const;
  Status attention_back(const AttentionOptions& effective) const;
  // Backpropagates through QK-norm and RoPE.
  Status transform_back() const;
  void append_back() const;
  // Backpropagates from q, k and v to the inputs.
  Status project_back(bool key_given, bool value_given) const;
  Status project_latent_back(const Tensor& d_query, const Tensor& d_key, bool adds_to_d_key) const;
  bool fused() const;
  Sequence<float> gradient_of(const Tensor& tensor) const;

  const ModuleCall& call_;
  const AttentionOptions& options_;
  const MultiHeadAttentionGradients& gradients_;

  Sequence<float> d_dropped_ = {};  // gradient of the output before dropout
  Sequence<float> d_heads_ = {};    // gradient of call.attended
  Sequence<float> d_q_ = {}, d_k_ = {}, d_v_ = {};
  float* d_vector_ = nullptr;  // gradient of the sinks or of a gain, before it is added
  // Latent attention only.
  Sequence<float> d_q_latent_ = {}, d_kv_latent_ = {}, d_compressed_kv_ = {}, d_expanded_ = {};
};

}  // namespace multihead::nn
