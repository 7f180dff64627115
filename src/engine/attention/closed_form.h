// Calls of attention() whose queries and keys have width 0. Their scores are 0 before bias, ALiBi
// and masks, so a call without memory could ask for any number of products. The work of these calls
// is bounded by the size of what they read and write instead.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"
#include "rules/attention_params.h"

namespace multihead::engine {

// Whether the mask and the bias, as far as they are given, have the same number for all keys.
bool keys_share_mask_and_bias(const rules::AttentionParams& p);

// Whether closed_form_block() computes the call: its LSE where no operand has a number for each
// key, or else nothing but captures.
bool has_closed_form(const rules::AttentionParams& p);

// The LSE of a row of a call without captures that has a closed form.
float closed_form_lse(const rules::AttentionParams& p, int64_t batch, int64_t head, int64_t query);

// Writes the LSE or the captures of the job's rows and heads.
void closed_form_block(const rules::AttentionParams& p, const rules::BlockTiling& tiling,
                       const cpu::BlockJob& job);

}  // namespace multihead::engine
