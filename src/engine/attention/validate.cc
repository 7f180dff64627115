#include "engine/attention/validate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

#include "engine/error/error.h"

namespace multihead::engine {
namespace {

// Positions are compared as 32-bit integers in the kernels.
constexpr int64_t kMaxExtent = std::numeric_limits<int32_t>::max();

// The checked properties of a tensor of any element type.
struct Checked {
  const void* data;
  const Dims& shape;
  const Dims& strides;
  int dtype;  // -1 if the caller's type determines it
  bool written;

  template <class TensorLike>
  static Checked of(const TensorLike& tensor) {
    int dtype = -1;
    if constexpr (requires { tensor.dtype; }) dtype = static_cast<int>(tensor.dtype);
    return {tensor.data, tensor.shape, tensor.strides, dtype,
            !std::is_const_v<std::remove_pointer_t<decltype(tensor.data)>>};
  }
};

// True if each stride is at least the span of the axes behind it, as in most tensors.
bool is_nested(const Dims& shape, const Dims& strides) {
  constexpr int64_t kMost = int64_t{1} << 28;  // the span of eight axes then fits in 64 bits
  int64_t span = 1;
  for (int axis = shape.rank(); axis-- > 0;) {
    if (shape[axis] == 1) continue;
    if (strides[axis] < span || strides[axis] > kMost) return false;
    span += (shape[axis] - 1) * strides[axis];
  }
  return true;
}

// Refuses writable tensors whose elements may share an address, because several threads would write
// it at the same time. Each stride must be at least the span of all axes of smaller strides, which
// is sufficient. It is not necessary: strides 2 and 3 for extents 3 and 2 are refused although no
// elements coincide.
Status validate_writable(Name argument, const Checked& tensor) {
  if (is_nested(tensor.shape, tensor.strides) || tensor.shape.elements() == 0) return {};
  // Doubles, because the span of strides that no memory has may exceed 64 bits.
  const auto stride_of = [&](int axis) {
    return std::abs(static_cast<double>(tensor.strides[axis]));
  };
  for (int axis = 0; axis < tensor.shape.rank(); ++axis) {
    if (tensor.shape[axis] == 1) continue;
    double span = 1;  // elements
    for (int other = 0; other < tensor.shape.rank(); ++other) {
      if (stride_of(other) > stride_of(axis) ||
          (stride_of(other) == stride_of(axis) && other <= axis)) {
        continue;
      }
      span += static_cast<double>(tensor.shape[other] - 1) * stride_of(other);
    }
    if (stride_of(axis) >= span) continue;
    return shape_error(argument, Message::kSharedElements, tensor.strides[axis], axis,
                       static_cast<int64_t>(span));
  }
  return {};
}

Status validate_rows_contiguous(Name argument, const Dims& shape, const Dims& strides) {
  const int last = shape.rank() - 1;
  if (shape[last] > 1 && strides[last] != 1) {
    return shape_error(argument, Message::kContiguousRows, strides[last]);
  }
  return {};
}

Status validate_rank_of(Name argument, Axes axes, const Checked& tensor, int rank) {
  const Dims &shape = tensor.shape, &strides = tensor.strides;
  if (shape.rank() != rank) {
    return shape_error(argument, Message::kRank, axes, {}, shape, rank, shape.rank());
  }
  if (strides.rank() != rank) {
    return shape_error(argument, Message::kStrideCount, rank, strides.rank());
  }
  for (int axis = 0; axis < rank; ++axis) {
    if (shape[axis] < 0 || shape[axis] > kMaxExtent) {
      return shape_error(argument, Message::kExtents, shape);
    }
  }
  // Skips extents of 0, so that no product of some of the extents overflows anywhere.
  constexpr int64_t kMaxElements = std::numeric_limits<int64_t>::max() / 4;
  int64_t product = 1;
  bool is_empty = false;
  for (int axis = 0; axis < rank; ++axis) {
    if (shape[axis] == 0) {
      is_empty = true;
      continue;
    }
    // The first comparison avoids a division, which took a tenth of a call on small tensors.
    if (product > kMaxElements / kMaxExtent && product > kMaxElements / shape[axis]) {
      return shape_error(argument, Message::kTooManyElements, shape);
    }
    product *= shape[axis];
  }
  if (tensor.data == nullptr && !is_empty) {
    return shape_error(argument, Message::kNullData, shape);
  }
  if (tensor.dtype > static_cast<int>(DType::kBF16)) {
    return shape_error(argument, Message::kDtype, tensor.dtype);
  }
  return {};
}

Status validate_exact_of(Name argument, Axes axes, const Checked& tensor, const Dims& shape) {
  if (!(tensor.shape == shape)) {
    const bool given = tensor.data != nullptr || tensor.shape.rank() != 0;
    return shape_error(argument, given ? Message::kExact : Message::kExactMissing, axes, shape,
                       tensor.shape);
  }
  MULTIHEAD_TRY(validate_rank_of(argument, axes, tensor, shape.rank()));
  MULTIHEAD_TRY(validate_rows_contiguous(argument, tensor.shape, tensor.strides));
  return tensor.written ? validate_writable(argument, tensor) : Status();
}

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
  MULTIHEAD_TRY(validate_rank(argument, Axes::kNone, view, rank));
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
    MULTIHEAD_TRY(validate_enumerator(name, alignment, Alignment::kOffset));
  }
  for (const auto& [name, side] :
       {std::pair{Name::kWindowLeft, window.left}, std::pair{Name::kWindowRight, window.right}}) {
    if (side < -1) return option_error(name, Message::kWindowSide, side);
  }
  const bool states_alignment = window.alignment != Alignment::kNone;
  const Causal& causal = options.causal;
  const bool same = window.alignment == causal.alignment &&
                    (causal.alignment != Alignment::kOffset || window.offset == causal.offset);
  if (states_alignment && causal.given() && !same) {
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
  if (!norm.given()) {
    if (norm.q_gain.empty() && norm.k_gain.empty()) return {};
    return option_error(Name::kQkNorm, Message::kNormEnabled);
  }
  MULTIHEAD_TRY(validate_not_negative(Name::kQkNormEpsilon, norm.eps));
  MULTIHEAD_TRY(validate_count(Name::kQkNormQGain, norm.q_gain.size(), shape.head_dim,
                               Message::kValuePerElement));
  MULTIHEAD_TRY(validate_count(Name::kQkNormKGain, norm.k_gain.size(), shape.head_dim,
                               Message::kValuePerElement));
  return {};
}

}  // namespace

