/// \file
/// Attention on NVIDIA GPUs: the operations of attention.h on memory of a device. Needs the library
/// multihead_cuda (CMake: multihead::cuda). This header needs no CUDA toolkit.
///
/// - Every tensor, and every array that options name (kv_lengths, alibi_slopes, sinks, positions,
///   gains), lies in memory of the current device: cudaMalloc(), cudaMallocAsync() or
///   cudaMallocManaged(). Views, options and captures themselves, and the `heads` of captures, are
///   read on the host before the call returns.
/// - A call checks its arguments, enqueues kernels on the stream and returns. It allocates no
///   memory, does not wait for the device, and may be captured in a CUDA graph. The caller provides
///   the scratch memory: query its size, then pass a Workspace. One workspace serves one call at a
///   time; calls on one stream may share it.
/// - Numbers in device memory cannot be checked before a call. Lengths and row numbers outside
///   their range are limited to it by the kernels, so that no kernel reads or writes outside of the
///   tensors. Page numbers outside the pool hide the tokens of the page.
/// - Deterministic: the same bits for the same inputs on the same kind of device.
///
/// Types and shapes are as in attention.h, with rows of up to 256 elements. Sums are in f32. Inputs
/// that are all bf16 or all f16 may be multiplied in that type; weights are then rounded to it
/// before they are multiplied by V, and q and k are rounded to it after RoPE and QK-norm.
/// attention_backward() may do the same if d_out is of that type too; it then rounds weights and
/// the gradients of scores before their products.
///
/// Errors, in addition to the ones in attention.h: kDevice if no device can be used, an address is
/// not memory of the current device, the stream is in an error state, or CUDA reports an error,
/// with its name, number and text; kShape for rows above 256 elements and for addresses that are
/// not aligned to their element; kOption for a workspace that is too small. On an error nothing is
/// written, except after an error that CUDA reports while kernels are enqueued or run.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "multihead/attention.h"
#include "multihead/attention_backward.h"
#include "multihead/export.h"
#include "multihead/kv_cache.h"
#include "multihead/rope.h"
#include "multihead/status.h"
#include "multihead/tensor.h"

/// The type behind CUDA's cudaStream_t.
struct CUstream_st;

MULTIHEAD_PUBLIC_BEGIN
namespace multihead::cuda {

/// A cudaStream_t of the current device; null is the default stream.
using Stream = CUstream_st*;

/// Device memory that a call uses as scratch while it runs, aligned to 256 bytes.
struct Workspace {
  void* data = nullptr;  ///< may be null if the call needs none
  uint64_t bytes = 0;    ///< size of `data`
};

/// Checks that calls can run: the library was built with CUDA and has code for the current device,
/// which has compute capability 8.0 or newer. Errors: kDevice, with the reason.
[[nodiscard]] Status available();

/// Computes the workspace size, in bytes, of attention() with the same arguments. Errors: as
/// attention(), except for addresses, which are not read.
[[nodiscard]] Status attention_workspace(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                         const ConstAnyTensor& v, const AttentionOptions& options,
                                         const AttentionOutputs& outputs, uint64_t& bytes);

/// attention() of attention.h on the device; see the head of this file. Ignores options.precision.
[[nodiscard]] Status attention(const ConstAnyTensor& q, const ConstAnyTensor& k,
                               const ConstAnyTensor& v, const AttentionOptions& options,
                               const AttentionOutputs& outputs, const Workspace& workspace,
                               Stream stream);

/// Tells in words which kernel computes a call of attention() on the current device, and why the
/// other kernels do not. Without a device, assumes compute capability 9.0. Empty for a call that
/// attention() refuses.
std::string explain(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                    const AttentionOptions& options, const AttentionOutputs& outputs);

/// Calls that are checked and planned once and then only launched, for hosts that are slower than
/// their GPU.
class PreparedCalls {
 public:
  /// Runs `calls`, which calls functions of this header on the same thread. Their kernels are not
  /// enqueued but kept, in place of the ones kept before, and run at each launch(): memory of the
  /// calls must stay where it is, while the numbers in it may change. Returns the error of `calls`;
  /// then nothing changes.
  [[nodiscard]] Status prepare(const std::function<Status()>& calls);

  /// Enqueues the kept kernels, and checks nothing. The current device must be that of prepare().
  /// May be captured in a CUDA graph. Errors: kDevice if CUDA reports an error.
  [[nodiscard]] Status launch(Stream stream) const;

