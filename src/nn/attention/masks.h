// Combines the masks and biases of a module's call into the one mask and one bias that attention()
// accepts.
#pragma once

#include <cstdint>

#include "engine/attention/validate.h"
#include "multihead/multi_head_attention.h"

namespace multihead::nn {

class CallMasks {
 public:
  // shape.keys counts the given keys. `appended` more keys follow, visible to all queries.
  // `options` must outlive this object. The key padding of an unbatched call has shape (N_k).
  CallMasks(const MultiHeadAttentionOptions& options, const engine::AttentionShape& shape,
            int64_t appended);

  // Checks shapes, except those of attention.mask and attention.bias, which earlier code has
  // checked.
  Status validate() const;

  // Number of elements that join() writes; 0 if the given bias or mask is passed on unchanged.
  uint64_t bias_elements() const;
  uint64_t mask_elements() const;

  // Sets mask, bias, causal, window and kv_lengths of `options`.
  void join(float* joined_bias, uint8_t* joined_mask, AttentionOptions& options,
            const Context& context) const;

 private:
  Dims bias_shape() const;
  Dims mask_shape() const;

  const MultiHeadAttentionOptions& options_;
  engine::AttentionShape shape_;
  int64_t appended_;
  ConstBoolTensor blocked_, padding_;  // rank 4, or not given
  ConstTensor key_bias_;
  bool joins_mask_, joins_bias_;
};

}  // namespace multihead::nn
