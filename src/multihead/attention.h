/// \file
/// Scaled dot-product attention: softmax(scale * Q K^T + bias, masked) V.
///
/// Definition: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.1. Computed in tiles with a
/// running maximum (Milakov and Gimelshein, arXiv:1805.02867; Dao, arXiv:2307.08691), so extra
/// memory is O(N), never N_q x N_k.
///
/// Letters: B batch, H_q query heads, H_kv key/value heads, N_q queries, N_k keys, d_k head dim of
/// queries and keys, d_v head dim of values. For batch entry b, query head h, query i and key j, in
/// this order:
///
///   1. q and k are normalized (qk_norm), then rotated (rope), if these are given
///   2. s = scale * (q . k)
///   3. s = softcap * tanh(s / softcap)
///   4. s = s + bias - alibi_slope * |i + N_k - N_q - j|
///   5. masks: a key is visible only if each of causal, window, kv_lengths and mask that is given
///      allows it; a bias of -inf also hides it
///   6. w = softmax over the visible keys, with exp(sink) added to the denominator
///   7. dropout on w
///   8. o = sum over j of w * v
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "multihead/context.h"
#include "multihead/export.h"
#include "multihead/precision.h"
#include "multihead/rope.h"
#include "multihead/status.h"
#include "multihead/tensor.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

/// The position p of query i among the keys: p = i + offset.
enum class Alignment : uint8_t {
  kNone,                 ///< not stated
  kTopLeft,              ///< offset 0: PyTorch's is_causal
  kBottomRight,          ///< offset N_k - N_q: FlashAttention from 2.1 on
  kBottomRightOfLength,  ///< offset kv_lengths[b] - N_q: FlashAttention with a KV cache
  kOffset,               ///< the offset given: ONNX Attention's past length
};

/// With an alignment, query i sees key j only if j <= p.
struct Causal {
  Alignment alignment = Alignment::kNone;  ///< kNone: every key is visible
  int64_t offset = 0;                      ///< read only with kOffset; may be negative

  /// Every key is visible.
  static constexpr Causal none() { return {}; }
  /// True if the call is causal.
  constexpr bool given() const { return alignment != Alignment::kNone; }

  /// See Alignment::kTopLeft.
  static constexpr Causal top_left() { return {Alignment::kTopLeft, 0}; }
  /// See Alignment::kBottomRight.
  static constexpr Causal bottom_right() { return {Alignment::kBottomRight, 0}; }
  /// See Alignment::kBottomRightOfLength. Needs kv_lengths.
  static constexpr Causal bottom_right_of_length() { return {Alignment::kBottomRightOfLength, 0}; }
  /// See Alignment::kOffset.
  static constexpr Causal at_offset(int64_t offset) { return {Alignment::kOffset, offset}; }
};

/// Sliding window: query i sees key j only if p - left <= j <= p + right; -1 leaves that side open.
/// As in FlashAttention, `left` does not count the token itself.
struct Window {
  int64_t left = -1;   ///< keys before p that are visible; -1: all
  int64_t right = -1;  ///< keys after p that are visible; -1: all
  /// Alignment of a call that is not causal; kNone means kTopLeft. A causal call has an alignment:
  /// a different one here is an error, and so is an alignment without a window.
  Alignment alignment = Alignment::kNone;
  int64_t offset = 0;  ///< read only with kOffset

  /// True if at least one side is closed.
  constexpr bool given() const { return left >= 0 || right >= 0; }
};

/// Sets each weight to 0 with this probability p and multiplies the remaining weights by 1 / (1 -
/// p), as in torch.nn.functional.dropout. The mask depends only on (seed, b, h, i, j), so it is the
/// same on every machine, build and number of threads. With the counter (floor(j / 4), i, h, b) and
/// the low and high 32 bits of the seed as the key, the weight is kept if word j mod 4 of Philox
/// 4x32-10 is at least round(p * 2^32) (Salmon et al., SC 2011, doi:10.1145/2063384.2063405).
struct Dropout {
  float probability = 0.0F;  ///< 0 <= p < 1
  uint64_t seed = 0;         ///< seed of the mask

  /// True if weights are dropped.
  constexpr bool given() const { return probability != 0.0F; }
};

/// Root-mean-square normalization of each query and key vector, before RoPE (QK-norm,
/// arXiv:2302.05442 with RMS as in Qwen3 and Gemma 3): x / sqrt(mean(x^2) + eps) * gain.
struct QkNorm {
  std::span<const float> q_gain = {};  ///< (d_k); empty for a gain of 1
  std::span<const float> k_gain = {};  ///< (d_k); empty for a gain of 1
  float eps = 1e-6F;                   ///< finite, 0 or more
  bool enabled = false;                ///< if false, queries and keys are not normalized

  /// True if queries and keys are normalized.
  constexpr bool given() const { return enabled; }
};

