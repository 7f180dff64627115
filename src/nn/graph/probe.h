// Reads and changes values while a layer is computed.
#pragma once

#include <cstdint>
#include <vector>

#include "multihead/attention.h"
#include "nn/graph/call.h"

namespace multihead::nn {

// Applies an edit to an array (batch, heads, tokens, width) of its site, in which heads is 1 for
// sites without heads. False if a number became infinite.
bool apply_edit(const models::Edit& edit, const Tensor& array, int64_t first_token);

// Applies the edits of a value that was just computed, then copies it for the captures. Errors:
// kOption for an edit that makes numbers infinite.
Status visit(const Probe& probe, const Graph& graph, const Frame& frame, ValueId id);

// The names of what an attention computes between products.
struct Weighting {
  models::Site scores, pattern;

  bool has(models::Site site) const { return site == scores || site == pattern; }
};
inline constexpr Weighting kWeighting{models::Site::kScores, models::Site::kPattern};
inline constexpr Weighting kCrossWeighting{models::Site::kCrossScores, models::Site::kCrossPattern};

// True if the layer's scores or weights are edited. attend_changed() then takes the place of
// attention().
bool changes_weights(const Probe& probe, const Weighting& sites);
// Attention with edited scores or weights. Errors: kMemory, and as visit().
Status attend_changed(const Probe& probe, const Weighting& sites, const Tensor& q, const Tensor& k,
                      const Tensor& v, const AttentionOptions& options, const Tensor& z,
                      Context& context);
// The captures of scores and weights for attention(). Their heads lie in `heads`.
void list_captures(const Probe& probe, const Weighting& sites, std::vector<ScoreCapture>& captures,
                   std::vector<int32_t>& heads);

// Rotates heads (batch, heads, tokens, width) by the tokens' angles; `to` may be `from`.
void rotate_heads(const Rotation& rotation, const Tensor& from, const Tensor& to,
                  const Context& context);

// Calls run(a, b) for each pair of elements of two arrays (batch, heads, tokens, width).
template <class Run>
void over_heads(const Tensor& a, const Tensor& b, Run&& run) {
  const Dims& shape = a.shape;
  for (int64_t row = 0; row < shape[0] * shape[1] * shape[2]; ++row) {
    const int64_t at[] = {row / shape[2] / shape[1], row / shape[2] % shape[1], row % shape[2]};
    float *x = a.data, *y = b.data;
    for (int axis = 0; axis < 3; ++axis) {
      x += at[axis] * a.strides[axis];
      y += at[axis] * b.strides[axis];
    }
    for (int64_t i = 0; i < shape[3]; ++i) run(x[i], y[i]);
  }
}

}  // namespace multihead::nn
