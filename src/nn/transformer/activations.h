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

  // Returns the internals of `of`; allocates new ones if it was moved from. Errors: kMemory.
  static Status make(TransformerActivations& of, Internals*& internals);

  // Allocates memory for a call of the model with parameters of this version. Errors: kMemory.
  Status begin(const TransformerConfig& config, uint64_t version, int64_t batch, int64_t length);
  // Marks all arrays as filled.
  void end() { filled_ = true; }
  bool belong_to(uint64_t version, int64_t batch, int64_t length) const {
    return filled_ && version == version_ && batch == batch_ && length == length_;
  }

  bool recomputes() const { return recompute_; }
  // (batch * length, embed_dim): input of a layer. Index num_layers: output of the last layer.
  float* input(size_t layer) const { return inputs_ + static_cast<int64_t>(layer) * input_; }
  // (batch * length, embed_dim): output of the final norm.
  float* normed() const { return normed_; }
  // Arrays of a layer. With `recompute`, all layers share one set of arrays.
  const nn::BlockArrays& of_layer(size_t layer) const { return arrays_[recompute_ ? 0 : layer]; }
  int64_t bytes() const;

 private:
  const bool recompute_;
  engine::Buffer memory_;
  std::unique_ptr<nn::BlockArrays[]> arrays_;
  std::unique_ptr<MultiHeadAttentionActivations[]> attention_;
  size_t sets_ = 0;  // number of sets of arrays
  float* inputs_ = nullptr;
  float* normed_ = nullptr;
  int64_t input_ = 0;     // elements of one layer's input
  uint64_t version_ = 0;  // version of the parameters
  int64_t batch_ = 0, length_ = 0;
  bool filled_ = false;
};

}  // namespace multihead
