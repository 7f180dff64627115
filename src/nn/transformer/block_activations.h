// The memory of TransformerBlockActivations, and the call that filled it.
#pragma once

#include "engine/scratch.h"
#include "multihead/transformer.h"
#include "nn/transformer/transformer_block.h"

namespace multihead {

struct TransformerBlockActivations::Internals {
  // Those of `of`, which are made if there are none. Errors: kMemory.
  static Status make(TransformerBlockActivations& of, Internals*& internals);

  // Memory for a call of the block with these parameters. Errors: kMemory.
  Status begin(const TransformerBlockConfig& config, const void* of_parameters, const Dims& of_x);
  bool belong_to(const void* of_parameters, const Dims& of_x) const {
    return filled && of_parameters == parameters && of_x == x;
  }

  engine::Buffer memory;
  nn::BlockArrays arrays;
  MultiHeadAttentionActivations attention;
  const void* parameters = nullptr;
  Dims x;  // its shape
  bool filled = false;
};

}  // namespace multihead
