/// \file
/// Linear projection: y = x W^T + bias, as torch.nn.functional.linear defines it.
#pragma once

#include "multihead/context.h"
#include "multihead/export.h"
#include "multihead/precision.h"
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
/// All arithmetic is in float, unless `precision` is kBf16, the CPU has AMX, x has more than 32
/// rows and the weight is f32 or bf16: then the elements of x and of the weight are rounded to bf16
/// before they are multiplied. Each product changes by up to 2^-7 of its value; sums stay in float.
/// Products below 2^-126 then count as 0. Context::last_linear_kernel() names the type that was
/// used. y is bit-identical for any number of threads.
///
/// Errors: kShape, kOption (an unknown precision), kMemory. On an error, nothing is written.
[[nodiscard]] Status linear(const ConstTensor& x, const ConstAnyTensor& weight,
                            const ConstTensor& bias, const Tensor& y, Context& context,
                            Precision precision = Precision::kF32);

}  // namespace multihead
MULTIHEAD_PUBLIC_END
