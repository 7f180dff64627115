/// \file
/// attention_backward() with all checking, planning and allocation done beforehand, for training
/// steps of one shape.
#pragma once

#include <memory>

#include "multihead/attention_backward.h"
#include "multihead/export.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

/// A call of attention_backward(), checked and planned once, that can be run many times on new
/// data. Every run gives the same bits as attention_backward(). What stays and what may change
/// between runs is as for PreparedAttention: shapes, types, strides and option values stay; what
/// options point to, d_bias, d_sinks and the gains' gradients are kept by address. Gradients may
/// not share memory with another tensor: create() checks the addresses that it is given, a run
/// checks none.
///
/// Movable, not copyable. A default-constructed operation has no call and cannot run; see create().
class PreparedAttentionBackward {
 public:
  /// Takes the arguments of attention_backward(); tensors that run() receives need no data yet.
  /// Errors: as attention_backward(); `prepared` is then unchanged.
  [[nodiscard]] static Status create(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                     const ConstAnyTensor& v, const AttentionOptions& options,
                                     const AttentionResults& results, const ConstAnyTensor& d_out,
                                     const AttentionGradients& gradients, Context& context,
                                     PreparedAttentionBackward& prepared);

  /// The data of a run, with the prepared types, shapes and strides. d_q, d_k and d_v must be null
  /// if they were not prepared.
  struct Data {
    const void* q = nullptr;  ///< (B, H_q, N_q, d_k)
    const void* k = nullptr;  ///< (B, H_kv, N_k, d_k)
    const void* v = nullptr;  ///< (B, H_kv, N_k, d_v)
    const void* out =
        nullptr;  ///< (B, H_q, N_q, d_v), result of attention() for the same q, k and v
    const float* lse = nullptr;   ///< (B, H_q, N_q), result of the same call
    const void* d_out = nullptr;  ///< (B, H_q, N_q, d_v)
    float* d_q = nullptr;         ///< like q, f32, overwritten
    float* d_k = nullptr;         ///< like k, f32, overwritten
    float* d_v = nullptr;         ///< like v, f32, overwritten
  };
  /// Allocates nothing, unless another call of the context has run out of memory in between.
  /// Errors: kOption (a default-constructed operation, kv_lengths that are now out of range, a
  /// gradient that was not prepared), kShape (a null address of a tensor with elements), kMemory
  /// (after such a call). On an error, nothing is written.
  [[nodiscard]] Status run(const Data& data);

 private:
  struct Call;
  struct Delete {
    void operator()(Call* call) const;
  };
  std::unique_ptr<Call, Delete> call_;
};

}  // namespace multihead
MULTIHEAD_PUBLIC_END
