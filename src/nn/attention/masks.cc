#include "nn/attention/masks.h"

#include <cstddef>
#include <cstdint>
#include <tuple>

#include "engine/layers/elementwise.h"
#include "nn/call_memory.h"
#include "rules/attention_params.h"
#include "rules/visibility.h"

namespace multihead::nn {
namespace {

// Returns (B, N_k) or (N_k) as (B, 1, 1, N_k). Returns other shapes unchanged; validate() refuses
// them.
template <class T>
TensorView<const T> over_keys(const TensorView<const T>& view, const Dims& scores) {
  const Dims &shape = view.shape, &strides = view.strides;
  if (shape.rank() == 1 && scores[0] == 1)
    return {view.data, {1, 1, 1, shape[0]}, {0, 0, 0, strides[0]}};
  if (shape.rank() != 2) return view;
  return {view.data, {shape[0], 1, 1, shape[1]}, {strides[0], 0, 0, strides[1]}};
}

// Returns PyTorch's (B * H, N_q, N_k) as (B, H, N_q, N_k).
ConstBoolTensor over_heads(const ConstBoolTensor& view, const Dims& scores) {
  const Dims &shape = view.shape, &strides = view.strides;
  if (shape.rank() != 3 || shape[0] != scores[0] * scores[1]) return view;
  return {view.data,
          {scores[0], scores[1], shape[1], shape[2]},
          {scores[1] * strides[0], strides[0], strides[1], strides[2]}};
}

template <class T>
Status validate_reach(Name argument, Axes axes, const TensorView<const T>& view, const Dims& given,
                      const Dims& scores) {
  if (!view.given()) return {};
  const int rank = view.shape.rank();
  bool fits = (rank == 2 || rank == 4) && (view.data != nullptr || view.shape.elements() == 0);
  for (int axis = 0; fits && axis < rank; ++axis) {
    const int64_t extent = view.shape[axis];
    fits = extent == 1 || extent == scores[axis + 4 - rank];
  }
  if (fits) return {};
  const bool lost = view.data == nullptr && view.shape.elements() != 0;
  return shape_error(argument, lost ? Message::kMaskData : Message::kMaskReach, axes, scores,
                     given);
}

// Sets each extent of `reach` to the extent of the scores if the view varies along that axis.
template <class T>
void raise(Dims& reach, const TensorView<const T>& view, const Dims& scores) {
  if (!view.given()) return;
  const rules::Broadcast<T> broadcast = rules::broadcast_to_scores(view);
  for (int axis = 0; axis < 4; ++axis) {
    if (broadcast.stride[static_cast<size_t>(axis)] != 0) reach[axis] = scores[axis];
  }
}

}  // namespace

CallMasks::CallMasks(const MultiHeadAttentionOptions& options, const engine::AttentionShape& shape,
                     int64_t appended)
    : options_(options),
      shape_(shape),
      appended_(appended),
      blocked_(over_heads(options.attn_mask_blocked, shape.scores())),
      padding_(over_keys(options.key_padding_blocked, shape.scores())),
      key_bias_(over_keys(options.key_padding_bias, shape.scores())) {
  const AttentionOptions& given = options.attention;
  const bool by_position =
      given.causal.given() || given.window.given() || !given.kv_lengths.empty();
  joins_mask_ =
      blocked_.given() || padding_.given() || (appended > 0 && (given.mask.given() || by_position));
  joins_bias_ = (key_bias_.given() && given.bias.given()) ||
                (appended > 0 && (key_bias_.given() || given.bias.given()));
}

Status CallMasks::validate() const {
  const Dims scores = shape_.scores();
  MULTIHEAD_TRY(validate_reach(Name::kAttnMaskBlocked, Axes::kBlockedMask, blocked_,
                               options_.attn_mask_blocked.shape, scores));
  MULTIHEAD_TRY(validate_reach(Name::kKeyPaddingBlocked, Axes::kPadding, padding_,
                               options_.key_padding_blocked.shape, scores));
  MULTIHEAD_TRY(validate_reach(Name::kKeyPaddingBias, Axes::kPadding, key_bias_,
                               options_.key_padding_bias.shape, scores));
  for (const auto& [argument, rank, keys, given] :
       {std::tuple{Name::kKeyPaddingBlocked, padding_.shape.rank(), padding_.shape[3],
                   options_.key_padding_blocked.shape},
        std::tuple{Name::kKeyPaddingBias, key_bias_.shape.rank(), key_bias_.shape[3],
                   options_.key_padding_bias.shape}}) {
    if (rank == 0 || keys == scores[3]) continue;
    return shape_error(argument, Message::kPaddingKeys, Axes::kPadding, {}, given, scores[3]);
  }
  return {};
}

Dims CallMasks::bias_shape() const {
  const Dims scores = shape_.scores();
  Dims shape{1, 1, 1, 1};
  raise(shape, options_.attention.bias, scores);
  raise(shape, key_bias_, scores);
  shape[3] = shape_.keys + appended_;
  return shape;
}

Dims CallMasks::mask_shape() const {
  const Dims scores = shape_.scores();
  Dims shape{1, 1, 1, 1};
  raise(shape, options_.attention.mask, scores);
  raise(shape, blocked_, scores);
  raise(shape, padding_, scores);
  // With appended keys, the mask also replaces causal order, window and lengths, which vary by
  // batch entry and query.
  if (appended_ > 0) {
    shape[0] = scores[0];
    shape[2] = scores[2];
  }
  shape[3] = shape_.keys + appended_;
  return shape;
}

uint64_t CallMasks::bias_elements() const {
  return joins_bias_ ? saturated_elements(bias_shape()) : 0;
}

uint64_t CallMasks::mask_elements() const {
  return joins_mask_ ? saturated_elements(mask_shape()) : 0;
}

void CallMasks::join(float* joined_bias, uint8_t* joined_mask, AttentionOptions& options,
                     const Context& context) const {
  const int64_t keys = shape_.keys;
  const auto fill = [&](auto* to, const Dims& shape, auto&& value) {
    const int64_t heads = shape[1], queries = shape[2], width = shape[3];
    engine::over_rows(shape[0] * heads * queries, width, context, [&](int64_t row, int64_t end) {
      for (; row < end; ++row) {
        const int64_t b = row / queries / heads, h = row / queries % heads, i = row % queries;
        for (int64_t j = 0; j < width; ++j) to[row * width + j] = value(b, h, i, j);
      }
    });
  };
  if (joins_bias_) {
    const Dims shape = bias_shape();
    const auto bias = rules::broadcast_to_scores(options_.attention.bias);
    const auto key_bias = rules::broadcast_to_scores(key_bias_);
    fill(joined_bias, shape, [&](int64_t b, int64_t h, int64_t i, int64_t j) {
      if (j >= keys) return 0.0F;
      return (bias.given() ? bias.at(b, h, i, j) : 0.0F) +
             (key_bias.given() ? key_bias.at(b, h, i, j) : 0.0F);
    });
    options.bias = {joined_bias, shape};
  } else if (key_bias_.given()) {
    options.bias = key_bias_;
  }
  if (!joins_mask_) return;
  const Dims shape = mask_shape();
  const auto mask = rules::broadcast_to_scores(options_.attention.mask);
  const auto blocked = rules::broadcast_to_scores(blocked_);
  const auto padding = rules::broadcast_to_scores(padding_);
  const rules::Visibility visibility =
      rules::make_visibility(options_.attention, shape_.queries, keys);
  fill(joined_mask, shape, [&](int64_t b, int64_t h, int64_t i, int64_t j) {
    if (j >= keys) return uint8_t{1};
    const bool visible = (!mask.given() || mask.at(b, h, i, j) != 0) &&
                         (!blocked.given() || blocked.at(b, h, i, j) == 0) &&
                         (!padding.given() || padding.at(b, h, i, j) == 0) &&
                         (appended_ == 0 || visibility.seen_by(b, i).contains(j));
    return static_cast<uint8_t>(visible ? 1 : 0);
  });
  options.mask = {joined_mask, shape};
  if (appended_ == 0) return;
  options.causal = {};
  options.window = {};
  options.kv_lengths = {};
}

}  // namespace multihead::nn
