// Memory for the outputs of a random call.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "multihead/attention.h"
#include "support/random_case.h"

namespace multihead::testing {

using Bytes = std::vector<std::byte>;

// All outputs of a call, initially NaN.
class CallOutputs {
 public:
  explicit CallOutputs(const RandomCase& c) {
    outputs_.out = {take(c.out_shape, static_cast<size_t>(bytes_of(c.out_type))), c.out_type,
                    c.out_shape, contiguous_strides(c.out_shape)};
    outputs_.lse = {take<float>(c.lse_shape), c.lse_shape};
    outputs_.weights = {take<float>(c.weights_shape), c.weights_shape};
    if (c.options.dropout.probability > 0) {
      outputs_.dropout_mask = {take<uint8_t>(c.weights_shape), c.weights_shape};
    }
    for (const CaptureRequest& request : c.captures) {
      const int64_t heads =
          request.heads.empty() ? c.weights_shape[1] : static_cast<int64_t>(request.heads.size());
      const Dims shape{c.weights_shape[0], heads, request.rows, c.weights_shape[3]};
      captures_.push_back({.stage = request.stage,
                           .out = {take<float>(shape), shape},
                           .heads = request.heads,
                           .first_row = request.first_row});
    }
    outputs_.captures = captures_;
  }
  CallOutputs(const CallOutputs&) = delete;
  CallOutputs& operator=(const CallOutputs&) = delete;

  const AttentionOutputs& outputs() const { return outputs_; }
  const std::deque<Bytes>& bytes() const { return bytes_; }
  void spoil() {
    for (Bytes& bytes : bytes_) std::fill(bytes.begin(), bytes.end(), std::byte{0xff});
  }

 private:
  void* take(const Dims& shape, size_t size) {
    return bytes_.emplace_back(static_cast<size_t>(shape.elements()) * size, std::byte{0xff})
        .data();
  }
  template <class T>
  T* take(const Dims& shape) {
    return static_cast<T*>(take(shape, sizeof(T)));
  }

  AttentionOutputs outputs_;
  std::vector<ScoreCapture> captures_;
  std::deque<Bytes> bytes_;
};

}  // namespace multihead::testing
