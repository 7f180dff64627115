// The steps of linear().
#pragma once

#include "multihead/linear.h"

namespace multihead::engine {

// The arguments of linear().
struct LinearCall {
  const ConstTensor& x;
  const ConstAnyTensor& weight;
  const ConstTensor& bias;
  const Tensor& y;
  Precision precision;
};

// Makes all checks of linear(). `weight_shape`: the shape of the whole weight. call.weight may hold
// fewer rows: the share of one member of a team.
Status check_linear(const LinearCall& call, const Dims& weight_shape);

// Computes a checked call. Errors: kMemory.
Status compute_linear(const LinearCall& call, Context& context);

}  // namespace multihead::engine
