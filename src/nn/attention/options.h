// Options of a call to MultiHeadAttention.
#pragma once

#include "multihead/multi_head_attention.h"

namespace multihead::nn {

// Returns the call's options; options that the call does not set come from the config, and the
// scale is set.
AttentionOptions resolved_options(const MultiHeadAttentionConfig& config,
                                  const MultiHeadAttentionWeights& weights,
                                  const MultiHeadAttentionOptions& options);

Status validate_head_interventions(const HeadInterventions& interventions,
                                   const MultiHeadAttentionConfig& config);

}  // namespace multihead::nn
