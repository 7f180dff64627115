// QK-norm and RoPE: the transformations of queries and keys before the products.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "multihead/attention.h"
#include "rules/attention_params.h"
#include "rules/shared.h"
#include "rules/visibility.h"

namespace multihead::engine {

struct Transform {
  bool normalise = false;
  std::span<const float> gain = {};  // empty for 1
  float epsilon = 0.0F;

  Rope rope = {};                           // its positions are not read
  std::span<const int32_t> positions = {};  // (N) or (B * N)
  // If positions are empty, those of queries follow this rule; null counts from 0, as keys do.
  const rules::Visibility* query_positions = nullptr;
  std::span<const int32_t> lengths = {};  // (B): rows beyond are not read; empty for all
  // Packed sequences: where each begins among the rows and among the keys, and the end of the last.
  // Positions start at 0 in each. Empty for one sequence.
  std::span<const int32_t> sequences = {}, key_sequences = {};
  // Only these heads of x (B, H, N, d) are read and written, counted as batch * H + head.
  int64_t first_head = 0, end_head = std::numeric_limits<int64_t>::max();

  bool does_nothing() const { return !normalise && rope.style == Rope::Style::kNone; }
};

// The transformations of a call of attention().
struct InputTransforms {
  ConstAnyTensor q, k;
  QkNorm norm;
  Rope rope;
  rules::Visibility positions;  // of queries, where rope gives none
  std::span<const int32_t> lengths;

  Transform of_queries() const;
  Transform of_keys() const;
};

// The memory that transform_inputs() needs.
Status reserve_for_transform(const InputTransforms& transforms, Context& context);

// Transforms q and k into the context's memory, and makes params point there.
Status transform_inputs(const InputTransforms& transforms, rules::AttentionParams& params,
                        Context& context);

// The same for the key/value heads first_head .. end_head - 1, counted as batch * H_kv + head, and
// their query heads. Only they are read, and only they get memory.
Status transform_part(const InputTransforms& transforms, int64_t first_head, int64_t end_head,
                      rules::AttentionParams& params, Context& context);

// The memory that transform_rows() needs for vectors of `width`.
Status reserve_for_transform(const Rope& rope, int64_t width, Context& context);

// Transforms x (B, H, N, d) of any type into y, f32 of the same shape.
MULTIHEAD_SHARED Status transform_rows(const ConstAnyTensor& x, const Transform& transform,
                                       const Tensor& y, Context& context);

// The memory that transform_back() of x needs beyond that of transform_rows().
Status reserve_for_transform_back(const ConstAnyTensor& x, std::span<const float> d_gain,
                                  Context& context);

// The backward of transform_rows(). `gradient`, f32 and of the shape of x, is the gradient with
// respect to y and becomes the one with respect to x. The gain's gradient is written to d_gain if
// that is not empty.
MULTIHEAD_SHARED Status transform_back(const ConstAnyTensor& x, const Transform& transform,
                                       const Tensor& gradient, std::span<float> d_gain,
                                       Context& context);

}  // namespace multihead::engine
