#pragma once

#include "multihead/attention.h"

namespace multihead::bench {

// Largest difference of `out` from the float64 oracle in a few rows of the last head of the last
// batch entry: the first, the last, and some between.
double error_on_sample(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                       const AttentionOptions& options, const ConstTensor& out);

// Largest difference of d_q from the float64 oracle, in the same few rows.
double gradient_error_on_sample(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                const ConstAnyTensor& v, const AttentionOptions& options,
                                const ConstAnyTensor& d_out, const ConstTensor& d_q);

}  // namespace multihead::bench
