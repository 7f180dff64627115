// One pass through a model: from ids or pixels to the last hidden state.
#pragma once

#include <cstdint>
#include <span>

#include "models/parameters.h"
#include "multihead/context.h"
#include "multihead/kv_cache.h"
#include "multihead/models.h"

namespace multihead::models {

// The inputs and outputs of a pass. Shapes are checked already.
struct Pass {
  ModelInputs inputs = {};
  int64_t tokens = 0;              // of each sequence
  std::span<KVCache> caches = {};  // one for each layer: inputs are the next tokens; else empty
  int64_t end_layer = 0;           // layers from here on are not computed
  Tensor hidden_states = {};       // as ModelOutputs
  std::span<const HeadMap> maps = {};
  // Looks for the first layer whose output is not finite, and ends with it: gets its index, or -1
  // for the embedding, and is unchanged if there is none.
  int64_t* first_not_finite = nullptr;

  int64_t rows() const { return inputs.batch * tokens; }
  int64_t before() const { return caches.empty() ? 0 : caches[0].length(0); }
};

// Checks ids, token types, pixels, mask and head_scales, and sets pass.tokens. Errors: kShape,
// kOption.
Status check_inputs(const Model::Internals& model, Pass& pass);

// Computes the hidden state after the last layer (rows, width), and after the final norm if all
// layers were computed. It is in the memory of the context until the next call. Only the last
// token of each sequence is normalized if `last_only`, in which case the result is (batch, width).
// Errors: kMemory, kOption (a cache without room).
Status run_layers(const Model::Internals& model, const Pass& pass, bool last_only, Tensor& result,
                  Context& context);

// True if `numbers`, which are contiguous, hold no NaN and no infinity.
bool all_finite(const ConstTensor& numbers, Context& context);

// y = x W^T + bias.
Status project(const ConstTensor& x, const Projection& projection, const Tensor& y,
               Context& context);
// y = norm(x); y may be x.
Status normalize(const Architecture& a, bool rms, const ConstTensor& x, const NormParameters& norm,
                 const Tensor& y, Context& context);

}  // namespace multihead::models
