// The memory of MultiHeadAttentionActivations, and the call that filled it.
#pragma once

#include <cstdint>

#include "engine/attention/validate.h"
#include "engine/runtime/scratch.h"
#include "multihead/multi_head_attention.h"
#include "nn/attention/module_call.h"

namespace multihead {

struct MultiHeadAttentionActivations::Internals {
  // Allocates the internals of `of` if it has none. Errors: kMemory.
  static Status make(MultiHeadAttentionActivations& of);

  // Allocates the arrays of `call` for parameters of this version. Errors: kMemory.
  Status begin(uint64_t version, const engine::AttentionShape& shape, nn::ModuleCall& call);
  // Marks all arrays as filled.
  void end() { filled_ = true; }
  // True if the stored arrays were filled by a call of this version of the parameters, this shape
  // and the layout of `call`.
  bool belongs_to(uint64_t version, const engine::AttentionShape& shape,
                  nn::ModuleCall& call) const;
  // Points `call` at the stored arrays. `call` must have the layout of the call that filled them.
  void lay_out(nn::ModuleCall& call) const;
  int64_t bytes() const { return static_cast<int64_t>(memory_.bytes()); }

 private:
  engine::Buffer memory_;
  uint64_t version_ = 0;  // version of the parameters
  engine::AttentionShape shape_ = {};
  uint64_t size_ = 0;  // size of the arrays
  bool filled_ = false;
};

}  // namespace multihead