template <class TensorLike>
Status validate_rank(Name argument, Axes axes, const TensorLike& tensor, int rank) {
  return validate_rank_of(argument, axes, Checked::of(tensor), rank);
}

template <class TensorLike>
Status validate_exact(Name argument, Axes axes, const TensorLike& tensor, const Dims& shape) {
  return validate_exact_of(argument, axes, Checked::of(tensor), shape);
}

Status validate_inputs(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                       AttentionShape& shape) {
  MULTIHEAD_TRY(validate_rank(Name::kQ, Axes::kQ, q, 4));
  MULTIHEAD_TRY(validate_rank(Name::kK, Axes::kK, k, 4));
  MULTIHEAD_TRY(validate_rank(Name::kV, Axes::kV, v, 4));
  shape = {.batch = q.shape[0],
           .heads = q.shape[1],
           .kv_heads = k.shape[1],
           .queries = q.shape[2],
           .keys = k.shape[2],
           .head_dim = q.shape[3],
           .value_dim = v.shape[3]};
  if (k.dtype != v.dtype) {
    return shape_error(Name::kV, Message::kDtypeOfKeys, static_cast<int>(k.dtype),
                       static_cast<int>(v.dtype));
  }
  MULTIHEAD_TRY(validate_rows_contiguous(Name::kQ, q.shape, q.strides));
  MULTIHEAD_TRY(validate_rows_contiguous(Name::kK, k.shape, k.strides));
  MULTIHEAD_TRY(validate_rows_contiguous(Name::kV, v.shape, v.strides));
  if (k.shape[0] != shape.batch || k.shape[3] != shape.head_dim) {
    return shape_error(Name::kK, Message::kKeysAsQueries, Axes::kK, q.shape, k.shape, shape.batch,
                       shape.head_dim);
  }
  if (v.shape[0] != shape.batch || v.shape[1] != shape.kv_heads || v.shape[2] != shape.keys) {
    return shape_error(Name::kV, Message::kValuesAsKeys, Axes::kV, k.shape, v.shape, shape.batch,
                       shape.kv_heads, shape.keys);
  }
  if (shape.kv_heads == 0 ? shape.heads != 0 : shape.heads % shape.kv_heads != 0) {
    return shape_error(Name::kK, Message::kHeadsDivide, shape.heads, shape.kv_heads);
  }
  return {};
}

