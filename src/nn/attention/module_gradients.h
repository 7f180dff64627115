// The steps of MultiHeadAttention::backward(): the steps of ModuleCall in reverse order.
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
