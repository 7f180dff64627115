// The memory of TransformerActivations, and the call that filled it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/runtime/scratch.h"
#include "multihead/transformer.h"
#include "nn/transformer/transformer_block.h"
#include "rules/arena.h"

namespace multihead {

struct TransformerActivations::Internals {
  explicit Internals(bool recompute) : recompute_(recompute) {}

  // Those of `of`, which are made if it was moved from. Errors: kMemory.
  static Status make(TransformerActivations& of, Internals*& internals);

  // Memory for a call of the model with parameters of that version. Errors: kMemory.
  Status begin(const TransformerConfig& config, uint64_t version, int64_t batch, int64_t length);
  // All arrays are filled.
  void end() { filled_ = true; }
  bool belong_to(uint64_t version, int64_t batch, int64_t length) const {
    return filled_ && version == version_ && batch == batch_ && length == length_;
  }

  bool recomputes() const { return recompute_; }
  // (batch * length, embed_dim): the input of a layer; for one more than the last, its output.
  float* input(size_t layer) const { return inputs_ + static_cast<int64_t>(layer) * input_; }
  // The same after the final norm.
  float* normed() const { return normed_; }
  // Where recomputed, all layers have the same arrays.
  const nn::BlockArrays& of_layer(size_t layer) const { return arrays_[recompute_ ? 0 : layer]; }
  int64_t bytes() const;

 private:
  const bool recompute_;
  engine::Buffer memory_;
  std::unique_ptr<nn::BlockArrays[]> arrays_;
  std::unique_ptr<MultiHeadAttentionActivations[]> attention_;
  size_t sets_ = 0;  // of arrays
  float* inputs_ = nullptr;
  float* normed_ = nullptr;
  int64_t input_ = 0;     // elements of one layer's input
  uint64_t version_ = 0;  // of the parameters
  int64_t batch_ = 0, length_ = 0;
  bool filled_ = false;
};

}  // namespace multihead
