// The options of a MultiHeadAttention's call.
#pragma once

#include "multihead/multi_head_attention.h"

namespace multihead::nn {

// A call's options, with the config's where the call sets none, and with the scale set.
AttentionOptions resolved_options(const MultiHeadAttentionConfig& config,
                                  const MultiHeadAttentionWeights& weights,
                                  const MultiHeadAttentionOptions& options);

Status validate_head_interventions(const HeadInterventions& interventions,
                                   const MultiHeadAttentionConfig& config);

}  // namespace multihead::nn
