// The steps of MultiHeadAttention::backward(), those of ModuleCall in reverse.
#pragma once

#include "multihead/multi_head_attention.h"
#include "nn/attention/module_call.h"
#include "nn/attention/sequence.h"
#include "rules/arena.h"

namespace multihead::nn {

class ModuleGradients {
 public:
  // `call` has computed its arrays when run() is called. `options` are the module's, with QK-norm
  // and RoPE; all must outlive this object.
  ModuleGradients(const ModuleCall& call, const AttentionOptions& options,
                  const MultiHeadAttentionGradients& gradients)
      : call_(call), options_(options), gradients_(gradients) {}

  void lay_out(rules::Arena& take);

  // `effective` are the options that attention() got. Where an input defaults to another, its
  // gradient is added to the other's. Errors: kMemory.
  Status run(const Sequence<const float>& d_out, const AttentionOptions& effective, bool key_given,
             bool value_given) const;

 private:
  // project_backward() with the call's precision.
  Status matrix_back(ProjectBackward call) const;
  // From the output to the heads.
  Status finish_back(Sequence<const float> d_out) const;
  Status attention_back(const AttentionOptions& effective) const;
  // QK-norm and RoPE.
  Status transform_back() const;
  void append_back() const;
  // From the heads to the inputs.
  Status project_back(bool key_given, bool value_given) const;
  Status project_latent_back(const Tensor& d_query, const Tensor& d_key, bool adds_to_d_key) const;
  bool fused() const;
  Sequence<float> gradient_of(const Tensor& tensor) const;

  const ModuleCall& call_;
  const AttentionOptions& options_;
  const MultiHeadAttentionGradients& gradients_;

  Sequence<float> d_dropped_ = {};  // of the output before dropout
  Sequence<float> d_heads_ = {};    // like call.attended
  Sequence<float> d_q_ = {}, d_k_ = {}, d_v_ = {};
  float* d_vector_ = nullptr;  // of the sinks or of a gain, until it is added
  // Of latent attention.
  Sequence<float> d_q_latent_ = {}, d_kv_latent_ = {}, d_compressed_kv_ = {}, d_expanded_ = {};
};

}  // namespace multihead::nn
