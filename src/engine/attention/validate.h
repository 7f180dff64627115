// The checks of a call's tensors and options. Plans and kernels rely on them and check nothing.
// Beside them, an output that shares memory is refused by overlap.h, an LSE of another call by
// backward.h, and each of caches, modules and distributed calls refuses what it alone has.
#pragma once

#include <cstdint>
#include <span>

#include "engine/error/error.h"
#include "multihead/attention.h"
#include "multihead/attention_backward.h"
#include "rules/shared.h"

namespace multihead::engine {

struct AttentionShape {
  int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, head_dim = 0, value_dim = 0;
  Dims scores() const { return {batch, heads, queries, keys}; }
  bool operator==(const AttentionShape&) const = default;
};

// Whether the numbers that options point to (lengths, slopes, sinks, cu_q) can be read. Those in a
// device's memory cannot: only their count is checked.
enum class Values : uint8_t { kReadable, kOnDevice };

// q, k, v and the shape that they have.
MULTIHEAD_SHARED Status validate_inputs(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                        const ConstAnyTensor& v, AttentionShape& shape);

// All checks of attention(); sets the shape.
MULTIHEAD_SHARED Status validate_call(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                      const ConstAnyTensor& v, const AttentionOptions& options,
                                      const AttentionOutputs& outputs, AttentionShape& shape,
                                      Values values = Values::kReadable);

// Checks every option by itself, against the shape and against the other options.
MULTIHEAD_SHARED Status validate_options(const AttentionOptions& options,
                                         const AttentionShape& shape,
                                         Values values = Values::kReadable);

MULTIHEAD_SHARED Status validate_outputs(const AttentionOutputs& outputs,
                                         const AttentionShape& shape);

// All of attention_backward()'s checks beyond those of inputs and options.
MULTIHEAD_SHARED Status validate_backward(const AttentionOptions& options,
                                          const AttentionResults& results,
                                          const ConstAnyTensor& d_out,
                                          const AttentionGradients& gradients,
                                          const AttentionShape& shape);

Status validate_capture(const ScoreCapture& capture, const AttentionShape& shape);

// One length for each batch entry, within N_k; or none.
Status validate_lengths(std::span<const int32_t> lengths, const AttentionShape& shape,
                        Values values = Values::kReadable);

// Style, base and width of a rotation of vectors of `width`.
Status validate_rope(const Rope& rope, int64_t width);

// positions has N, or B * N, or (optionally) no elements.
MULTIHEAD_SHARED Status validate_positions(Name argument, std::span<const int32_t> positions,
                                           int64_t batch, int64_t tokens);

// All checks of rotate().
MULTIHEAD_SHARED Status validate_rotate(const ConstTensor& x, std::span<const int32_t> positions,
                                        const Rope& rope, const Tensor& y);

// All checks of merge_attention().
MULTIHEAD_SHARED Status validate_merge(const Tensor& out_a, const Tensor& lse_a,
                                       const ConstTensor& out_b, const ConstTensor& lse_b);

// Checks that cu starts at 0, never decreases, and ends at `total`.
Status validate_cumulative(Name argument, std::span<const int32_t> cu, int64_t total);

Status validate_linear(const ConstTensor& x, const ConstAnyTensor& weight, const ConstTensor& bias,
                       const Tensor& y);

// Checks that a tensor has exactly this shape: rank, extents, strides, element type and data. The
// elements of a writable tensor must not share memory.
template <class TensorLike>
MULTIHEAD_SHARED Status validate_exact(Name argument, Axes axes, const TensorLike& tensor,
                                       const Dims& shape);

// A tensor of this rank, whose extents and strides are free.
template <class TensorLike>
Status validate_rank(Name argument, Axes axes, const TensorLike& tensor, int rank);

}  // namespace multihead::engine
