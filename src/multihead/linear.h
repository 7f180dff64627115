// Linear projection: y = x W^T + bias, as torch.nn.functional.linear defines it.
#pragma once

#include "multihead/context.h"
#include "multihead/status.h"
#include "multihead/tensor.h"

namespace multihead {

// x      (rows, in)    row stride free, last axis contiguous
// weight (out, in)     likewise
// bias   (out)         optional
// y      (rows, out)   likewise; may not overlap the inputs
//
// Errors: kShape, kMemory. Nothing is written then.
[[nodiscard]] Status linear(const ConstTensor& x, const ConstTensor& weight,
                            const ConstTensor& bias, const Tensor& y, Context& context);

}  // namespace multihead
