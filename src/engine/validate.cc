#include "engine/validate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "engine/enumerators.h"

namespace multihead::engine {
namespace {

// Positions are compared as 32-bit integers in the kernels.
constexpr int64_t kMaxExtent = std::numeric_limits<int32_t>::max();

Status shape_error(const std::string& argument, const std::string& expected,
                   const std::string& got) {
  return {StatusCode::kShape, argument, expected, got};
}

std::string count_of(size_t size) { return std::to_string(size) + " values"; }

std::string words_of(float value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-infinity" : "infinity";
  return value < 0 ? "a negative number" : "a number out of range";
}

Status validate_dtype(const char* argument, DType dtype) {
  if (dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16) return {};
  return shape_error(argument, "f32, f16 or bf16",
                     "element type number " + std::to_string(static_cast<int>(dtype)));
}

// Where two elements share a place, threads would write it at the same time.
template <class TensorLike>
Status validate_writable(const char* argument, const TensorLike& tensor) {
  for (int axis = 0; axis < tensor.shape.rank(); ++axis) {
    if (tensor.strides[axis] == 0 && tensor.shape[axis] > 1 && tensor.shape.elements() != 0) {
      return shape_error(argument, "a place of its own for each element",
                         "stride 0 along axis " + std::to_string(axis) + " of extent " +
                             std::to_string(tensor.shape[axis]));
    }
  }
  return {};
}

template <class TensorLike>
Status validate_rows_contiguous(const char* argument, const TensorLike& tensor) {
  const int last = tensor.shape.rank() - 1;
  if (tensor.shape[last] > 1 && tensor.strides[last] != 1) {
    return shape_error(argument, "a contiguous last axis (stride 1)",
                       "stride " + std::to_string(tensor.strides[last]));
  }
  return {};
}

// mask or bias against (B, H_q, N_q, N_k).
template <class T>
Status validate_broadcast(const char* argument, const TensorView<T>& view, const Dims& scores) {
  if (!view.given()) return {};
  const int rank = view.shape.rank();
  const auto wrong_shape = [&](const char* advice) {
    return shape_error(argument,
                       "(N_q, N_k) or (B, H_q, N_q, N_k) that broadcasts to " + scores.to_string(),
                       view.shape.to_string() + advice);
  };
  if (rank == 3) {
    return wrong_shape(", whose first axis could be B or H_q: add an axis of 1 to say which");
  }
  if (rank != 2 && rank != 4) return wrong_shape("");
  if (Status status = validate_rank(argument, "", view, rank); !status.ok()) return status;
  for (int axis = 0; axis < rank; ++axis) {
    const int64_t extent = view.shape[axis];
    if (extent != 1 && extent != scores[axis + 4 - rank]) return wrong_shape("");
  }
  return {};
}

// A span with one value per `what`, or none.
template <class T>
Status validate_count(const char* argument, std::span<const T> values, int64_t count,
                      const char* what) {
  if (values.empty() || static_cast<int64_t>(values.size()) == count) return {};
  return {StatusCode::kShape, argument, std::to_string(count) + " values, one per " + what,
          count_of(values.size())};
}

Status validate_finite(const char* argument, std::span<const float> values) {
  for (const float value : values) {
    if (!std::isfinite(value)) return option_error(argument, "finite numbers", words_of(value));
  }
  return {};
}

Status validate_window(const AttentionOptions& options) {
  const Window& window = options.window;
  for (const auto& [name, alignment] : {std::pair{"causal", options.causal.alignment},
                                        std::pair{"window.alignment", window.alignment}}) {
    if (Status status = validate_enumerator(name, alignment, Alignment::kOffset); !status.ok()) {
      return status;
    }
  }
  for (const auto& [name, side] :
       {std::pair{"window.left", window.left}, std::pair{"window.right", window.right}}) {
    if (side < -1) return option_error(name, "0 or more, or -1 for open", std::to_string(side));
  }
  const bool states_alignment = window.alignment != Alignment::kNone;
  const Causal& causal = options.causal;
  const bool same = window.alignment == causal.alignment &&
                    (causal.alignment != Alignment::kOffset || window.offset == causal.offset);
  if (states_alignment && causal.alignment != Alignment::kNone && !same) {
    return option_error("window.alignment", "none, or that of causal, whose positions it takes",
                        "another one");
  }
  if (states_alignment && !window.given()) {
    return option_error("window.alignment", "left or right beside it", "neither");
  }
  for (const Alignment alignment : {options.causal.alignment, window.alignment}) {
    if (alignment == Alignment::kBottomRightOfLength && options.kv_lengths.empty()) {
      return option_error("causal", "{kv_lengths} beside the bottom-right of lengths", "none");
    }
  }
  return {};
}

Status validate_norm(const QkNorm& norm, const AttentionShape& shape) {
  if (!norm.enabled) {
    if (norm.q_gain.empty() && norm.k_gain.empty()) return {};
    return option_error("qk_norm", "enabled, since it has gains", "not enabled");
  }
  if (!(norm.epsilon >= 0.0F) || std::isinf(norm.epsilon)) {
    return option_error("qk_norm.epsilon", "a finite number, 0 or more", words_of(norm.epsilon));
  }
  for (const Status& status :
       {validate_count("qk_norm.q_gain", norm.q_gain, shape.key_width, "element of d_k"),
        validate_count("qk_norm.k_gain", norm.k_gain, shape.key_width, "element of d_k")}) {
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace

Status option_error(const std::string& argument, const std::string& expected,
                    const std::string& got) {
  return {StatusCode::kOption, argument, expected, got};
}

std::string number(const char* name, int64_t value) {
  return std::string(name) + " = " + std::to_string(value);
}

template <class TensorLike>
Status validate_rank(const char* argument, const char* letters, const TensorLike& tensor,
                     int rank) {
  if (tensor.shape.rank() != rank) {
    return shape_error(
        argument, std::string("rank ") + std::to_string(rank) + ", " + letters,
        "rank " + std::to_string(tensor.shape.rank()) + ", " + tensor.shape.to_string());
  }
  if (tensor.strides.rank() != rank) {
    return shape_error(argument, "as many strides as extents, " + std::to_string(rank),
                       std::to_string(tensor.strides.rank()) + " strides");
  }
  for (int axis = 0; axis < rank; ++axis) {
    if (tensor.shape[axis] < 0 || tensor.shape[axis] > kMaxExtent) {
      return shape_error(argument, "extents from 0 to 2147483647", tensor.shape.to_string());
    }
  }
  constexpr int64_t kMaxElements = std::numeric_limits<int64_t>::max() / 4;
  int64_t elements = 1;
  for (int axis = 0; axis < rank; ++axis) {
    // Dividing took a tenth of a call on small tensors.
    if (elements > kMaxElements / kMaxExtent && tensor.shape[axis] != 0 &&
        elements > kMaxElements / tensor.shape[axis]) {
      return shape_error(argument, "a number of elements below 2^61", tensor.shape.to_string());
    }
    elements *= tensor.shape[axis];
  }
  if (tensor.data == nullptr && elements > 0) {
    return shape_error(argument, "data for " + tensor.shape.to_string(), "a null pointer");
  }
  if constexpr (requires { tensor.dtype; }) return validate_dtype(argument, tensor.dtype);
  return {};
}

template <class TensorLike>
Status validate_exact(const char* argument, const char* letters, const TensorLike& tensor,
                      const Dims& shape) {
  if (!(tensor.shape == shape)) {
    return shape_error(argument, std::string(letters) + " = " + shape.to_string(),
                       tensor.given() ? tensor.shape.to_string() : "nothing");
  }
  if (Status status = validate_rank(argument, letters, tensor, shape.rank()); !status.ok()) {
    return status;
  }
  if (Status status = validate_rows_contiguous(argument, tensor); !status.ok()) return status;
  if constexpr (!std::is_const_v<std::remove_pointer_t<decltype(tensor.data)>>) {
    return validate_writable(argument, tensor);
  }
  return {};
}

Status validate_inputs(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                       AttentionShape& shape) {
  constexpr const char* kQ = "(B, H_q, N_q, d_k)";
  constexpr const char* kK = "(B, H_kv, N_k, d_k)";
  constexpr const char* kV = "(B, H_kv, N_k, d_v)";
  for (const Status& status :
       {validate_rank("q", kQ, q, 4), validate_rank("k", kK, k, 4), validate_rank("v", kV, v, 4)}) {
    if (!status.ok()) return status;
  }
  shape = {.batch = q.shape[0],
           .heads = q.shape[1],
           .kv_heads = k.shape[1],
           .queries = q.shape[2],
           .keys = k.shape[2],
           .key_width = q.shape[3],
           .value_width = v.shape[3]};
  if (k.dtype != v.dtype) {
    return shape_error("v", std::string("the element type of k, ") + name_of(k.dtype),
                       name_of(v.dtype));
  }
  for (const Status& status : {validate_rows_contiguous("q", q), validate_rows_contiguous("k", k),
                               validate_rows_contiguous("v", v)}) {
    if (!status.ok()) return status;
  }
  if (k.shape[0] != shape.batch || k.shape[3] != shape.key_width) {
    return shape_error("k",
                       std::string(kK) + " with " + number("B", shape.batch) + ", " +
                           number("d_k", shape.key_width) + " as in q " + q.shape.to_string(),
                       k.shape.to_string());
  }
  if (v.shape[0] != shape.batch || v.shape[1] != shape.kv_heads || v.shape[2] != shape.keys) {
    return shape_error("v",
                       std::string(kV) + " with " + number("B", shape.batch) + ", " +
                           number("H_kv", shape.kv_heads) + ", " + number("N_k", shape.keys) +
                           " as in k " + k.shape.to_string(),
                       v.shape.to_string());
  }
  if (shape.kv_heads == 0 ? shape.heads != 0 : shape.heads % shape.kv_heads != 0) {
    return shape_error("k", "H_kv that divides H_q = " + std::to_string(shape.heads),
                       number("H_kv", shape.kv_heads));
  }
  return {};
}

Status validate_call(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                     const AttentionOptions& options, const AttentionOutputs& outputs,
                     AttentionShape& shape) {
  if (Status status = validate_inputs(q, k, v, shape); !status.ok()) return status;
  if (Status status = validate_options(options, shape); !status.ok()) return status;
  return validate_outputs(outputs, shape);
}

Status validate_options(const AttentionOptions& options, const AttentionShape& shape) {
  if (options.scale && !std::isfinite(*options.scale)) {
    return option_error("scale", "a finite number", words_of(*options.scale));
  }
  if (shape.key_width == 0 && !options.scale) {
    return option_error("scale", "a number, since d_k = 0 has no 1/sqrt(d_k)", "none");
  }
  if (!(options.softcap >= 0.0F) || std::isinf(options.softcap)) {
    return option_error("softcap", "a finite number, 0 or more", words_of(options.softcap));
  }
  const float p = options.dropout.probability;
  if (!(p >= 0.0F && p < 1.0F)) {
    return option_error("dropout.probability", "0 <= p < 1", words_of(p));
  }
  const Dims scores = shape.scores();
  for (const Status& status :
       {validate_window(options), validate_lengths(options.kv_lengths, shape),
        validate_broadcast("mask", options.mask, scores),
        validate_broadcast("bias", options.bias, scores),
        validate_count("alibi_slopes", options.alibi_slopes, shape.heads, "query head"),
        validate_finite("alibi_slopes", options.alibi_slopes),
        validate_count("sinks", options.sinks, shape.heads, "query head"),
        validate_finite("sinks", options.sinks), validate_norm(options.qk_norm, shape),
        validate_rope(options.rope, shape.key_width)}) {
    if (!status.ok()) return status;
  }
  const Rope& rope = options.rope;
  if (rope.style == Rope::Style::kNone) {
    if (rope.q_positions.empty() && rope.k_positions.empty()) return {};
    return option_error("rope.style", "a style, since positions are given", "none");
  }
  for (const Status& status :
       {validate_positions("rope.q_positions", rope.q_positions, shape.batch, shape.queries),
        validate_positions("rope.k_positions", rope.k_positions, shape.batch, shape.keys)}) {
    if (!status.ok()) return status;
  }
  return {};
}

Status validate_lengths(std::span<const int32_t> lengths, const AttentionShape& shape) {
  if (Status status = validate_count("kv_lengths", lengths, shape.batch, "batch entry");
      !status.ok()) {
    return status;
  }
  for (const int32_t length : lengths) {
    if (length < 0 || length > shape.keys) {
      return option_error("kv_lengths", "0 to " + number("N_k", shape.keys),
                          std::to_string(length));
    }
  }
  return {};
}

Status validate_rope(const Rope& rope, int64_t width) {
  if (Status status = validate_enumerator("rope.style", rope.style, Rope::Style::kHalf);
      !status.ok()) {
    return status;
  }
  if (rope.style == Rope::Style::kNone) {
    if (rope.rotary_dim == 0) return {};
    return option_error("rope.style", "a style, since {rotary_dim} is given", "none");
  }
  if (!(rope.base > 0.0) || std::isinf(rope.base)) {
    return option_error("rope.base", "a finite number above 0",
                        words_of(static_cast<float>(rope.base)));
  }
  const int64_t rotary = rope.rotary_dim != 0 ? rope.rotary_dim : width;
  if (rotary < 0 || rotary > width || rotary % 2 != 0) {
    return option_error("rope.rotary_dim", "an even number up to " + number("d_k", width),
                        std::to_string(rotary));
  }
  return {};
}

Status validate_positions(const char* argument, std::span<const int32_t> positions, int64_t batch,
                          int64_t tokens) {
  const auto size = static_cast<int64_t>(positions.size());
  if (size == 0 || size == tokens || size == batch * tokens) return {};
  return shape_error(argument,
                     std::to_string(tokens) + " values, or " + std::to_string(batch * tokens) +
                         " for each batch entry its own",
                     count_of(positions.size()));
}

Status validate_cumulative(const char* argument, std::span<const int32_t> cu, int64_t total) {
  const bool rises = std::is_sorted(cu.begin(), cu.end());
  if (!cu.empty() && cu.front() == 0 && cu.back() == total && rises) return {};
  return option_error(
      argument,
      "numbers that start at 0, never fall and end at the number of rows, " + std::to_string(total),
      cu.empty() ? "none"
                 : "from " + std::to_string(cu.front()) + " to " + std::to_string(cu.back()) +
                       (rises ? "" : ", falling between"));
}

Status validate_capture(const ScoreCapture& capture, const AttentionShape& shape) {
  const Tensor& out = capture.out;
  if (Status status = validate_enumerator("capture.stage", capture.stage, ScoreStage::kWeights);
      !status.ok()) {
    return status;
  }
  if (Status status = validate_rank("capture.out", "(B, heads, rows, N_k)", out, 4); !status.ok()) {
    return status;
  }
  const int64_t heads =
      capture.heads.empty() ? shape.heads : static_cast<int64_t>(capture.heads.size());
  if (Status status = validate_exact("capture.out", "(B, heads, rows, N_k)", out,
                                     {shape.batch, heads, out.shape[2], shape.keys});
      !status.ok()) {
    return status;
  }
  for (size_t i = 0; i < capture.heads.size(); ++i) {
    const int32_t head = capture.heads[i];
    if (head < 0 || head >= shape.heads) {
      return option_error("capture.heads", "0 to " + std::to_string(shape.heads - 1),
                          std::to_string(head));
    }
    const auto before = capture.heads.first(i);
    if (std::find(before.begin(), before.end(), head) != before.end()) {
      return option_error("capture.heads", "each head once", std::to_string(head) + " twice");
    }
  }
  if (capture.first_row < 0 || capture.first_row > shape.queries ||
      out.shape[2] > shape.queries - capture.first_row) {
    return option_error(
        "capture.first_row", "rows within " + number("N_q", shape.queries),
        std::to_string(out.shape[2]) + " rows from " + std::to_string(capture.first_row) + " on");
  }
  return {};
}

Status validate_outputs(const AttentionOutputs& outputs, const AttentionShape& shape) {
  if (Status status = validate_exact("out", "(B, H_q, N_q, d_v)", outputs.out,
                                     {shape.batch, shape.heads, shape.queries, shape.value_width});
      !status.ok()) {
    return status;
  }
  if (outputs.lse.given()) {
    if (Status status = validate_exact("lse", "(B, H_q, N_q)", outputs.lse,
                                       {shape.batch, shape.heads, shape.queries});
        !status.ok()) {
      return status;
    }
  }
  if (outputs.weights.given()) {
    if (Status status =
            validate_exact("weights", "(B, H_q, N_q, N_k)", outputs.weights, shape.scores());
        !status.ok()) {
      return status;
    }
  }
  if (outputs.dropout_mask.given()) {
    if (Status status = validate_exact("dropout_mask", "(B, H_q, N_q, N_k)", outputs.dropout_mask,
                                       shape.scores());
        !status.ok()) {
      return status;
    }
  }
  for (const ScoreCapture& capture : outputs.captures) {
    if (Status status = validate_capture(capture, shape); !status.ok()) return status;
  }
  return {};
}

Status validate_linear(const ConstTensor& x, const ConstAnyTensor& weight, const ConstTensor& bias,
                       const Tensor& y) {
  for (const Status& status :
       {validate_rank("x", "(rows, in)", x, 2), validate_rank("weight", "(out, in)", weight, 2)}) {
    if (!status.ok()) return status;
  }
  for (const Status& status :
       {validate_rows_contiguous("x", x), validate_rows_contiguous("weight", weight)}) {
    if (!status.ok()) return status;
  }
  if (weight.shape[1] != x.shape[1]) {
    return shape_error(
        "weight", "(out, in) with " + number("in", x.shape[1]) + " as in x " + x.shape.to_string(),
        weight.shape.to_string());
  }
  if (bias.given()) {
    if (Status status = validate_exact("bias", "(out)", bias, {weight.shape[0]}); !status.ok()) {
      return status;
    }
  }
  return validate_exact("y", "(rows, out)", y, {x.shape[0], weight.shape[0]});
}

template Status validate_exact(const char*, const char*, const ConstTensor&, const Dims&);
template Status validate_exact(const char*, const char*, const Tensor&, const Dims&);
template Status validate_exact(const char*, const char*, const AnyTensor&, const Dims&);
template Status validate_exact(const char*, const char*, const ConstAnyTensor&, const Dims&);
template Status validate_exact(const char*, const char*, const TensorView<uint8_t>&, const Dims&);
template Status validate_rank(const char*, const char*, const ConstTensor&, int);
template Status validate_rank(const char*, const char*, const Tensor&, int);
template Status validate_rank(const char*, const char*, const AnyTensor&, int);
template Status validate_rank(const char*, const char*, const ConstAnyTensor&, int);

}  // namespace multihead::engine
