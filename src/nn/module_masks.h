// The masks and biases of a module call, joined into the one mask and the one bias that attention()
// takes.
#pragma once

#include <cstdint>

#include "engine/validate.h"
#include "multihead/multi_head_attention.h"

namespace multihead::nn {

class ModuleMasks {
 public:
  // Of a call over `shape` with shape.keys given keys, behind which `appended` more are visible to
  // all. `options` must outlive this. An unbatched call's key padding is (N_k).
  ModuleMasks(const MultiHeadAttentionOptions& options, const engine::AttentionShape& shape,
              int64_t appended);

  // The shapes of what is joined here. attention.mask and attention.bias are validated before.
  Status validate() const;

  // What join() will write, in bytes; 0 where everything can be passed on as it is.
  int64_t bias_bytes() const;
  int64_t mask_bytes() const;

  // Sets mask, bias, causal, window and kv_lengths of `options`.
  void join(void* bias_memory, void* mask_memory, AttentionOptions& options) const;

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