/// Options of attention(), applied in the order at the head of this file. The defaults change
/// nothing: an option is off as long as it is default-constructed or empty, and given() of the
/// option says whether it is on.
struct AttentionOptions {
  /// Factor on Q K^T; default 1/sqrt(d_k). Any finite value: with 0 all visible keys have the same
  /// weight; a negative one reverses the order.
  std::optional<float> scale = {};

  Causal causal = {};  ///< default: every key is visible
  Window window = {};  ///< default: none

  /// True (non-zero) = may attend, as in torch.nn.functional.scaled_dot_product_attention and ONNX.
  /// Shape (N_q, N_k) or (B, H_q, N_q, N_k), where any extent may be 1 and is then shared along
  /// that axis. Any strides. Rank 3 is refused, because its first axis could be B or H_q. Key
  /// padding is (B, 1, 1, N_k).
  ConstBoolTensor mask = {};

  /// Added to the scores. Shapes as for `mask`. -inf hides a key; a large finite negative value
  /// does not.
  ConstTensor bias = {};

  /// (B): entry b has keys 0 to kv_lengths[b] - 1; the rest of K and V is not read.
  std::span<const int32_t> kv_lengths = {};

  /// (H_q): ALiBi (arXiv:2108.12409); see alibi_slopes(). Distances count from the last query and
  /// the last key, as in FlashAttention, whatever the causal alignment.
  std::span<const float> alibi_slopes = {};

  /// Bound on the scores, as in Gemma 2 and FlashAttention (not ONNX 1.20, which masks before it
  /// caps); 0 is none.
  float softcap = 0.0F;

  /// (H_q): attention sinks, as in gpt-oss. A sink is one logit per head without a value: its
  /// exponential is added to the softmax's denominator. A query that sees no key then has LSE = its
  /// head's sink, and output 0.
  std::span<const float> sinks = {};

  QkNorm qk_norm = {};   ///< default: none
  Rope rope = {};        ///< default: none
  Dropout dropout = {};  ///< dropout of the weights; default: none

  /// kBf16 multiplies bf16 numbers if this CPU has instructions for it. Sums stay f32, but each
  /// weight is rounded to bf16 before it is multiplied by V, as in PyTorch's kernels: an error of
  /// up to 2^-8 of the weighted sum of |v|. With AMX, for q, k and v of f32 or bf16: f32 is rounded
  /// to bf16 first. With AVX-512 BF16, on CPUs where it is faster than f32: for bf16 with an even
  /// d_k, without bias, ALiBi, softcap and a left window. f32 is used on other CPUs and in
  /// WebAssembly, for few query rows (decoding), and for calls that return weights or captures.
  /// Context::last_kernel() names the type that was used. attention_backward() multiplies f32. In
  /// modules, blocks and transformers, all products with matrices of parameters have this precision
  /// too, see linear(). The products of their backward() also have it: d_y, the matrix and x are
  /// rounded to bf16 before they are multiplied, so each gradient has an error of up to 2^-7 of the
  /// sum of the magnitudes of its products. Gradients of biases and gains are summed in f32.
  Precision precision = Precision::kF32;
};

/// The scores that a ScoreCapture copies. Steps are numbered as at the head of this file.
enum class ScoreStage : uint8_t {
  kRaw,      ///< after step 2, of hidden keys too; -inf beyond kv_lengths, where keys are not read
  kCapped,   ///< after step 3, of hidden keys too; -inf beyond kv_lengths
  kMasked,   ///< after steps 4 and 5: -inf for hidden keys
  kWeights,  ///< after step 6, before dropout: 0 for hidden keys
};

/// Scores of chosen heads and rows, copied out during the call.
struct ScoreCapture {
  ScoreStage stage = ScoreStage::kWeights;  ///< which scores
  Tensor out = {};                          ///< (B, heads, rows, N_k)
  std::span<const int32_t> heads = {};      ///< query heads, each at most once; empty for all
  int64_t first_row = 0;                    ///< queries first_row to first_row + rows - 1,
                                            ///< where rows is the extent of `out`
};

/// Outputs of attention(). All are optional except `out`.
struct AttentionOutputs {
  /// (B, H_q, N_q, d_v), f32, f16 or bf16.
  AnyTensor out = {};
  /// Natural log of the sum of exp(score) over the visible keys and the sink, (B, H_q, N_q).
  Tensor lse = {};
  /// The softmax itself, before dropout, (B, H_q, N_q, N_k). Costs N_q x N_k writes.
  Tensor weights = {};
  /// Any number of captures.
  std::span<const ScoreCapture> captures = {};
  /// 1 where dropout kept a weight, (B, H_q, N_q, N_k), including hidden positions; all ones if p =
  /// 0.
  TensorView<uint8_t> dropout_mask = {};
};

