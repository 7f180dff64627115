// Broadcasts a mask or bias of rank 2 or 4 to (B, H_q, N_q, N_k).
#pragma once

#include <array>
#include <cstdint>

#include "multihead/tensor.h"

namespace multihead::rules {

// Strides, in elements, over (B, H_q, N_q, N_k); 0 along a shared axis.
template <class T>
struct Broadcast {
  const T* data = nullptr;
  std::array<int64_t, 4> stride{};

  constexpr bool given() const { return data != nullptr; }
  constexpr const T* row(int64_t batch, int64_t head, int64_t query) const {
    return data + batch * stride[0] + head * stride[1] + query * stride[2];
  }
  constexpr const T& at(int64_t batch, int64_t head, int64_t query, int64_t key) const {
    return row(batch, head, query)[key * stride[3]];
  }
};

// Returns strides over (B, H_q, N_q, N_k). The view's last axis is N_k; axes that are absent or of
// extent 1 get stride 0.
template <class T>
std::array<int64_t, 4> strides_over_scores(const TensorView<T>& view) {
  std::array<int64_t, 4> result{};
  const int rank = view.shape.rank();
  auto stride = result.end() - rank;
  for (int axis = 0; axis < rank; ++axis) {
    *stride++ = view.shape[axis] == 1 ? 0 : view.strides[axis];
  }
  return result;
}

template <class T>
Broadcast<T> broadcast_to_scores(const TensorView<const T>& view) {
  return {.data = view.data, .stride = strides_over_scores(view)};
}

}  // namespace multihead::rules
