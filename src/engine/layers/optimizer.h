// One optimizer step on one array of parameters.
#pragma once

#include <cstdint>

#include "cpu/elementwise/optimizer.h"
#include "multihead/context.h"

namespace multihead::engine {

using cpu::AdamWStep;
using cpu::SgdStep;

void adamw_step(const AdamWStep& step, const Context& context);
void sgd_step(const SgdStep& step, const Context& context);

// Returns the sum of squares in double. Adds chunks of fixed length in order, so that the number of
// threads does not change a bit. Infinities and NaN propagate.
double sum_of_squares(const float* x, int64_t count, Context& context);

}  // namespace multihead::engine
