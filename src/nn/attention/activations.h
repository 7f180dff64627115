// The memory of MultiHeadAttentionActivations, and the call that filled it.
#pragma once

#include <cstdint>

#include "engine/attention/validate.h"
#include "engine/runtime/scratch.h"
#include "multihead/multi_head_attention.h"
#include "nn/attention/module_call.h"

namespace multihead {

struct MultiHeadAttentionActivations::Internals {
  // Those of `of`, which are made if there are none. Errors: kMemory.
  static Status make(MultiHeadAttentionActivations& of);

  // Gives `call`, with weights of that version, its arrays. Errors: kMemory.
  Status begin(uint64_t version, const engine::AttentionShape& shape, nn::ModuleCall& call);
  // All arrays are filled.
  void end() { filled_ = true; }
  // Whether a call with these weights and of that shape, laid out as `call`, has filled the memory.
  bool belongs_to(uint64_t version, const engine::AttentionShape& shape,
                  nn::ModuleCall& call) const;
  // Gives `call`, which is laid out as the one that filled the memory, the arrays.
  void lay_out(nn::ModuleCall& call) const;
  int64_t bytes() const { return static_cast<int64_t>(memory_.bytes()); }

 private:
  engine::Buffer memory_;
  uint64_t version_ = 0;  // of the weights
  engine::AttentionShape shape_ = {};
  uint64_t size_ = 0;  // of the arrays
  bool filled_ = false;
};

}  // namespace multihead
