// The memory of TransformerBlockActivations, and the call that filled it.
#pragma once

#include <cstdint>

#include "engine/runtime/scratch.h"
#include "multihead/transformer.h"
#include "nn/transformer/transformer_block.h"

namespace multihead {

struct TransformerBlockActivations::Internals {
  // Those of `of`, which are made if there are none. Errors: kMemory.
  static Status make(TransformerBlockActivations& of, Internals*& internals);

  // Memory for a call of the block with parameters of that version. Errors: kMemory.
  Status begin(const TransformerBlockConfig& config, uint64_t of_parameters, const Dims& of_x);
  bool belong_to(uint64_t of_parameters, const Dims& of_x) const {
    return filled && of_parameters == version && of_x == x;
  }

  engine::Buffer memory;
  nn::BlockArrays arrays;
  MultiHeadAttentionActivations attention;
  uint64_t version = 0;  // of the parameters
  Dims x;                // its shape
  bool filled = false;
};

}  // namespace multihead
