// Packed sequences, as their forward and backward read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "engine/attention/validate.h"
#include "multihead/attention.h"
#include "multihead/attention_backward.h"
#include "rules/shared.h"

namespace multihead::engine {

// The checks of a packed call that are not those of attention(), without its outputs.
MULTIHEAD_SHARED Status validate_packed(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                        const ConstAnyTensor& v, std::span<const int32_t> cu_q,
                                        std::span<const int32_t> cu_k,
                                        const AttentionOptions& options,
                                        Values values = Values::kReadable);

// Those of its outputs.
MULTIHEAD_SHARED Status validate_packed_outputs(const ConstAnyTensor& q, const ConstAnyTensor& v,
                                                const AttentionOutputs& outputs);

// All checks of attention_varlen_backward() but that of the LSE; sets the shape of an empty
// sequence.
MULTIHEAD_SHARED Status validate_packed_backward(
    const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
    std::span<const int32_t> cu_q, std::span<const int32_t> cu_k, const AttentionOptions& options,
    const AttentionResults& results, const ConstAnyTensor& d_out,
    const AttentionGradients& gradients, AttentionShape& shape, Values values = Values::kReadable);

// Rows first .. last - 1 of a packed (T, H, d), as (1, H, rows, d).
template <class View>
View sequence_of(const View& packed, int64_t first, int64_t last) {
  View view = packed;
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>,
                                  const char, char>;
  const int64_t step = first * packed.strides[0] * bytes_of(packed.dtype);
  view.data = packed.data == nullptr ? nullptr : static_cast<Byte*>(packed.data) + step;
  view.shape = {1, packed.shape[1], last - first, packed.shape[2]};
  // The last stride is kept, so that attention() refuses one that is not 1.
  view.strides = {0, packed.strides[1], packed.strides[0], packed.strides[2]};
  return view;
}

// The same of a gradient, which is empty if it is not given.
MULTIHEAD_SHARED Tensor rows_of(const Tensor& packed, int64_t first, int64_t last);

// Rows first .. last - 1 of (H, T), as (1, H, rows).
template <class T>
TensorView<T> lse_of(const TensorView<T>& packed, int64_t first, int64_t last) {
  const bool has_rows = packed.shape.elements() != 0;  // else it may have no address
  return {has_rows ? packed.data + first * packed.strides[1] : nullptr,
          {1, packed.shape[0], last - first},
          {0, packed.strides[0], packed.strides[1]}};
}

// The sequence's number is added to the seed, else all sequences would drop the same weights.
inline AttentionOptions options_of_sequence(const AttentionOptions& options, size_t sequence) {
  AttentionOptions of_sequence = options;
  of_sequence.dropout.seed += static_cast<uint64_t>(sequence) << 32U;
  return of_sequence;
}

}  // namespace multihead::engine
