// In place of overlap.cc in the WebAssembly modules: the package gives each tensor memory of its
// own and refuses one that a call has twice (bindings/src/runtime/operands.ts). The check would add
// 2 kB.
#include "engine/attention/overlap.h"

#include <initializer_list>
#include <span>

namespace multihead::engine {

Status validate_apart(std::initializer_list<Operand> /*inputs*/,
                      std::initializer_list<Operand> /*outputs*/,
                      std::span<const ScoreCapture> /*captures*/) {
  return {};
}

Status validate_apart(const ForwardCall& /*call*/) { return {}; }

Status validate_apart(const BackwardCall& /*call*/) { return {}; }

Status validate_apart(const Tensor& /*out_a*/, const Tensor& /*lse_a*/,
                      const ConstTensor& /*out_b*/, const ConstTensor& /*lse_b*/) {
  return {};
}

Status validate_apart(const ConstTensor& /*x*/, const ConstAnyTensor& /*weight*/,
                      const ConstTensor& /*bias*/, const Tensor& /*y*/) {
  return {};
}

Status validate_same_or_apart(Name /*name*/, const ConstTensor& /*x*/, const Tensor& /*y*/) {
  return {};
}

}  // namespace multihead::engine