/// Scaled dot-product attention, as the head of this file defines it.
///
/// - q (B, H_q, N_q, d_k), last axis contiguous, other strides free
/// - k (B, H_kv, N_k, d_k), likewise; H_q is a multiple of H_kv, and query head h uses key/value
///   head floor(h / (H_q / H_kv)) (arXiv:2305.13245)
/// - v (B, H_kv, N_k, d_v), likewise
///
/// f32, f16 or bf16, k and v of the same type; products and sums are in f32. Packed (B, N, H, d)
/// data needs no copy: give its strides. Extents of 0 are legal; with N_k = 0 no query sees a key.
/// A query that sees no key has output 0, weights 0 and LSE -inf. Hidden keys and values never
/// contribute, even if they hold NaN or infinities, which may only change how a result is rounded.
/// Each output has a contiguous last axis and otherwise free strides, but its elements may not
/// overlap in memory: the stride of an axis is at least the span of the axes with smaller strides.
/// The outputs may not share memory with each other or with the inputs; their rows may be
/// interleaved with the rows of another tensor. Extents are below 2^31, and their product, ignoring
/// extents of 0, is below 2^61.
///
/// Precision of f32: within 2e-6 of the result in double, for q, k and v in [-1, 1] and the default
/// scale, without ALiBi and bias. Larger scores lose more: the rounding error of a score s, with
/// its ALiBi and bias, is s * 6e-8. Weights and values are summed in float over 256 to 1024 keys at
/// a time, and these partial sums are then added. The worst case is equal weights of equal values,
/// where every addition rounds in the same direction: the relative error is up to
/// (256 + N_k / 256) * 3e-8. Measured: 2.5e-6 up to 8192 keys, 8e-6 at 131072; with up to 12 query
/// rows for each key/value head (decoding) 1e-6 at both, 3e-6 in WebAssembly.
///
/// Errors: kShape (rank, shapes that do not fit, a last axis that is not contiguous, missing data,
/// memory that an output shares), kOption (a value outside its definition, or options that
/// contradict each other), kMemory. On an error, nothing is written.
[[nodiscard]] Status attention(const ConstAnyTensor& q, const ConstAnyTensor& k,
                               const ConstAnyTensor& v, const AttentionOptions& options,
                               const AttentionOutputs& outputs, Context& context);

/// Computes one capture only: no values, no output, and only the requested rows. Call it repeatedly
/// for some rows at a time to read an N_q x N_k matrix that is never stored. Errors: as
/// attention().
[[nodiscard]] Status attention_scores(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                      const AttentionOptions& options, const ScoreCapture& capture,
                                      Context& context);

/// Packed sequences of different lengths: sequence s is rows cu_q[s] to cu_q[s + 1] - 1 of q and
/// rows cu_k[s] to cu_k[s + 1] - 1 of k and v, and attends only to its own keys.
///
/// q (T_q, H_q, d_k), k (T_k, H_kv, d_k), v (T_k, H_kv, d_v), out (T_q, H_q, d_v); lse, if given,
/// is (H_q, T_q). cu_q and cu_k start at 0, do not fall, and end at T_q and T_k. `options` apply to
/// each sequence with its own lengths; mask, bias, kv_lengths, positions of rope, captures, weights
/// and dropout_mask, which would need a batch axis, are kOption errors. Sequence s has the dropout
/// mask of batch entry 0 with seed + s * 2^32. Other errors: as attention().
[[nodiscard]] Status attention_varlen(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                      const ConstAnyTensor& v, std::span<const int32_t> cu_q,
                                      std::span<const int32_t> cu_k,
                                      const AttentionOptions& options,
                                      const AttentionOutputs& outputs, Context& context);

/// Merges two results over disjoint sets of keys into `a`: lse = log(e^lse_a + e^lse_b), out =
/// out_a e^(lse_a - lse) + out_b e^(lse_b - lse). Exact up to rounding, for any number of parts in
/// any order. out_a, out_b (B, H_q, N_q, d_v); lse_a, lse_b (B, H_q, N_q). Give sinks in only one
/// of the parts, or they are counted twice. The parts may not share memory. Many rows are merged by
/// the threads of `context`; without one by the calling thread. Errors: kShape. On an error,
/// nothing is written.
[[nodiscard]] Status merge_attention(const Tensor& out_a, const Tensor& lse_a,
                                     const ConstTensor& out_b, const ConstTensor& lse_b,
                                     Context* context = nullptr);

/// Slopes of `slopes.size()` heads (arXiv:2108.12409, section 3): with n the largest power of two
/// <= H, 2^(-8 (h + 1) / n) for h < n and 2^(-4 (2 (h - n) + 1) / n) for h >= n.
void alibi_slopes(std::span<float> slopes);

}  // namespace multihead
MULTIHEAD_PUBLIC_END
