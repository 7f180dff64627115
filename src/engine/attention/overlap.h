// Refuses outputs that share memory with another tensor of their call: threads would write elements
// that other threads still read.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include "engine/attention/validate.h"
#include "engine/error/error.h"
#include "multihead/tensor.h"
#include "rules/shared.h"

namespace multihead::engine {

// A checked tensor of a call. It must outlive this object.
struct Operand {
  Name name;
  const void* data;
  const Dims& shape;
  const Dims& strides;
  int64_t element_bytes;

  template <class Void>
  Operand(Name name_, const AnyTensorView<Void>& tensor)
      : name(name_),
        data(tensor.data),
        shape(tensor.shape),
        strides(tensor.strides),
        element_bytes(bytes_of(tensor.dtype)) {}
  template <class T>
  Operand(Name name_, const TensorView<T>& tensor)
      : name(name_),
        data(tensor.data),
        shape(tensor.shape),
        strides(tensor.strides),
        element_bytes(sizeof(T)) {}
};

// Returns kShape for the first output that shares memory with an input or with an earlier output.
// Absent and empty tensors share no memory. Rows of two tensors may alternate in memory.
MULTIHEAD_SHARED Status validate_apart(std::initializer_list<Operand> inputs,
                                       std::initializer_list<Operand> outputs,
                                       std::span<const ScoreCapture> captures = {});

// Checks the outputs of attention(). k and v may be absent, as with caches.
Status validate_apart(const ForwardCall& call);

// Checks the gradients of attention_backward().
Status validate_apart(const BackwardCall& call);

// Checks the parts of merge_attention().
Status validate_apart(const Tensor& out_a, const Tensor& lse_a, const ConstTensor& out_b,
                      const ConstTensor& lse_b);

// Checks the output of linear().
Status validate_apart(const ConstTensor& x, const ConstAnyTensor& weight, const ConstTensor& bias,
                      const Tensor& y);

// Checks the output y of a function that reads each row of x as a whole before it writes it: y is
// x, or shares no memory with it.
Status validate_same_or_apart(Name name, const ConstTensor& x, const Tensor& y);

}  // namespace multihead::engine
