// One call of a layer: what differs from layer to layer and from call to call, the memory of its
// values, and the two ways to play the list.
#pragma once

#include <cstdint>
#include <span>

#include "multihead/attention.h"
#include "multihead/context.h"
#include "multihead/kv_cache.h"
#include "multihead/sites.h"
#include "multihead/status.h"
#include "nn/graph/graph.h"
#include "rules/arena.h"

namespace multihead::nn {

// What a call reads and changes in a layer.
struct Probe {
  std::span<const models::Capture> captures = {};
  std::span<const models::Edit> edits = {};
  int64_t layer = 0;
  // Position of the first row, after the tokens of a cache. 0 when the source's keys and values are
  // computed, which the first call does.
  int64_t first_token = 0;
};

// Cosines and sines of the tokens' positions, (tokens, step), of which `pairs` are used.
struct Rotation {
  const float *cos = nullptr, *sin = nullptr;
  int64_t pairs = 0, step = 0;
  bool neighbours = false;  // pairs are elements 0 and 1, 2 and 3, ...; else half a head apart
  bool reversed = false;    // by the negative angles

  bool given() const { return pairs > 0; }
};

// DeBERTa (arXiv:2006.03654): to the score of query i and key j are added the products of i with
// the projected key of their distance, and of j with its projected query.
struct RelativeContent {
  const float* embeddings = nullptr;  // (rows, width)
  int64_t rows = 0;
  const int32_t* row_of = nullptr;  // of the distance i - j + tokens - 1
  // Memory: (rows, heads * width of a head), (heads, tokens, rows), (batch, heads, tokens, tokens)
  float *projected = nullptr, *products = nullptr, *bias = nullptr;

  bool given() const { return rows > 0; }
};

// The output of the encoder, which cross-attention reads in each layer of a decoder.
struct Source {
  Tensor state = {};                // (batch * tokens, width)
  int64_t tokens = 0;               // of each sequence
  AttentionOptions attention = {};  // scale and mask
  std::span<const float> head_scales = {};
  KVCache* cache = nullptr;  // keeps the keys and values of the first pass; null: none

  bool is_cached() const { return cache != nullptr && cache->length(0) > 0; }
};

struct LayerCall {
  const LayerParameters* parameters = nullptr;
  int64_t batch = 1, tokens = 0;
  Rotation rotation = {};
  RelativeContent content = {};
  AttentionOptions attention = {};
  KVCache* cache = nullptr;  // the tokens are the next ones after the cache's; null: all there are
  // If given, each token is the next one of its own text, which has these caches of all layers.
  std::span<const std::span<KVCache>> texts = {};
  int64_t layer = 0;  // of their caches
  std::span<const float> head_scales = {};
  Source source = {};
  const Probe* probe = nullptr;
  // For backward(): where gradients of parameters are added, f32; those not given are not computed.
  const LayerParameters* gradients = nullptr;

  int64_t rows() const { return batch * tokens; }
  std::span<const float> scales_of(const Operation& operation) const {
    return operation.cross ? source.head_scales : head_scales;
  }
};

// The memory of a layer's values. The frame itself and all arrays lie in the arena's memory, so a
// call allocates nothing.
class Frame {
 public:
  // Memory that all layers use in turn: values share it as plan() decided. bind() gives a layer's
  // values their places; `x` is its input and then its output.
  void lay_out(const Graph& graph, int64_t rows, int64_t source_rows, rules::Arena& take);
  void bind(const Graph& graph, const LayerCall& call, float* x);
  // Memory of one layer for backward(): values that it reads are not overwritten.
  void lay_out_kept(const Graph& graph, const LayerCall& call, float* input, float* output,
                    rules::Arena& take);
  // Memory for the gradients of a layer's values, which all layers use in turn. A value that
  // replaces another one has its gradient in the same place, and the input's is the output's.
  void lay_out_gradients(const Graph& graph, const LayerCall& call, float* gradient,
                         rules::Arena& take);

  float* data(ValueId id) const { return place(id).data; }
  // (rows, width); values of the source have its rows and tokens.
  Tensor rows(ValueId id) const;
  // (batch, heads, tokens, width of a head)
  Tensor heads(ValueId id) const;
  // Log-sum-exp (batch, heads, tokens) of the attention, of kept frames; else not given.
  Tensor lse() const;
  // True if both values have the same place.
  bool same_place(ValueId a, ValueId b) const { return place(a).data == place(b).data; }

 private:
  struct Place {
    float* data;
    int64_t stride;  // of rows
  };
  enum class Memory : uint8_t { kShared, kKept, kGradients };

  Place& place(ValueId id) const { return places_[id]; }
  int64_t tokens_of(ValueId id) const {
    return graph_->value(id).of_source ? source_tokens_ : tokens_;
  }
  void fill(const Graph& graph, const LayerCall& call, float* input, float* output, Memory memory,
            rules::Arena* take);

  const Graph* graph_ = nullptr;
  int64_t batch_ = 0, tokens_ = 0, source_tokens_ = 0;
  Place* places_ = nullptr;
  float** slots_ = nullptr;
  float* lse_ = nullptr;
  uint64_t acting_ = 0;  // of bind(): the operations that act, and a bit that is always set
};

// False if the operation does nothing in this call, so that its output is its input.
inline bool acts(const Operation& operation, const LayerCall& call) {
  switch (operation.kind) {
    case Operation::Kind::kNorm:
    case Operation::Kind::kNormHeads:
      return (call.parameters->*operation.norm).given();
    case Operation::Kind::kRotate:
      return call.rotation.given();
    case Operation::Kind::kProject:
      return !operation.cross || !call.source.is_cached();
    case Operation::Kind::kScaleHeads:
      return !call.scales_of(operation).empty();
    default:
      return true;
  }
}

// Computes all values from the input. Errors: kMemory; kOption for a cache without room and for an
// edit that makes numbers infinite.
Status forward(const Graph& graph, const Frame& frame, const LayerCall& call, Context& context);
// Computes what comes after a site, whose rows are given. The graph has the site. Errors: kMemory.
Status forward_after(models::Site site, const ConstTensor& rows, const Graph& graph,
                     const Frame& frame, const LayerCall& call, Context& context);

// Computes the gradients of a layer's values from its output's, which is where the gradient of the
// input will be. `values` is a kept frame that forward() filled without a cache and without edits.
// `wanted` are copied. Errors: kMemory.
Status backward(const Graph& graph, const Frame& values, const Frame& gradients,
                const LayerCall& call, int64_t layer,
                std::span<const models::GradientOutput> wanted, Context& context);

}  // namespace multihead::nn
