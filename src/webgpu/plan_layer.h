// A layer of a model on the GPU: the operations of its list (nn/graph/graph.h) as dispatches.
#pragma once

#include <cstdint>
#include <span>

#include "multihead/attention.h"
#include "multihead/kv_cache.h"
#include "multihead/sites.h"
#include "multihead/status.h"
#include "nn/graph/graph.h"
#include "webgpu/model_buffers.h"
#include "webgpu/operations.h"

namespace multihead::webgpu {

// A call of a layer, as nn::LayerCall has it. Words count in the data of the builder.
struct LayerPlan {
  const nn::Graph* graph = nullptr;
  const nn::LayerParameters* parameters = nullptr;
  const ModelBuffers* buffers = nullptr;
  uint32_t batch = 1, tokens = 0;   // tokens: of each sequence
  HeadsBlock heads = {};            // the rotation alone; pairs 0: none
  AttentionOptions attention = {};  // its mask and bias have shapes, and here their first words:
  uint32_t mask = kNone, bias = kNone;
  KVCache* cache = nullptr;       // counts the tokens; null: all keys are those of the call
  uint32_t keys = 0, values = 0;  // buffers of the cache
  uint32_t head_scales = kNone;   // words
  int64_t layer = 0;
  // Changes of values, of this layer or another one. The position of the first token.
  std::span<const models::Edit> edits = {};
  int64_t first_token = 0;
  // Values of the layer to copy, and the buffer of each, in its shape without gaps.
  std::span<const models::Capture> captures = {};
  uint32_t first_capture = 0;

  uint32_t rows() const { return batch * tokens; }
};

// Adds the dispatches of a layer. `stream` is the residual stream, in a scratch buffer: before the
// layer, and then after it, perhaps elsewhere. Errors: those of plan_attention() and caches.
Status plan_layer(const LayerPlan& layer, Builder& builder, Rows& stream);

}  // namespace multihead::webgpu
