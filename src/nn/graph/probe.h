// Reads and changes values while a layer is computed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "multihead/attention.h"
#include "multihead/sites.h"
#include "nn/graph/call.h"

namespace multihead::nn {

// Applies the edits of a value that was just computed, then copies it for the captures. Errors:
// kOption for an edit that makes numbers infinite.
Status visit(const Probe& probe, const Graph& graph, const Frame& frame, ValueId id);
// Copies the gradient of a value, if it is wanted.
Status visit_gradient(const BackwardStep& step, ValueId id);

// What a call reads and changes in a layer. Lists that nobody reads lack the code of visit(),
// because only a probe names it.
struct Probe {
  std::span<const models::Capture> captures = {};
  std::span<const models::Edit> edits = {};
  int64_t layer = 0;
  int64_t first_token = 0;  // position of the first row, after the tokens of a cache
  Status (*visit)(const Probe& probe, const Graph& graph, const Frame& frame,
                  ValueId id) = nn::visit;
};

// The gradients that a call of backward() copies.
struct GradientProbe {
  std::span<const models::GradientOutput> outputs = {};
  int64_t layer = 0;
  Status (*visit)(const BackwardStep& step, ValueId id) = visit_gradient;
};

// True if the layer's scores or weights are edited. attend_changed() then takes the place of
// attention().
bool changes_weights(const Probe& probe);
// Attention with edited scores or weights. Errors: kMemory, and as visit().
Status attend_changed(const Probe& probe, const Tensor& q, const Tensor& k, const Tensor& v,
                      const AttentionOptions& options, const Tensor& z, Context& context);
// The captures of scores and weights for attention(). Their heads lie in `heads`.
void list_captures(const Probe& probe, std::vector<ScoreCapture>& captures,
                   std::vector<int32_t>& heads);

}  // namespace multihead::nn
