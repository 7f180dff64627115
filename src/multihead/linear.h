/// \file
/// Linear projection: y = x W^T + bias, as torch.nn.functional.linear defines it.
#pragma once

#include "multihead/context.h"
#include "multihead/export.h"
#include "multihead/status.h"
#include "multihead/tensor.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

/// y = x W^T + bias.
///
/// - x (rows, in), row stride free, last axis contiguous
/// - weight (out, in), likewise; f32, f16 or bf16
/// - bias (out), optional
/// - y (rows, out), like x; may not overlap the inputs
///
/// All arithmetic is in float; the number of threads does not change a bit of y.
///
/// Errors: kShape, kMemory. Nothing is written then.
[[nodiscard]] Status linear(const ConstTensor& x, const ConstAnyTensor& weight,
                            const ConstTensor& bias, const Tensor& y, Context& context);

}  // namespace multihead
MULTIHEAD_PUBLIC_END
