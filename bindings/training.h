// Steps of trainers, whatever they train.
#pragma once

#include <cstdint>

#include "call.h"
#include "handles.h"
#include "multihead/multihead.h"
#include "results.h"

namespace multihead::bindings {

inline Status update(Trainer& trainer) {
  TrainingStep result;
  Status status = trainer.update(result, context());
  if (status.ok()) write(result);
  return status;
}

// Adds the gradients of a part of a batch, and with `updates` ends the step.
template <class Call>
Status train(int32_t handle, const Call& call, const MultiHeadAttentionOptions& options,
             bool updates) {
  Trainer& trainer = at<Trainer>(handle);
  Status status = trainer.accumulate(call.tokens, call.batch, call.targets, options, context());
  return status.ok() && updates ? update(trainer) : status;
}

}  // namespace multihead::bindings
