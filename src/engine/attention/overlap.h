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
#if defined(__EMSCRIPTEN__)
// The package gives each tensor memory of its own and refuses one that a call has twice
// (bindings/src/runtime/operands.ts). Checking here would add 2 kB to a module.
inline Status validate_apart(std::initializer_list<Operand> /*inputs*/,
                             std::initializer_list<Operand> /*outputs*/,
                             std::span<const ScoreCapture> /*captures*/ = {}) {
  return {};
}
#else
MULTIHEAD_SHARED Status validate_apart(std::initializer_list<Operand> inputs,
                                       std::initializer_list<Operand> outputs,
                                       std::span<const ScoreCapture> captures = {});
#endif

// Checks the outputs of attention(). k and v may be absent, as with caches.
inline Status validate_apart(const ForwardCall& call) {
  const auto& [q, k, v, options, outputs] = call;
  return validate_apart({{Name::kQ, q},
                         {Name::kK, k},
                         {Name::kV, v},
                         {Name::kMask, options.mask},
                         {Name::kBias, options.bias}},
                        {{Name::kOut, outputs.out},
                         {Name::kLse, outputs.lse},
                         {Name::kWeights, outputs.weights},
                         {Name::kDropoutMask, outputs.dropout_mask}},
                        outputs.captures);
}

// Checks the gradients of attention_backward().
inline Status validate_apart(const BackwardCall& call) {
  const auto& [q, k, v, options, results, d_out, gradients] = call;
  return validate_apart({{Name::kQ, q},
                         {Name::kK, k},
                         {Name::kV, v},
                         {Name::kMask, options.mask},
                         {Name::kBias, options.bias},
                         {Name::kOut, results.out},
                         {Name::kLse, results.lse},
                         {Name::kDOut, d_out}},
                        {{Name::kDQ, gradients.d_q},
                         {Name::kDK, gradients.d_k},
                         {Name::kDV, gradients.d_v},
                         {Name::kDBias, gradients.d_bias}});
}

// Checks the output y of a function that reads each row of x as a whole before it writes it: y is
// x, or shares no memory with it.
inline Status validate_same_or_apart(Name name, const ConstTensor& x, const Tensor& y) {
  if (y.data == x.data && y.strides == x.strides) return {};
  return validate_apart({{name, x}}, {{Name::kY, y}});
}

}  // namespace multihead::engine
