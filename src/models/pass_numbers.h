// Numbers that a pass computes from its inputs before the layers, and the options of a layer's
// attention: the same ones for every device.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "models/architecture.h"
#include "models/run.h"
#include "multihead/attention.h"

namespace multihead::models {

// The position of a token of each sequence. Before the layers, which add tokens to the caches.
inline int64_t position_of(const Pass& pass, int64_t token) {
  if (pass.texts.empty()) return pass.before() + token;
  return pass.texts[static_cast<size_t>(token)][0].length(0);
}

// Writes the cosines and sines of a position, for each of the frequencies.
inline void write_angles(const Architecture& a, const RopeFrequencies& rope,
                         const double* frequencies, int64_t position, float* cos, float* sin) {
  const double factor = rope.factor(), direction = a.family->rope_reversed ? -1.0 : 1.0;
  for (int64_t pair = 0; pair < rope.pairs(); ++pair) {
    const double angle = static_cast<double>(position) * frequencies[pair];
    cos[pair] = static_cast<float>(factor * std::cos(angle));
    sin[pair] = static_cast<float>(direction * factor * std::sin(angle));
  }
}

// ESM: the factor of a sequence's embeddings with token_dropout, which makes up for masks, whose
// embedding is 0. In training 12 % of the tokens were masks.
inline float share_without_masks(const Architecture& a, const Pass& pass, int64_t sequence) {
  if (a.mask_id < 0) return 1.0F;
  const ModelInputs& in = pass.inputs;
  double masks = 0, tokens = 0;
  for (int64_t row = sequence * pass.tokens; row < (sequence + 1) * pass.tokens; ++row) {
    const auto at = static_cast<size_t>(row);
    masks += in.ids[at] == a.mask_id ? 1 : 0;
    tokens += in.mask.empty() || in.mask[at] != 0 ? 1 : 0;
  }
  return static_cast<float>(0.88 / (1.0 - masks / tokens));
}

// Calls visit(row, factor, position) for each token of a sequence: the factor of its embedding, and
// its row of the table of positions.
template <class Visit>
void visit_tokens(const Architecture& a, const Pass& pass, int64_t sequence, const Visit& visit) {
  const float kept = share_without_masks(a, pass, sequence);
  int64_t real = 0;  // tokens so far that are not padding
  for (int64_t token = 0; token < pass.tokens; ++token) {
    const int64_t row = sequence * pass.tokens + token;
    const int32_t id = pass.inputs.ids[static_cast<size_t>(row)];
    int64_t position = a.first_position + position_of(pass, token);
    if (a.family->positions_after_padding) {
      // RoBERTa: padding has the position of its own id.
      position = id == a.padding_id ? a.padding_id : a.padding_id + pass.before() + ++real;
    }
    visit(row, id == a.mask_id ? 0.0F : a.embedding_scale * kept, position);
  }
}

// A layer's attention but for masks and biases, which are of a pass. With caches the tokens are the
// last ones.
inline AttentionOptions attention_of(const Architecture& a, const LayerPlan& layer, bool cached) {
  AttentionOptions options;
  options.scale = layer.scale;
  options.softcap = a.attention_cap;
  options.alibi_slopes = a.alibi_slopes;
  if (layer.window > 0) options.window.left = layer.window - 1;
  if (a.window_both_sides) options.window.right = options.window.left;
  if (cached) {
    options.causal = Causal::bottom_right();
  } else if (a.causal) {
    options.causal = Causal::top_left();
  }
  return options;
}

}  // namespace multihead::models
