#include "engine/validate.h"

#include <cmath>
#include <limits>
#include <string>

namespace multihead::engine {
namespace {

// Positions are compared as 32-bit integers in the kernels.
constexpr int64_t kMaxExtent = std::numeric_limits<int32_t>::max();

Status shape_error(const std::string& argument, const std::string& expected,
                   const std::string& got) {
  return {StatusCode::kShape, argument, expected, got};
}

// Rank, extents, strides, data: what every tensor needs whatever the call.
template <class T>
Status validate_tensor(const char* argument, const char* letters, const TensorView<T>& tensor,
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
  if (tensor.data == nullptr && tensor.shape.elements() > 0) {
    return shape_error(argument, "data for " + tensor.shape.to_string(), "a null pointer");
  }
  return {};
}

template <class T>
Status validate_rows_contiguous(const char* argument, const TensorView<T>& tensor) {
  const int last = tensor.shape.rank() - 1;
  if (tensor.shape[last] > 1 && tensor.strides[last] != 1) {
    return shape_error(argument, "a contiguous last axis (stride 1)",
                       "stride " + std::to_string(tensor.strides[last]));
  }
  return {};
}

std::string number(const char* name, int64_t value) {
  return std::string(name) + " = " + std::to_string(value);
}

}  // namespace

template <class T>
Status validate_exact(const char* argument, const char* letters, const TensorView<T>& tensor,
                      const Dims& shape) {
  if (!(tensor.shape == shape)) {
    return shape_error(argument, std::string(letters) + " = " + shape.to_string(),
                       tensor.given() ? tensor.shape.to_string() : "nothing");
  }
  if (Status status = validate_tensor(argument, letters, tensor, shape.rank()); !status.ok()) {
    return status;
  }
  return validate_rows_contiguous(argument, tensor);
}

template <class T>
Status validate_broadcast(const char* argument, const TensorView<T>& view, const Dims& scores) {
  if (!view.given()) return {};
  const int rank = view.shape.rank();
  const std::string expected =
      "(N_q, N_k) or (B, H_q, N_q, N_k) that broadcasts to " + scores.to_string();
  if (rank == 3) {
    return shape_error(argument, expected,
                       view.shape.to_string() +
                           ", whose first axis could be B or H_q: add an "
                           "axis of 1 to say which");
  }
  if (rank != 2 && rank != 4) {
    return shape_error(argument, expected, view.shape.to_string());
  }
  if (Status status = validate_tensor(argument, "", view, rank); !status.ok()) return status;
  for (int axis = 0; axis < rank; ++axis) {
    const int64_t extent = view.shape[axis];
    if (extent != 1 && extent != scores[axis + 4 - rank]) {
      return shape_error(argument, expected, view.shape.to_string());
    }
  }
  return {};
}

Status validate_options(const AttentionOptions& options) {
  if (options.scale && !std::isfinite(*options.scale)) {
    return {StatusCode::kOption, "scale", "a finite number",
            std::isnan(*options.scale) ? "NaN" : "an infinite one"};
  }
  return {};
}

Status validate_attention(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                          const AttentionOptions& options, const AttentionOutputs& outputs,
                          AttentionShape& shape) {
  constexpr const char* kQ = "(B, H_q, N_q, d_k)";
  constexpr const char* kK = "(B, H_kv, N_k, d_k)";
  constexpr const char* kV = "(B, H_kv, N_k, d_v)";
  for (Status status : {validate_tensor("q", kQ, q, 4), validate_tensor("k", kK, k, 4),
                        validate_tensor("v", kV, v, 4), validate_options(options)}) {
    if (!status.ok()) return status;
  }
  shape = {.batch = q.shape[0],
           .heads = q.shape[1],
           .kv_heads = k.shape[1],
           .queries = q.shape[2],
           .keys = k.shape[2],
           .key_width = q.shape[3],
           .value_width = v.shape[3]};
  for (Status status : {validate_rows_contiguous("q", q), validate_rows_contiguous("k", k),
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
  if (shape.key_width == 0 && !options.scale) {
    return {StatusCode::kOption, "scale", "a number, since d_k = 0 has no 1/sqrt(d_k)", "none"};
  }
  const Dims scores{shape.batch, shape.heads, shape.queries, shape.keys};
  for (Status status :
       {validate_broadcast("mask", options.mask, scores),
        validate_broadcast("bias", options.bias, scores),
        validate_exact("out", "(B, H_q, N_q, d_v)", outputs.out,
                       {shape.batch, shape.heads, shape.queries, shape.value_width})}) {
    if (!status.ok()) return status;
  }
  if (outputs.lse.given()) {
    if (Status status = validate_exact("lse", "(B, H_q, N_q)", outputs.lse,
                                       {shape.batch, shape.heads, shape.queries});
        !status.ok()) {
      return status;
    }
  }
  if (outputs.weights.given()) {
    return validate_exact("weights", "(B, H_q, N_q, N_k)", outputs.weights, scores);
  }
  return {};
}

Status validate_linear(const ConstTensor& x, const ConstTensor& weight, const ConstTensor& bias,
                       const Tensor& y) {
  for (Status status : {validate_tensor("x", "(rows, in)", x, 2),
                        validate_tensor("weight", "(out, in)", weight, 2)}) {
    if (!status.ok()) return status;
  }
  for (Status status :
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

template Status validate_broadcast(const char*, const ConstBoolTensor&, const Dims&);
template Status validate_broadcast(const char*, const ConstTensor&, const Dims&);
template Status validate_exact(const char*, const char*, const ConstTensor&, const Dims&);
template Status validate_exact(const char*, const char*, const Tensor&, const Dims&);

}  // namespace multihead::engine
