// One pass through a model: from ids or pixels to the last hidden state.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "models/parameters.h"
#include "multihead/context.h"
#include "multihead/kv_cache.h"
#include "multihead/models.h"
#include "nn/graph/call.h"

namespace multihead::models {

// The output of the encoder, for a pass through the decoder.
struct PassSource {
  Tensor state = {};   // (batch * tokens, width)
  int64_t tokens = 0;  // of each sequence
  std::span<const uint8_t> mask = {};
  std::span<KVCache> caches = {};  // one for each layer, empty before the first pass; else none
};

// The inputs and outputs of a pass. Shapes are checked already.
struct Pass {
  ModelInputs inputs = {};
  int64_t tokens = 0;              // of each sequence
  std::span<KVCache> caches = {};  // one for each layer: inputs are the next tokens; else empty
  // If given, each token is the next one of its own text, which has these caches, one for each
  // layer; `caches` are the caches of the first text.
  std::span<const std::span<KVCache>> texts = {};
  PassSource source = {};   // of a decoder with cross-attention
  bool in_session = false;  // edits are for all tokens of a session, of which these are some
  int64_t first_layer = 0, end_layer = 0;  // layers before and from here on are not computed
  // Input of the first layer, (rows, width); not given: the embedding of the inputs, for layer 0.
  ConstTensor state = {};
  // If given, (rows, heads * head_dim): outputs of the first layer's heads, which are not computed.
  ConstTensor z = {};
  // Only this token of each sequence gets the final norm, and the result is (batch, width); -1: all
  int64_t only_token = -1;
  std::span<const Capture> captures = {};
  // Looks for the first layer whose output is not finite, and ends with it: gets its index, or -1
  // for the embedding, and is unchanged if there is none.
  int64_t* first_not_finite = nullptr;

  int64_t rows() const { return inputs.batch * tokens; }
  int64_t before() const { return caches.empty() ? 0 : caches[0].length(0); }
};

// Checks ids, token types, pixels, mask, head_scales and edits, and sets pass.tokens. `name`: of
// the ids in errors. Errors: kShape, kOption.
Status check_inputs(const Model::Internals& model, Pass& pass, std::string_view name = "ids");

// Computes the hidden state after the last layer (rows, width), and after the final norm if all
// layers were computed. It is in the memory of the context until the next call. Errors: kMemory,
// kOption (a cache without room, an edit that makes numbers infinite).
Status run_layers(const Model::Internals& model, const Pass& pass, Tensor& result,
                  Context& context);

// Writes the gradient of a scalar with respect to the last hidden state, after the final norm, both
// (rows, width). The gradient is 0 before.
using LossGradient = std::function<Status(const Tensor& state, const Tensor& gradient)>;

// The gradients of a scalar with respect to values of the pass, which has no caches and no edits.
// The gradients of parameters are added to `parameters`, f32, where it has memory for them, except
// the gradients of the output matrix and its bias, which are the loss's. Layers below the first one
// that has a gradient to compute are only computed. Errors: kMemory, and the errors of `loss`.
Status differentiate(const Model::Internals& model, const Pass& pass, const LossGradient& loss,
                     std::span<const GradientOutput> wanted, Context& context,
                     const Parameters* parameters = nullptr);

// True if `numbers`, which are contiguous, hold no NaN and no infinity.
bool all_finite(const ConstTensor& numbers, Context& context);

}  // namespace multihead::models