Status validate_call(const ForwardCall& call, AttentionShape& shape, Values values) {
  MULTIHEAD_TRY(validate_inputs(call.q, call.k, call.v, shape));
  MULTIHEAD_TRY(validate_options(call.options, shape, values));
  return validate_outputs(call.outputs, shape);
}

Status validate_call(const BackwardCall& call, AttentionShape& shape, Values values) {
  MULTIHEAD_TRY(validate_inputs(call.q, call.k, call.v, shape));
  MULTIHEAD_TRY(validate_options(call.options, shape, values));
  return validate_backward(call, shape);
}

Status validate_options(const AttentionOptions& options, const AttentionShape& shape,
                        Values values) {
  if (options.scale && !std::isfinite(*options.scale)) {
    return real_error(Name::kScale, Message::kFinite, *options.scale);
  }
  if (shape.head_dim == 0 && !options.scale) {
    return option_error(Name::kScale, Message::kScaleOfWidthZero);
  }
  MULTIHEAD_TRY(validate_not_negative(Name::kSoftcap, options.softcap));
  const float p = options.dropout.probability;
  if (!(p >= 0.0F && p < 1.0F)) {
    return real_error(Name::kDropoutProbability, Message::kProbability, p);
  }
  MULTIHEAD_TRY(validate_enumerator(Name::kPrecision, options.precision, Precision::kBf16));
  const Dims scores = shape.scores();
  MULTIHEAD_TRY(validate_window(options));
  MULTIHEAD_TRY(validate_lengths(options.kv_lengths, shape, values));
  MULTIHEAD_TRY(validate_broadcast(Name::kMask, options.mask, scores));
  MULTIHEAD_TRY(validate_broadcast(Name::kBias, options.bias, scores));
  MULTIHEAD_TRY(validate_count(Name::kAlibiSlopes, options.alibi_slopes.size(), shape.heads,
                               Message::kValuePerQueryHead));
  MULTIHEAD_TRY(validate_finite(Name::kAlibiSlopes, options.alibi_slopes, values));
  MULTIHEAD_TRY(
      validate_count(Name::kSinks, options.sinks.size(), shape.heads, Message::kValuePerQueryHead));
  MULTIHEAD_TRY(validate_finite(Name::kSinks, options.sinks, values));
  MULTIHEAD_TRY(validate_norm(options.qk_norm, shape));
  MULTIHEAD_TRY(validate_rope(options.rope, shape.head_dim));
  const Rope& rope = options.rope;
  if (!rope.given()) {
    if (rope.q_positions.empty() && rope.k_positions.empty()) return {};
    return option_error(Name::kRopeStyle, Message::kRopeStyleForPositions);
  }
  MULTIHEAD_TRY(
      validate_positions(Name::kRopeQPositions, rope.q_positions, shape.batch, shape.queries));
  MULTIHEAD_TRY(
      validate_positions(Name::kRopeKPositions, rope.k_positions, shape.batch, shape.keys));
  return {};
}

Status validate_lengths(std::span<const int32_t> lengths, const AttentionShape& shape,
                        Values values) {
  MULTIHEAD_TRY(
      validate_count(Name::kKvLengths, lengths.size(), shape.batch, Message::kValuePerBatchEntry));
  if (values == Values::kOnDevice) return {};
  for (const int32_t length : lengths) {
    if (length < 0 || length > shape.keys) {
      return option_error(Name::kKvLengths, Message::kLengthInKeys, shape.keys, length);
    }
  }
  return {};
}

