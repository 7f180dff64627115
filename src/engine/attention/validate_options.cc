#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "engine/attention/validate.h"
#include "engine/error/enumerators.h"

namespace multihead::engine {
namespace {

// Requires that a mask or bias broadcasts to (B, H_q, N_q, N_k).
template <class T>
Status validate_broadcast(Name argument, const TensorView<const T>& view, const Dims& scores) {
  if (!view.given()) return {};
  const int rank = view.shape.rank();
  const auto wrong_shape = [&](Message message) {
    return shape_error(argument, message, Axes::kScores, scores, view.shape);
  };
  if (rank == 3) return wrong_shape(Message::kBroadcastRank3);
  if (rank != 2 && rank != 4) return wrong_shape(Message::kBroadcast);
  if (Status status = validate_rank(argument, Axes::kNone, view, rank); !status.ok()) {
    return status;
  }
  for (int axis = 0; axis < rank; ++axis) {
    const int64_t extent = view.shape[axis];
    if (extent != 1 && extent != scores[axis + 4 - rank]) return wrong_shape(Message::kBroadcast);
  }
  return {};
}

// Requires no values, or `count` values. `message` is the error.
Status validate_count(Name argument, size_t given, int64_t count, Message message) {
  const auto size = static_cast<int64_t>(given);
  if (size == 0 || size == count) return {};
  return shape_error(argument, message, count, size);
}

Status validate_finite(Name argument, std::span<const float> values, Values readable) {
  if (readable == Values::kOnDevice) return {};
  for (const float value : values) {
    if (!std::isfinite(value)) return real_error(argument, Message::kFiniteNumbers, value);
  }
  return {};
}

Status validate_not_negative(Name argument, float value) {
  if (value >= 0.0F && !std::isinf(value)) return {};
  return real_error(argument, Message::kFiniteNotNegative, value);
}

Status validate_window(const AttentionOptions& options) {
  const Window& window = options.window;
  for (const auto& [name, alignment] : {std::pair{Name::kCausal, options.causal.alignment},
                                        std::pair{Name::kWindowAlignment, window.alignment}}) {
    if (Status status = validate_enumerator(name, alignment, Alignment::kOffset); !status.ok()) {
      return status;
    }
  }
  for (const auto& [name, side] :
       {std::pair{Name::kWindowLeft, window.left}, std::pair{Name::kWindowRight, window.right}}) {
    if (side < -1) return option_error(name, Message::kWindowSide, side);
  }
  const bool states_alignment = window.alignment != Alignment::kNone;
  const Causal& causal = options.causal;
  const bool same = window.alignment == causal.alignment &&
                    (causal.alignment != Alignment::kOffset || window.offset == causal.offset);
  if (states_alignment && causal.alignment != Alignment::kNone && !same) {
    return option_error(Name::kWindowAlignment, Message::kWindowAlignmentOfCausal);
  }
  if (states_alignment && !window.given()) {
    return option_error(Name::kWindowAlignment, Message::kWindowSides);
  }
  for (const Alignment alignment : {options.causal.alignment, window.alignment}) {
    if (alignment == Alignment::kBottomRightOfLength && options.kv_lengths.empty()) {
      return option_error(Name::kCausal, Message::kLengthsForAlignment);
    }
  }
  return {};
}

Status validate_norm(const QkNorm& norm, const AttentionShape& shape) {
  if (!norm.enabled) {
    if (norm.q_gain.empty() && norm.k_gain.empty()) return {};
    return option_error(Name::kQkNorm, Message::kNormEnabled);
  }
  for (const Status& status : {validate_not_negative(Name::kQkNormEpsilon, norm.eps),
                               validate_count(Name::kQkNormQGain, norm.q_gain.size(),
                                              shape.head_dim, Message::kValuePerElement),
                               validate_count(Name::kQkNormKGain, norm.k_gain.size(),
                                              shape.head_dim, Message::kValuePerElement)}) {
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace

Status validate_options(const AttentionOptions& options, const AttentionShape& shape,
                        Values values) {
  if (options.scale && !std::isfinite(*options.scale)) {
    return real_error(Name::kScale, Message::kFinite, *options.scale);
  }
  if (shape.head_dim == 0 && !options.scale) {
    return option_error(Name::kScale, Message::kScaleOfWidthZero);
  }
  if (Status status = validate_not_negative(Name::kSoftcap, options.softcap); !status.ok()) {
    return status;
  }
  const float p = options.dropout.probability;
  if (!(p >= 0.0F && p < 1.0F)) {
    return real_error(Name::kDropoutProbability, Message::kProbability, p);
  }
  if (Status status = validate_enumerator(Name::kPrecision, options.precision, Precision::kBf16);
      !status.ok()) {
    return status;
  }
  const Dims scores = shape.scores();
  for (const Status& status :
       {validate_window(options), validate_lengths(options.kv_lengths, shape, values),
        validate_broadcast(Name::kMask, options.mask, scores),
        validate_broadcast(Name::kBias, options.bias, scores),
        validate_count(Name::kAlibiSlopes, options.alibi_slopes.size(), shape.heads,
                       Message::kValuePerQueryHead),
        validate_finite(Name::kAlibiSlopes, options.alibi_slopes, values),
        validate_count(Name::kSinks, options.sinks.size(), shape.heads,
                       Message::kValuePerQueryHead),
        validate_finite(Name::kSinks, options.sinks, values), validate_norm(options.qk_norm, shape),
        validate_rope(options.rope, shape.head_dim)}) {
    if (!status.ok()) return status;
  }
  const Rope& rope = options.rope;
  if (rope.style == Rope::Style::kNone) {
    if (rope.q_positions.empty() && rope.k_positions.empty()) return {};
    return option_error(Name::kRopeStyle, Message::kRopeStyleForPositions);
  }
  for (const Status& status :
       {validate_positions(Name::kRopeQPositions, rope.q_positions, shape.batch, shape.queries),
        validate_positions(Name::kRopeKPositions, rope.k_positions, shape.batch, shape.keys)}) {
    if (!status.ok()) return status;
  }
  return {};
}

Status validate_lengths(std::span<const int32_t> lengths, const AttentionShape& shape,
                        Values values) {
  if (Status status = validate_count(Name::kKvLengths, lengths.size(), shape.batch,
                                     Message::kValuePerBatchEntry);
      !status.ok()) {
    return status;
  }
  if (values == Values::kOnDevice) return {};
  for (const int32_t length : lengths) {
    if (length < 0 || length > shape.keys) {
      return option_error(Name::kKvLengths, Message::kLengthInKeys, shape.keys, length);
    }
  }
  return {};
}

Status validate_rope(const Rope& rope, int64_t width) {
  if (Status status = validate_enumerator(Name::kRopeStyle, rope.style, Rope::Style::kHalf);
      !status.ok()) {
    return status;
  }
  if (rope.style == Rope::Style::kNone) {
    if (rope.rotary_dim == 0) return {};
    return option_error(Name::kRopeStyle, Message::kRopeStyleForDim);
  }
  if (!(rope.base > 0.0) || std::isinf(rope.base)) {
    return real_error(Name::kRopeBase, Message::kFinitePositive, rope.base);
  }
  const int64_t rotary = rope.rotary_dim != 0 ? rope.rotary_dim : width;
  if (rotary < 0 || rotary > width || rotary % 2 != 0) {
    return option_error(Name::kRopeRotaryDim, Message::kRotaryDim, width, rotary);
  }
  return {};
}

Status validate_positions(Name argument, std::span<const int32_t> positions, int64_t batch,
                          int64_t tokens) {
  const auto size = static_cast<int64_t>(positions.size());
  if (size == 0 || size == tokens || size == batch * tokens) return {};
  return shape_error(argument, Message::kPositions, tokens, batch * tokens, size);
}

Status validate_rotate(const ConstTensor& x, std::span<const int32_t> positions, const Rope& rope,
                       const Tensor& y) {
  if (Status status = validate_rank(Name::kX, Axes::kHeads, x, 4); !status.ok()) return status;
  for (const Status& status :
       {validate_exact(Name::kX, Axes::kHeads, x, x.shape),
        validate_exact(Name::kY, Axes::kHeads, y, x.shape), validate_rope(rope, x.shape[3]),
        validate_positions(Name::kPositions, positions, x.shape[0], x.shape[2])}) {
    if (!status.ok()) return status;
  }
  if (rope.style == Rope::Style::kNone) return option_error(Name::kRopeStyle, Message::kRopeStyle);
  if (positions.empty() && x.shape.elements() != 0) {
    return option_error(Name::kPositions, Message::kPositionPerRow);
  }
  return {};
}

}  // namespace multihead::engine
