// From the last hidden state to logits and the pooler's output.
#pragma once

#include "models/run.h"
#include "multihead/models.h"

namespace multihead::models {

// `state`: the last hidden state (rows, width), or of the last token alone (batch, width). Outputs
// are checked. Errors: kMemory.
Status compute_outputs(const Model::Internals& model, const Pass& pass, const Tensor& state,
                       const ModelOutputs& outputs, Context& context);

// Logits of tokens: rows of `state` times the output matrix, with the cap of the family.
Status compute_logits(const Model::Internals& model, const ConstTensor& state, const Tensor& logits,
                      Context& context);

}  // namespace multihead::models
