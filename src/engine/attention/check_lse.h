// Refuses an LSE of other inputs or options in a call of attention_backward().
#pragma once

#include "engine/error/error.h"
#include "rules/backward_params.h"

namespace multihead::engine {

// Compares one row's LSE with the row's scores, which are computed here. Checks the last query of
// the first head of the first batch entry. The tolerance, 0.05 + 1 % of the LSE, covers bf16
// products and the rounding of large scores. q and k are already transformed.
Status check_lse(const rules::BackwardParams& params);

}  // namespace multihead::engine
