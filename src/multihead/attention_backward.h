/// \file
/// Gradients of attention().
///
/// With S the scores, P their softmax and dO the gradient of the output (Dao, arXiv:2307.08691,
/// section 3.1.2): dV = P^T dO, dP = dO V^T, dS = P * (dP - rowsum(dO * O)), dQ = scale dS K, dK =
/// scale dS^T Q, and the chain rule through softcap, dropout, RoPE and QK-norm. P is computed again
/// from the log-sum-exp, so extra memory is O(N), never N_q x N_k.
#pragma once

#include <cstdint>
#include <span>

#include "multihead/attention.h"
#include "multihead/context.h"
#include "multihead/export.h"
#include "multihead/status.h"
#include "multihead/tensor.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

/// The results of attention() for the same inputs and options.
struct AttentionResults {
  ConstAnyTensor out = {};  ///< (B, H_q, N_q, d_v), f32, f16 or bf16
  ConstTensor lse = {};     ///< (B, H_q, N_q)
  /// If true, one row of lse is compared with the inputs, so that an lse of another call is
  /// refused. Set it to false to pass one part of the keys, as in ring attention: k and v then hold
  /// the part, and out and lse hold the result of merge_attention() over all parts. d_k and d_v of
  /// the part are complete; d_q is the sum over the parts. Request d_sinks for one part only.
  /// PreparedAttentionBackward compares nothing.
  bool check_lse = true;
};

/// Outputs of attention_backward(). Each is optional, f32, and overwritten. Strides follow the
/// rules for attention()'s outputs. A gradient may not share memory with another gradient or with
/// an input.
struct AttentionGradients {
  Tensor d_q = {};  ///< (B, H_q,  N_q, d_k)
  Tensor d_k = {};  ///< (B, H_kv, N_k, d_k)
  Tensor d_v = {};  ///< (B, H_kv, N_k, d_v)
  /// Has the shape of options.bias: gradients are summed along the axes that the bias broadcasts.
  Tensor d_bias = {};
  std::span<float> d_sinks = {};  ///< (H_q)
  /// (d_k), for the gains of options.qk_norm. d_q_gain also needs d_q, and d_k_gain needs d_k.
  std::span<float> d_q_gain = {};
  std::span<float> d_k_gain = {};  ///< as d_q_gain
};

/// Given the gradient d_out of a loss with respect to attention()'s output, computes the loss's
/// gradients with respect to the inputs.
///
/// q, k, v and options must be the same as in the call that computed `results`; d_out (B, H_q, N_q,
/// d_v) is f32, f16 or bf16. Dropout is computed again from its seed. Hidden keys and values do not
/// contribute and get no gradient, even if they hold NaN or infinities; a query that sees no key
/// has gradient 0. Products and sums are in f32.
///
/// Deterministic: the same inputs give the same bits for any number of threads.
///
/// Errors: as attention(). kOption also for the gradient of an input that the call does not have
/// (d_bias without a bias, d_sinks without sinks, d_q_gain or d_k_gain without QK-norm), and for an
/// lse that does not belong to the inputs, see AttentionResults::check_lse. On an error, nothing is
/// written.
[[nodiscard]] Status attention_backward(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                        const ConstAnyTensor& v, const AttentionOptions& options,
                                        const AttentionResults& results,
                                        const ConstAnyTensor& d_out,
                                        const AttentionGradients& gradients, Context& context);

/// The backward of attention_varlen(), for packed sequences: q (T_q, H_q, d_k), k (T_k, H_kv, d_k),
/// v (T_k, H_kv, d_v), out and d_out (T_q, H_q, d_v), lse (H_q, T_q). Each gradient has the shape
/// of its input; d_sinks, d_q_gain and d_k_gain are sums over the sequences. All sequences share
/// one list of jobs, so that many short sequences use all threads. With results.check_lse, one row
/// of the lse of each sequence is checked. d_bias is a kOption error, as is a bias.
[[nodiscard]] Status attention_varlen_backward(
    const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
    std::span<const int32_t> cu_q, std::span<const int32_t> cu_k, const AttentionOptions& options,
    const AttentionResults& results, const ConstAnyTensor& d_out,
    const AttentionGradients& gradients, Context& context);

}  // namespace multihead
MULTIHEAD_PUBLIC_END
