// Token sequences of a module: (B, N, width), with either the batch or the tokens outermost in
// memory.
#pragma once

#include <cstdint>

#include "multihead/linear.h"
#include "multihead/tensor.h"
#include "nn/call_memory.h"
#include "rules/arena.h"

namespace multihead::nn {

// Adds an offset to a pointer. Null stays null: a tensor without elements may have no address, and
// adding to null is undefined.
template <class T>
T* moved(T* data, int64_t by) {
  return data == nullptr ? nullptr : data + by;
}

template <class T>
struct Sequence {
  T* data = nullptr;
  int64_t batch = 0, tokens = 0, width = 0;
  int64_t batch_stride = 0, token_stride = 0;

  T* token(int64_t b, int64_t n) const { return data + b * batch_stride + n * token_stride; }

  // Returns (B, N, H * d) as (B, H, N, d).
  TensorView<T> heads(int64_t count) const {
    const int64_t head = width / count;
    return {data, {batch, count, tokens, head}, {batch_stride, head, token_stride, 1}};
  }
  Sequence columns(int64_t first, int64_t count) const {
    Sequence part = *this;
    part.data = moved(data, first);
    part.width = count;
    return part;
  }
  // NOLINTNEXTLINE(google-explicit-constructor)
  operator Sequence<const T>() const {
    return {data, batch, tokens, width, batch_stride, token_stride};
  }
};

// Accepts (B, N, width); (N, B, width) if not batch_first; (N, width) as one batch entry.
template <class T>
Sequence<T> sequence_of(const TensorView<T>& tensor, bool batch_first) {
  const Dims &shape = tensor.shape, &strides = tensor.strides;
  if (shape.rank() == 2) return {tensor.data, 1, shape[0], shape[1], 0, strides[0]};
  const int b = batch_first ? 0 : 1, n = 1 - b;
  return {tensor.data, shape[b], shape[n], shape[2], strides[b], strides[n]};
}

// Returns one head of (B, H, N, width).
template <class T>
Sequence<T> sequence_of_head(const TensorView<T>& heads, int64_t head) {
  const Dims &shape = heads.shape, &strides = heads.strides;
  return {
      moved(heads.data, head * strides[1]), shape[0], shape[2], shape[3], strides[0], strides[2]};
}

// Returns columns first .. first + count - 1 of (B, H, N, width).
template <class T>
TensorView<T> columns_of(TensorView<T> heads, int64_t first, int64_t count) {
  heads.data = moved(heads.data, first);
  heads.shape[3] = count;
  return heads;
}

inline bool same_view(const ConstTensor& a, const ConstTensor& b) {
  return a.data == b.data && a.shape == b.shape && a.strides == b.strides;
}

// A contiguous sequence whose batch and token axes have the order of `like`, so that project() can
// use one product for all batch entries.
template <class T, class U>
Sequence<T> laid_out_like(T* data, const Sequence<U>& like, int64_t width) {
  const bool tokens_first = like.token_stride > like.batch_stride && like.batch > 1;
  return {data,
          like.batch,
          like.tokens,
          width,
          tokens_first ? width : like.tokens * width,
          tokens_first ? like.batch * width : width};
}

// Allocates a sequence with the batch and tokens of `like`.
inline Sequence<float> sequence_like(const Sequence<const float>& like, int64_t width,
                                     rules::Arena& take) {
  float* data = nullptr;
  take(data, saturated_elements({like.batch, like.tokens, width}));
  return laid_out_like(data, like, width);
}

template <class T>
Sequence<T> contiguous_sequence(T* data, int64_t batch, int64_t tokens, int64_t width) {
  return {data, batch, tokens, width, tokens * width, width};
}

// y = x W^T + bias for every token.
Status project(const Sequence<const float>& x, const ConstTensor& weight, const ConstTensor& bias,
               const Sequence<float>& y, Context& context, Precision precision = Precision::kF32);

// The backward of project(): d_x = d_y W, d_weight += d_y^T x, d_bias += column sums of d_y.
// Gradients that are not given are not computed.
struct ProjectBackward {
  Sequence<const float> x = {};
  ConstTensor weight = {};
  Sequence<const float> d_y = {};
  Sequence<float> d_x = {};
  bool adds_to_d_x = false;
  Tensor d_weight = {}, d_bias = {};
  Precision precision = Precision::kF32;
};
Status project_backward(const ProjectBackward& call, Context& context);

}  // namespace multihead::nn