 private:
  std::vector<std::function<int(void*)>> launches_;  // return CUDA's error code
};

/// Boundaries of packed sequences: sequence s is rows cu_q[s] to cu_q[s + 1] - 1 of q and rows
/// cu_k[s] to cu_k[s + 1] - 1 of k and v. As in FlashAttention, these numbers are in device memory,
/// and the caller gives the length of the longest sequence.
struct PackedSequences {
  std::span<const int32_t> cu_q;  ///< (S + 1), in device memory
  std::span<const int32_t> cu_k;  ///< (S + 1), in device memory
  int64_t max_queries = 0;        ///< longest sequence; rows beyond are neither read nor written
  int64_t max_keys = 0;           ///< longest sequence; rows beyond are not read
};

/// Computes the workspace size, in bytes, of attention_varlen() with the same arguments.
[[nodiscard]] Status attention_varlen_workspace(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                                const ConstAnyTensor& v,
                                                const PackedSequences& sequences,
                                                const AttentionOptions& options,
                                                const AttentionOutputs& outputs, uint64_t& bytes);

/// attention_varlen() of attention.h on the device; see the head of this file.
[[nodiscard]] Status attention_varlen(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                      const ConstAnyTensor& v, const PackedSequences& sequences,
                                      const AttentionOptions& options,
                                      const AttentionOutputs& outputs, const Workspace& workspace,
                                      Stream stream);

/// Computes the workspace size, in bytes, of attention_backward() with the same arguments.
[[nodiscard]] Status attention_backward_workspace(
    const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
    const AttentionOptions& options, const AttentionResults& results, const ConstAnyTensor& d_out,
    const AttentionGradients& gradients, uint64_t& bytes);

/// attention_backward() of attention_backward.h on the device; see the head of this file. The
/// gradients are in device memory too. lse is not checked against the inputs, because this would
/// wait for the device.
[[nodiscard]] Status attention_backward(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                        const ConstAnyTensor& v, const AttentionOptions& options,
                                        const AttentionResults& results,
                                        const ConstAnyTensor& d_out,
                                        const AttentionGradients& gradients,
                                        const Workspace& workspace, Stream stream);

/// Tells which kernel computes a call of attention_backward(), as explain() does for attention().
std::string explain_backward(const ConstAnyTensor& q, const ConstAnyTensor& k,
                             const ConstAnyTensor& v, const AttentionOptions& options,
                             const AttentionResults& results, const ConstAnyTensor& d_out,
                             const AttentionGradients& gradients);

/// Computes the workspace size, in bytes, of attention_varlen_backward() with the same arguments.
[[nodiscard]] Status attention_varlen_backward_workspace(
    const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
    const PackedSequences& sequences, const AttentionOptions& options,
    const AttentionResults& results, const ConstAnyTensor& d_out,
    const AttentionGradients& gradients, uint64_t& bytes);

/// attention_varlen_backward() of attention_backward.h on the device; see attention_backward().
/// Gradients of rows outside every sequence are not written.
[[nodiscard]] Status attention_varlen_backward(
    const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
    const PackedSequences& sequences, const AttentionOptions& options,
    const AttentionResults& results, const ConstAnyTensor& d_out,
    const AttentionGradients& gradients, const Workspace& workspace, Stream stream);

/// A KV cache in device memory, in the layouts of kv_cache.h. Rows of keys and of values are (B,
/// H_kv, capacity, d), or (pages * page_size, H_kv, d) for pages. For kInt8, each row has one float
/// scale.
struct CacheView {
  KVCacheConfig config;                 ///< batch: as the queries; pages: size of the pool
  const void* keys = nullptr;           ///< elements of config.type
  const void* values = nullptr;         ///< not read if config.values_in_keys
  const float* key_scales = nullptr;    ///< one per row of `keys`; kInt8 only
  const float* value_scales = nullptr;  ///< one per row of `values`; kInt8 only
  std::span<const int32_t> lengths;     ///< (B): tokens of each entry, in device memory
  /// (B): first token that has not been overwritten, in device memory; zeros unless the cache is a
  /// ring.
  std::span<const int32_t> firsts;
  /// kPaged: (B, ceil(capacity / page_size)) page numbers, in device memory.
  std::span<const int32_t> page_table;
  int64_t max_length = 0;  ///< longest entry; tokens beyond it are not read
};

/// Computes the workspace size, in bytes, of decode() with the same arguments.
[[nodiscard]] Status decode_workspace(const ConstAnyTensor& q, const CacheView& cache,
                                      const AttentionOptions& options,
                                      const AttentionOutputs& outputs, uint64_t& bytes);

/// KVCache::attend() of kv_cache.h on the device, with N_k = max_length. The keys are split, so
/// that a few query rows occupy the whole device (flash-decoding, Dao et al., 2023).
/// f32 queries over a bf16 or int8 cache are rounded to bf16, if d_k and d_v are multiples of 8.
[[nodiscard]] Status decode(const ConstAnyTensor& q, const CacheView& cache,
                            const AttentionOptions& options, const AttentionOutputs& outputs,
                            const Workspace& workspace, Stream stream);

/// Tells which kernel computes a call of decode(), as explain() does for attention().
std::string explain_decode(const ConstAnyTensor& q, const CacheView& cache,
                           const AttentionOptions& options, const AttentionOutputs& outputs);

/// merge_attention() of attention.h on the device.
[[nodiscard]] Status merge_attention(const Tensor& out_a, const Tensor& lse_a,
                                     const ConstTensor& out_b, const ConstTensor& lse_b,
                                     Stream stream);

/// rotate() of rope.h on the device.
[[nodiscard]] Status rotate(const ConstTensor& x, std::span<const int32_t> positions,
                            const Rope& rope, const Tensor& y, Stream stream);

}  // namespace multihead::cuda
MULTIHEAD_PUBLIC_END
