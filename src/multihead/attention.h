// Scaled dot-product attention: softmax(scale * Q K^T + bias, masked) V.
//
// Definition: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.1. Computed in
// tiles with a running maximum (Milakov and Gimelshein, arXiv:1805.02867; Dao,
// arXiv:2307.08691), so extra memory is O(N), never N_q x N_k.
//
// Letters: B batch, H_q query heads, H_kv key/value heads, N_q queries, N_k keys,
// d_k width of a query and key, d_v width of a value.
#pragma once

#include <cstdint>
#include <optional>

#include "multihead/context.h"
#include "multihead/status.h"
#include "multihead/tensor.h"

namespace multihead {

// Which keys a causal call hides. Query i stands at position p = i + offset among
// the keys and sees key j only where j <= p.
struct Causal {
  enum class Alignment : uint8_t {
    kNone,         // every key is visible
    kTopLeft,      // offset 0: PyTorch's is_causal
    kBottomRight,  // offset N_k - N_q: FlashAttention from 2.1 on, and KV caches
    kOffset,       // the offset given: ONNX Attention's past length
  };
  Alignment alignment = Alignment::kNone;
  int64_t offset = 0;  // read only with kOffset; may be negative

  static constexpr Causal none() { return {}; }
  static constexpr Causal top_left() { return {Alignment::kTopLeft, 0}; }
  static constexpr Causal bottom_right() { return {Alignment::kBottomRight, 0}; }
  static constexpr Causal at_offset(int64_t offset) { return {Alignment::kOffset, offset}; }
};

// Every mask that is given applies; a key is visible only where all of them allow it.
// A query that sees no key has output 0, weights 0 and LSE -inf. Hidden keys and
// values never contribute, not even where they hold NaN or infinities.
struct AttentionOptions {
  // Factor on Q K^T; 1/sqrt(d_k) when not given. Any finite value: 0 makes all
  // visible keys weigh the same, a negative one turns the order round.
  std::optional<float> scale = {};

  Causal causal = {};

  // True (non-zero) = may attend, as in torch.nn.functional.scaled_dot_product_attention
  // and ONNX. Shape (N_q, N_k) or (B, H_q, N_q, N_k), where any extent may be 1 and is
  // then shared along that axis. Any strides. Rank 3 is refused: it does not say
  // whether its first axis is B or H_q.
  ConstBoolTensor mask = {};

  // Added to the scaled scores; the same shapes as `mask`. -inf hides a key; a large
  // finite negative value does not.
  ConstTensor bias = {};
};

struct AttentionOutputs {
  // (B, H_q, N_q, d_v), required.
  Tensor out = {};
  // Natural log of the sum of exp(score) over the visible keys, (B, H_q, N_q). Optional.
  Tensor lse = {};
  // The softmax itself, (B, H_q, N_q, N_k). Optional; asking costs N_q x N_k writes.
  Tensor weights = {};
};

// q   (B, H_q,  N_q, d_k)   last axis contiguous, other strides free
// k   (B, H_kv, N_k, d_k)   H_q is a multiple of H_kv; query head h uses key/value
// v   (B, H_kv, N_k, d_v)   head floor(h / (H_q / H_kv)) (arXiv:2305.13245)
//
// Packed (B, N, H, d) data needs no copy: give its strides. Extents of 0 are legal; with
// N_k = 0 no query sees anything. The outputs may not overlap each other or the inputs.
//
// Errors: kShape (rank, shapes that do not fit, a last axis that is not contiguous,
// missing data), kOption (scale not finite), kMemory. Nothing is written then.
[[nodiscard]] Status attention(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                               const AttentionOptions& options, const AttentionOutputs& outputs,
                               Context& context);

}  // namespace multihead
