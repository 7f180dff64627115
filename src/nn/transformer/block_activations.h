// The memory of TransformerBlockActivations, and the call that filled it.
#pragma once

#include <cstdint>

#include "engine/runtime/scratch.h"
#include "multihead/transformer.h"
#include "nn/transformer/transformer_block.h"

namespace multihead {

struct TransformerBlockActivations::Internals {
  // Allocates the internals of `of` if it has none. Errors: kMemory.
  static Status make(TransformerBlockActivations& of, Internals*& internals);

  // Allocates memory for a call of the block with parameters of this version. Errors: kMemory.
  Status begin(const TransformerBlockConfig& config, uint64_t of_parameters, const Dims& of_x);
  bool belong_to(uint64_t of_parameters, const Dims& of_x) const {
    return filled && of_parameters == version && of_x == x;
  }

  engine::Buffer memory;
  nn::BlockArrays arrays;
  MultiHeadAttentionActivations attention;
  uint64_t version = 0;  // version of the parameters
  Dims x;                // shape of x
  bool filled = false;
};

}  // namespace multihead
