// Plans linear() on a browser's GPU: see plan_attention.h for tensors and errors.
#pragma once

#include "multihead/status.h"
#include "multihead/tensor.h"
#include "webgpu/plan.h"

namespace multihead::webgpu {

Status plan_linear(const ConstTensor& x, const ConstTensor& weight, const ConstTensor& bias,
                   const Tensor& y, const Device& device, Plan& plan);

}  // namespace multihead::webgpu
