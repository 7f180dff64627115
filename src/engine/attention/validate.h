// Checks a call's tensors and options. Plans and kernels rely on these checks. Further checks:
// overlap.h refuses outputs that share memory, backward.h an LSE of another call; caches, modules
// and distributed calls check their own arguments.
#pragma once

#include <cstdint>
#include <span>

#include "engine/error/error.h"
#include "multihead/attention.h"
#include "multihead/attention_backward.h"
#include "rules/shared.h"

namespace multihead::engine {

// The tensors and options of a call, as checks and plans read them. Calls refer to the caller's
// objects, which must outlive them.
struct ForwardCall {
  const ConstAnyTensor &q, &k, &v;
  const AttentionOptions& options;
  const AttentionOutputs& outputs;
};

struct BackwardCall {
  const ConstAnyTensor &q, &k, &v;
  const AttentionOptions& options;
  const AttentionResults& results;
  const ConstAnyTensor& d_out;
  const AttentionGradients& gradients;
};

struct AttentionShape {
  int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, head_dim = 0, value_dim = 0;
  Dims scores() const { return {batch, heads, queries, keys}; }
  bool operator==(const AttentionShape&) const = default;
};

// kReadable: the arrays that options point to (lengths, slopes, sinks, cu_q) are checked number by
// number. kOnDevice: they are in a device's memory, so only their count is checked.
enum class Values : uint8_t { kReadable, kOnDevice };

// Checks q, k and v, and sets the shape.
MULTIHEAD_SHARED Status validate_inputs(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                        const ConstAnyTensor& v, AttentionShape& shape);

// Makes all checks of attention() and attention_backward() but overlap.h's and check_lse(),
// and sets the shape.
MULTIHEAD_SHARED Status validate_call(const ForwardCall& call, AttentionShape& shape,
                                      Values values = Values::kReadable);
MULTIHEAD_SHARED Status validate_call(const BackwardCall& call, AttentionShape& shape,
                                      Values values = Values::kReadable);

// Checks every option by itself, against the shape and against the other options.
MULTIHEAD_SHARED Status validate_options(const AttentionOptions& options,
                                         const AttentionShape& shape,
                                         Values values = Values::kReadable);

MULTIHEAD_SHARED Status validate_outputs(const AttentionOutputs& outputs,
                                         const AttentionShape& shape);

// Checks the results, d_out and gradients of attention_backward(), but not q, k, v and options.
MULTIHEAD_SHARED Status validate_backward(const BackwardCall& call, const AttentionShape& shape);

MULTIHEAD_SHARED Status validate_capture(const ScoreCapture& capture, const AttentionShape& shape);

// Requires no lengths, or one per batch entry, each within N_k.
Status validate_lengths(std::span<const int32_t> lengths, const AttentionShape& shape,
                        Values values = Values::kReadable);

// Checks style, base and rotary_dim for vectors of `width`.
Status validate_rope(const Rope& rope, int64_t width);

// Requires N or B * N positions, or none.
MULTIHEAD_SHARED Status validate_positions(Name argument, std::span<const int32_t> positions,
                                           int64_t batch, int64_t tokens);

// Makes all checks of rotate().
MULTIHEAD_SHARED Status validate_rotate(const ConstTensor& x, std::span<const int32_t> positions,
                                        const Rope& rope, const Tensor& y);

// Makes all checks of merge_attention().
MULTIHEAD_SHARED Status validate_merge(const Tensor& out_a, const Tensor& lse_a,
                                       const ConstTensor& out_b, const ConstTensor& lse_b);

// Checks that cu starts at 0, never decreases, and ends at `total`.
Status validate_cumulative(Name argument, std::span<const int32_t> cu, int64_t total);

Status validate_linear(const ConstTensor& x, const ConstAnyTensor& weight, const ConstTensor& bias,
                       const Tensor& y);

// Requires exactly this shape, rows without gaps, a known element type, and non-null data unless
// empty. If the tensor is writable, its elements must not share memory.
template <class TensorLike>
MULTIHEAD_SHARED Status validate_exact(Name argument, Axes axes, const TensorLike& tensor,
                                       const Dims& shape);

// Requires a rank; extents and strides are free.
template <class TensorLike>
MULTIHEAD_SHARED Status validate_rank(Name argument, Axes axes, const TensorLike& tensor, int rank);

// The address of all data that a prepared operation gets only when it runs, because the checks
// refuse a null address of a tensor with elements. plan_forward() and plan_backward() decide
// nothing by addresses.
inline char data_to_come;

template <class TensorLike>
TensorLike with_address(TensorLike tensor) {
  if (tensor.given()) tensor.data = reinterpret_cast<decltype(tensor.data)>(&data_to_come);
  return tensor;
}

template <class TensorLike>
bool has_elements(const TensorLike& tensor) {
  return tensor.given() && tensor.shape.elements() != 0;
}

inline Status no_address(Name argument) { return shape_error(argument, Message::kAddress); }

}  // namespace multihead::engine
