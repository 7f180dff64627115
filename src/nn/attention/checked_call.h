// The start of a module's forward() and backward(): checks the inputs, and fills in the module's
// own options.
#pragma once

#include <cstdint>

#include "engine/attention/validate.h"
#include "engine/error/error.h"
#include "multihead/multi_head_attention.h"
#include "nn/attention/module_call.h"
#include "nn/attention/sequence.h"
#include "nn/attention/tracer.h"

namespace multihead::nn {

// The order of the axes of a call's tensors.
struct TokenLayout {
  bool batched, batch_first;
  engine::Axes axes(engine::Axes batch_first_, engine::Axes tokens_first,
                    engine::Axes unbatched) const {
    return !batched ? unbatched : batch_first ? batch_first_ : tokens_first;
  }
  Dims shape(int64_t batch, int64_t tokens, int64_t width) const {
    if (!batched) return {tokens, width};
    return batch_first ? Dims{batch, tokens, width} : Dims{tokens, batch, width};
  }
};

struct CheckedCall {
  TokenLayout layout{};
  ConstTensor query_tensor = {}, key_tensor = {}, value_tensor = {};  // missing inputs replaced
  Sequence<const float> query = {}, key = {}, value = {};
  bool self = false;     // self-attention: key and value are the query
  int64_t appended = 0;  // number of appended keys
  engine::AttentionShape shape = {};
  MultiHeadAttentionOptions options = {};  // `attention` is complete except for masks

  // Number of keys, including the keys that the module appends.
  int64_t keys() const { return key.tokens + appended; }
  ModuleCall module_call(const MultiHeadAttentionConfig& config,
                         const MultiHeadAttentionWeights& weights, Tracer& tracer,
                         Context& context) const;
};

// Returns the call's options; options that the call does not set come from the config, and the
// scale is set.
AttentionOptions resolved_options(const MultiHeadAttentionConfig& config,
                                  const MultiHeadAttentionWeights& weights,
                                  const MultiHeadAttentionOptions& options);

Status validate_head_interventions(const HeadInterventions& interventions,
                                   const MultiHeadAttentionConfig& config);

// Checks everything except masks and outputs. Errors: kShape, kOption.
Status check_call(const MultiHeadAttentionConfig& config, const MultiHeadAttentionWeights& weights,
                  const MultiHeadAttentionInputs& inputs, const MultiHeadAttentionOptions& options,
                  CheckedCall& call);

}  // namespace multihead::nn
