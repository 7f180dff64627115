// The source of an encoder–decoder model: its encoder's pass.
#pragma once

#include "engine/runtime/scratch.h"
#include "models/run.h"

namespace multihead::models {

// Checks the inputs of the encoder, and sets pass.source but for the state. A model without an
// encoder has none. Errors: kOption, kShape, as check_inputs().
Status check_source(const Model::Internals& model, Pass& pass);

// Runs the encoder of a checked pass, whose state then lies in `memory`. Errors: kMemory, and as
// run_layers().
Status run_encoder(const Model::Internals& model, Pass& pass, engine::Buffer& memory,
                   Context& context);

// kOption unless the model has one stack.
Status check_one_stack(const Model::Internals& model, const char* expected);

}  // namespace multihead::models