Status validate_rope(const Rope& rope, int64_t width) {
  MULTIHEAD_TRY(validate_enumerator(Name::kRopeStyle, rope.style, Rope::Style::kHalf));
  if (!rope.given()) {
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
  MULTIHEAD_TRY(validate_rank(Name::kX, Axes::kHeads, x, 4));
  MULTIHEAD_TRY(validate_exact(Name::kX, Axes::kHeads, x, x.shape));
  MULTIHEAD_TRY(validate_exact(Name::kY, Axes::kHeads, y, x.shape));
  MULTIHEAD_TRY(validate_rope(rope, x.shape[3]));
  MULTIHEAD_TRY(validate_positions(Name::kPositions, positions, x.shape[0], x.shape[2]));
  if (!rope.given()) return option_error(Name::kRopeStyle, Message::kRopeStyle);
  if (positions.empty() && x.shape.elements() != 0) {
    return option_error(Name::kPositions, Message::kPositionPerRow);
  }
  return {};
}

Status validate_cumulative(Name argument, std::span<const int32_t> cu, int64_t total) {
  const bool rises = std::is_sorted(cu.begin(), cu.end());
  if (!cu.empty() && cu.front() == 0 && cu.back() == total && rises) return {};
  if (cu.empty()) return option_error(argument, Message::kCumulativeNone, total);
  return option_error(argument, rises ? Message::kCumulativeEnds : Message::kCumulativeFalls, total,
                      cu.front(), cu.back());
}

Status validate_capture(const ScoreCapture& capture, const AttentionShape& shape) {
  const Tensor& out = capture.out;
  MULTIHEAD_TRY(validate_enumerator(Name::kCaptureStage, capture.stage, ScoreStage::kWeights));
  MULTIHEAD_TRY(validate_rank(Name::kCaptureOut, Axes::kCapture, out, 4));
  const int64_t heads =
      capture.heads.empty() ? shape.heads : static_cast<int64_t>(capture.heads.size());
  MULTIHEAD_TRY(validate_exact(Name::kCaptureOut, Axes::kCapture, out,
                               {shape.batch, heads, out.shape[2], shape.keys}));
  for (size_t i = 0; i < capture.heads.size(); ++i) {
    const int32_t head = capture.heads[i];
    if (head < 0 || head >= shape.heads) {
      return option_error(Name::kCaptureHeads, Message::kRange, 0, shape.heads - 1, head);
    }
    const auto before = capture.heads.first(i);
    if (std::find(before.begin(), before.end(), head) != before.end()) {
      return option_error(Name::kCaptureHeads, Message::kHeadOnce, head);
    }
  }
  if (capture.first_row < 0 || capture.first_row > shape.queries ||
      out.shape[2] > shape.queries - capture.first_row) {
    return option_error(Name::kCaptureFirstRow, Message::kCaptureRows, shape.queries, out.shape[2],
                        capture.first_row);
  }
  return {};
}

Status validate_outputs(const AttentionOutputs& outputs, const AttentionShape& shape) {
  MULTIHEAD_TRY(validate_exact(Name::kOut, Axes::kOut, outputs.out,
                               {shape.batch, shape.heads, shape.queries, shape.value_dim}));
  if (outputs.lse.given()) {
    MULTIHEAD_TRY(validate_exact(Name::kLse, Axes::kLse, outputs.lse,
                                 {shape.batch, shape.heads, shape.queries}));
  }
  if (outputs.weights.given()) {
    MULTIHEAD_TRY(validate_exact(Name::kWeights, Axes::kScores, outputs.weights, shape.scores()));
  }
  if (outputs.dropout_mask.given()) {
    MULTIHEAD_TRY(
        validate_exact(Name::kDropoutMask, Axes::kScores, outputs.dropout_mask, shape.scores()));
  }
  for (const ScoreCapture& capture : outputs.captures) {
    MULTIHEAD_TRY(validate_capture(capture, shape));
  }
  return {};
}

Status validate_backward(const BackwardCall& call, const AttentionShape& shape) {
  const AttentionOptions& options = call.options;
  const AttentionResults& results = call.results;
  const ConstAnyTensor& d_out = call.d_out;
  const AttentionGradients& gradients = call.gradients;
  const auto& [batch, heads, kv_heads, queries, keys, head_dim, value_dim] = shape;
  const Dims out_shape{batch, heads, queries, value_dim};
  MULTIHEAD_TRY(validate_exact(Name::kOut, Axes::kOut, results.out, out_shape));
  MULTIHEAD_TRY(validate_exact(Name::kLse, Axes::kLse, results.lse, {batch, heads, queries}));
  MULTIHEAD_TRY(validate_exact(Name::kDOut, Axes::kOut, d_out, out_shape));
  struct Gradient {
    Name name;
    Axes axes;
    const Tensor& tensor;
    Dims shape;
  };
  for (const Gradient& gradient :
       {Gradient{Name::kDQ, Axes::kQ, gradients.d_q, {batch, heads, queries, head_dim}},
        Gradient{Name::kDK, Axes::kK, gradients.d_k, {batch, kv_heads, keys, head_dim}},
        Gradient{Name::kDV, Axes::kV, gradients.d_v, {batch, kv_heads, keys, value_dim}},
        Gradient{Name::kDBias, Axes::kAsBias, gradients.d_bias, options.bias.shape}}) {
    if (!gradient.tensor.given()) continue;
    if (gradient.name == Name::kDBias && !options.bias.given()) {
      return option_error(Name::kDBias, Message::kGradientOfNoBias);
    }
    MULTIHEAD_TRY(validate_exact(gradient.name, gradient.axes, gradient.tensor, gradient.shape));
  }
  struct Row {
    Name name;
    std::span<float> row;
    bool exists;
    Message missing, count;
    int64_t size;
  };
  const auto gain = [&](Name name, std::span<float> row) {
    return Row{name,
               row,
               options.qk_norm.given(),
               Message::kGradientOfNoNorm,
               Message::kValuePerElement,
               shape.head_dim};
  };
  for (const Row& row :
       {Row{Name::kDSinks, gradients.d_sinks, !options.sinks.empty(), Message::kGradientOfNoSinks,
            Message::kValuePerQueryHead, heads},
        gain(Name::kDQGain, gradients.d_q_gain), gain(Name::kDKGain, gradients.d_k_gain)}) {
    if (row.row.empty()) continue;
    if (!row.exists) return option_error(row.name, row.missing);
    const auto size = static_cast<int64_t>(row.row.size());
    if (size != row.size) return option_error(row.name, row.count, row.size, size);
  }
  if (!gradients.d_q_gain.empty() && !gradients.d_q.given()) {
    return option_error(Name::kDQGain, Message::kGradientOfGain);
  }
  if (!gradients.d_k_gain.empty() && !gradients.d_k.given()) {
    return option_error(Name::kDKGain, Message::kGradientOfGain);
  }
  return {};
}

Status validate_merge(const Tensor& out_a, const Tensor& lse_a, const ConstTensor& out_b,
                      const ConstTensor& lse_b) {
  MULTIHEAD_TRY(validate_rank(Name::kOutA, Axes::kOut, out_a, 4));
  const Dims& shape = out_a.shape;
  const Dims rows{shape[0], shape[1], shape[2]};
  MULTIHEAD_TRY(validate_exact(Name::kOutA, Axes::kOut, out_a, shape));
  MULTIHEAD_TRY(validate_exact(Name::kLseA, Axes::kLse, lse_a, rows));
  MULTIHEAD_TRY(validate_exact(Name::kOutB, Axes::kOut, out_b, shape));
  MULTIHEAD_TRY(validate_exact(Name::kLseB, Axes::kLse, lse_b, rows));
  return {};
}

Status validate_linear(const ConstTensor& x, const ConstAnyTensor& weight, const ConstTensor& bias,
                       const Tensor& y) {
  MULTIHEAD_TRY(validate_rank(Name::kX, Axes::kLinearX, x, 2));
  MULTIHEAD_TRY(validate_rank(Name::kWeight, Axes::kLinearWeight, weight, 2));
  MULTIHEAD_TRY(validate_rows_contiguous(Name::kX, x.shape, x.strides));
  MULTIHEAD_TRY(validate_rows_contiguous(Name::kWeight, weight.shape, weight.strides));
  if (weight.shape[1] != x.shape[1]) {
    return shape_error(Name::kWeight, Message::kWeightAsInput, Axes::kLinearWeight, x.shape,
                       weight.shape, x.shape[1]);
  }
  if (bias.given()) {
    MULTIHEAD_TRY(validate_exact(Name::kBias, Axes::kLinearBias, bias, {weight.shape[0]}));
  }
  return validate_exact(Name::kY, Axes::kLinearY, y, {x.shape[0], weight.shape[0]});
}

template Status validate_exact(Name, Axes, const ConstTensor&, const Dims&);
template Status validate_exact(Name, Axes, const Tensor&, const Dims&);
template Status validate_exact(Name, Axes, const AnyTensor&, const Dims&);
template Status validate_exact(Name, Axes, const ConstAnyTensor&, const Dims&);
template Status validate_exact(Name, Axes, const TensorView<uint8_t>&, const Dims&);
template Status validate_rank(Name, Axes, const ConstBoolTensor&, int);
template Status validate_rank(Name, Axes, const ConstTensor&, int);
template Status validate_rank(Name, Axes, const Tensor&, int);
template Status validate_rank(Name, Axes, const AnyTensor&, int);
template Status validate_rank(Name, Axes, const ConstAnyTensor&, int);

}  // namespace multihead::engine
