// Token sequences of a module: (B, N, width) in whatever order of axes the caller has them.
#pragma once

#include <cstdint>

#include "multihead/linear.h"
#include "multihead/tensor.h"

namespace multihead::nn {

template <class T>
struct Sequence {
  T* data = nullptr;
  int64_t batch = 0, tokens = 0, width = 0;
  int64_t batch_stride = 0, token_stride = 0;

  T* token(int64_t b, int64_t n) const { return data + b * batch_stride + n * token_stride; }

  // (B, N, H * d) as (B, H, N, d).
  TensorView<T> heads(int64_t count) const {
    const int64_t head = width / count;
    return {data, {batch, count, tokens, head}, {batch_stride, head, token_stride, 1}};
  }
  Sequence columns(int64_t first, int64_t count) const {
    Sequence part = *this;
    part.data += first;
    part.width = count;
    return part;
  }
  // NOLINTNEXTLINE(google-explicit-constructor)
  operator Sequence<const T>() const {
    return {data, batch, tokens, width, batch_stride, token_stride};
  }
};

// (B, N, width); (N, B, width) where not batch_first; (N, width) is one batch entry.
template <class T>
Sequence<T> sequence_of(const TensorView<T>& tensor, bool batch_first) {
  const Dims &shape = tensor.shape, &strides = tensor.strides;
  if (shape.rank() == 2) return {tensor.data, 1, shape[0], shape[1], 0, strides[0]};
  const int b = batch_first ? 0 : 1, n = 1 - b;
  return {tensor.data, shape[b], shape[n], shape[2], strides[b], strides[n]};
}

inline bool same_view(const ConstTensor& a, const ConstTensor& b) {
  return a.data == b.data && a.shape == b.shape && a.strides == b.strides;
}

// Without gaps, and where possible with the tokens in the order of `like`, so that one product
// covers both.
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

template <class T>
Sequence<T> contiguous_sequence(T* data, int64_t batch, int64_t tokens, int64_t width) {
  return {data, batch, tokens, width, tokens * width, width};
}

// y = x W^T + bias for every token.
Status project(const Sequence<const float>& x, const ConstTensor& weight, const ConstTensor& bias,
               const Sequence<float>& y, Context& context);

}  // namespace multihead::nn
