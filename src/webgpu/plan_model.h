// A pass through a model on the GPU: from token ids to hidden states and logits.
#pragma once

#include "models/run.h"
#include "multihead/status.h"
#include "webgpu/model_buffers.h"
#include "webgpu/plan.h"

namespace multihead::webgpu {

// The reason why no pass of the model runs on a GPU, kOption; ok if passes do.
Status check_model(const models::Model::Internals& model);

// Operands of the plan, by number: those of ModelBuffers; keys and values of each layer, if the
// pass has caches, which are create_cache()'s; the last hidden state, if wanted; the logits, if
// wanted; each capture of the pass, whose `out` has a shape without gaps.
struct ModelPlan {
  // Checked (check_inputs()). Its fields of sources, of texts and `z` are not used.
  const models::Pass& pass;
  bool state = false;  // after the final norm, (rows, width); (batch, width) with only_token
  // Of a language model, causal or masked: (rows, vocabulary) of those rows.
  bool logits = false;
};

// Errors: kOption, for what the GPU's limits refuse. Caches then count what the plan would have
// appended.
Status plan_model(const models::Model::Internals& model, const ModelBuffers& buffers,
                  const ModelPlan& call, const Device& device, Plan& plan);

}  // namespace multihead::webgpu
