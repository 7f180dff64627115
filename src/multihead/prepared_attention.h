/// \file
/// attention() with all checking, planning and allocation done beforehand, for calls of one shape
/// that are repeated often. A run takes 0.02 microseconds in addition to its kernels.
#pragma once

#include <memory>

#include "multihead/attention.h"
#include "multihead/export.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

/// A call of attention(), checked and planned once, that can be run many times on new data. Every
/// run gives the same bits as attention().
///
/// ```
/// PreparedAttention op;
/// Status status =
///     PreparedAttention::create({nullptr, shape}, {nullptr, shape}, {nullptr, shape},
///                               {.causal = Causal::top_left()}, {.out = {nullptr, shape}},
///                               context, op);
/// if (status.ok()) status = op.run(q, k, v, out);
/// ```
/// {nullptr, shape} is f32; {nullptr, DType::kBF16, shape} is bf16.
///
/// What stays and what may change between runs:
/// - Shapes, element types, strides and option values are copied and stay.
/// - q, k, v, out and lse are arguments of each run; their addresses may change. out and lse may
///   not share memory with another tensor: create() checks the addresses that it is given, a run
///   checks none.
/// - Everything else that the options and outputs point to (mask, bias, kv_lengths, alibi_slopes,
///   sinks, gains, positions; weights, dropout_mask, captures, their heads and outputs) is kept by
///   address, and read or written by every run: it must live as long as the operation is used. Its
///   numbers may change between runs.
/// - The context must outlive the operation and stay at the same address. It may serve other calls
///   in between, but one at a time: operations on several threads need separate contexts.
///
/// Movable, not copyable. A default-constructed operation has no call and cannot run; see create().
class PreparedAttention {
 public:
  /// Takes the arguments of attention(); q, k, v, outputs.out and outputs.lse need no data yet. If
  /// outputs.lse has data, runs without an lse argument write there.
  ///
  /// Errors: as attention(); `prepared` is then unchanged.
  [[nodiscard]] static Status create(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                     const ConstAnyTensor& v, const AttentionOptions& options,
                                     const AttentionOutputs& outputs, Context& context,
                                     PreparedAttention& prepared);

  /// Runs attention() on this data, with the prepared types, shapes and strides. Allocates nothing
  /// (unless another call of the context has run out of memory in between), takes no lock, and
  /// wakes other threads only if there is enough work.
  ///
  /// Errors: kOption (a default-constructed operation, kv_lengths that are now out of range, an lse
  /// that was not prepared), kShape (a null address of a tensor with elements), kMemory (after such
  /// a call). On an error, nothing is written.
  [[nodiscard]] Status run(const void* q, const void* k, const void* v, void* out,
                           float* lse = nullptr);

 private:
  struct Call;
  struct Delete {
    void operator()(Call* call) const;
  };
  std::unique_ptr<Call, Delete> call_;
};

}  // namespace multihead
MULTIHEAD_PUBLIC_END
