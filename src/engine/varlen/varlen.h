// Varlen calls (packed sequences), forward and backward: their checks and the views of a sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "engine/attention/validate.h"
#include "rules/shared.h"

namespace multihead::engine {

// Checks the inputs and options of a varlen call, except the checks that attention() makes itself.
MULTIHEAD_SHARED Status validate_varlen(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                        const ConstAnyTensor& v, std::span<const int32_t> cu_q,
                                        std::span<const int32_t> cu_k,
                                        const AttentionOptions& options,
                                        Values values = Values::kReadable);

// Checks the outputs of a varlen call.
MULTIHEAD_SHARED Status validate_varlen_outputs(const ConstAnyTensor& q, const ConstAnyTensor& v,
                                                const AttentionOutputs& outputs);

// Checks the results, d_out and the gradients of q, k and v of attention_varlen_backward().
MULTIHEAD_SHARED Status validate_varlen_tensors(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                                const ConstAnyTensor& v,
                                                const AttentionResults& results,
                                                const ConstAnyTensor& d_out,
                                                const AttentionGradients& gradients);

// Makes all checks of attention_varlen_backward() except the check of the LSE. Sets `shape` to the
// shape of an empty sequence.
MULTIHEAD_SHARED Status validate_varlen_backward(
    const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
    std::span<const int32_t> cu_q, std::span<const int32_t> cu_k, const AttentionOptions& options,
    const AttentionResults& results, const ConstAnyTensor& d_out,
    const AttentionGradients& gradients, AttentionShape& shape, Values values = Values::kReadable);

// Returns rows first .. last - 1 of a packed tensor (T, H, d), as (1, H, rows, d).
template <class View>
View sequence_of(const View& packed, int64_t first, int64_t last) {
  View view = packed;
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>,
                                  const char, char>;
  const int64_t step = first * packed.strides[0] * bytes_of(packed.dtype);
  view.data = packed.data == nullptr ? nullptr : static_cast<Byte*>(packed.data) + step;
  view.shape = {1, packed.shape[1], last - first, packed.shape[2]};
  // Keeps the last stride, so that attention() refuses strides other than 1.
  view.strides = {0, packed.strides[1], packed.strides[0], packed.strides[2]};
  return view;
}

// Returns rows first .. last - 1 of a gradient, as sequence_of(); an absent gradient stays absent.
MULTIHEAD_SHARED Tensor rows_of(const Tensor& packed, int64_t first, int64_t last);

// Returns rows first .. last - 1 of an LSE (H, T), as (1, H, rows).
template <class T>
TensorView<T> lse_of(const TensorView<T>& packed, int64_t first, int64_t last) {
  const bool has_rows = packed.shape.elements() != 0;  // else the address may be null
  return {has_rows ? packed.data + first * packed.strides[1] : nullptr,
          {1, packed.shape[0], last - first},
          {0, packed.strides[0], packed.strides[1]}};
}

// The seed of dropout in a sequence: with one seed all sequences would drop the same weights.
constexpr uint64_t seed_of_sequence(uint64_t seed, size_t sequence) {
  return seed + (static_cast<uint64_t>(sequence) << 32U);
}

}  // namespace multihead::engine
