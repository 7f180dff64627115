// QK-norm and RoPE of queries and keys, before the products.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "multihead/attention.h"
#include "multihead/attention_backward.h"
#include "rules/attention_params.h"
#include "rules/shared.h"
#include "rules/visibility.h"

namespace multihead::engine {

struct Transform {
  bool normalize = false;
  std::span<const float> gain = {};  // empty: gain 1
  float eps = 0.0F;

  Rope rope = {};                           // its own positions are not read
  std::span<const int32_t> positions = {};  // (N) or (B * N)
  // Used if `positions` is empty: positions of queries follow this rule. Null: positions are 0, 1,
  // 2, ..., as for keys.
  const rules::Visibility* query_positions = nullptr;
  // (B): only rows before lengths[b] are read; empty: all rows.
  std::span<const int32_t> lengths = {};
  // Varlen: first row and first key of each sequence, then the end of the last. Positions start at
  // 0 in each sequence. Empty if there is one sequence.
  std::span<const int32_t> sequences = {}, key_sequences = {};
  // Range of heads of x (B, H, N, d) to read and write, counted as batch * H + head.
  int64_t first_head = 0, end_head = std::numeric_limits<int64_t>::max();

  bool does_nothing() const { return !normalize && !rope.given(); }
};

// The transformations of a call of attention().
struct InputTransforms {
  ConstAnyTensor q, k;
  QkNorm norm;
  Rope rope;
  rules::Visibility positions;  // positions of queries, if rope has none
  std::span<const int32_t> lengths;
  std::span<const int32_t> cu_q = {}, cu_k = {};  // varlen, see Transform::sequences

  Transform query_transform() const;
  Transform key_transform() const;
};

// Reserves the memory that transform_inputs() needs.
Status reserve_for_transform(const InputTransforms& transforms, Context& context);
// Reserves the memory that transform_inputs() and transform_gradients() need.
Status reserve_for_transform(const InputTransforms& transforms, const AttentionGradients& gradients,
                             Context& context);

// Transforms q and k into the context's memory, and makes params point there.
Status transform_inputs(const InputTransforms& transforms, rules::AttentionParams& params,
                        Context& context);

// Turns the gradients of the transformed q and k into gradients of q and k, and computes the
// gradients of the gains.
Status transform_gradients(const InputTransforms& transforms, const AttentionGradients& gradients,
                           Context& context);

// Transforms only the key/value heads first_head .. end_head - 1, counted as batch * H_kv + head,
// and their query heads. Other heads are not read and get no memory.
Status transform_part(const InputTransforms& transforms, int64_t first_head, int64_t end_head,
                      rules::AttentionParams& params, Context& context);

// Transforms x (B, H, N, d) of any element type into y (f32, same shape).
MULTIHEAD_SHARED Status transform_rows(const ConstAnyTensor& x, const Transform& transform,
                                       const Tensor& y, Context& context);

// Backward of transform_rows(). `gradient` (f32, shape of x) holds dL/dy and is overwritten with
// dL/dx. Writes the gradient of the gain to d_gain unless that is empty.
MULTIHEAD_SHARED Status transform_back(const ConstAnyTensor& x, const Transform& transform,
                                       const Tensor& gradient, std::span<float> d_gain,
                                       Context& context);

}  // namespace multihead::engine
