// From the last hidden state to logits and the pooler's output.
#pragma once

#include <string_view>

#include "models/run.h"
#include "multihead/models.h"

namespace multihead::models {

// `state`: the last hidden state (rows, width), or of the last token alone (batch, width). Outputs
// are checked. Errors: kMemory.
Status compute_outputs(const Model::Internals& model, const Pass& pass, const Tensor& state,
                       const ModelOutputs& outputs, Context& context);

// The pooler's output (batch, width). Errors: kMemory.
Status compute_pooled(const Model::Internals& model, const Pass& pass, const Tensor& state,
                      const Tensor& pooled, Context& context);

// The derivative of a logit with respect to the product of state and output matrix.
double logit_slope(const Architecture& architecture, double logit);

// Logits of tokens: rows of `state` times the output matrix, with the factor and the cap of the
// family.
Status compute_logits(const Model::Internals& model, const ConstTensor& state, const Tensor& logits,
                      Context& context);

// The error of numbers that are not finite, kOption: runs `pass` again to name the first layer
// whose output is not. `name` says what the numbers are.
Status not_finite(const Model::Internals& model, Pass pass, std::string_view name,
                  Context& context);

// That error, unless all numbers are finite. `numbers`: contiguous results of `pass`, which has no
// caches.
Status require_finite(const Model::Internals& model, const Pass& pass, std::string_view name,
                      const ConstTensor& numbers, Context& context);

}  // namespace multihead::models
