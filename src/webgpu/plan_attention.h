// Plans attention on a browser's GPU: the calls of multihead/attention.h and multihead/kv_cache.h
// with their checks and errors, as dispatches of a Planner.
//
// Tensors have no address: their `data` is 1 + the number of the operand, a buffer that begins with
// the tensor. Arrays of options (lengths, slopes, sinks, gains, positions, cu_q) are read.
//
// Errors: those of the CPU's calls, in the same words; kOption for what runs on the CPU only
// (dropout, widths above 256, caches of int8) and for what the GPU's limits refuse. Outputs that
// share memory are refused by the caller, who has the buffers. A plan with an error is not to be
// used.
#pragma once

#include <cstdint>
#include <span>

#include "engine/attention/validate.h"
#include "multihead/kv_cache.h"
#include "webgpu/planner.h"

namespace multihead::webgpu {

// attention().
Status plan_attention(const engine::ForwardCall& call, Planner& to);

// attention_varlen().
Status plan_varlen(const engine::ForwardCall& call, std::span<const int32_t> cu_q,
                   std::span<const int32_t> cu_k, Planner& to);

// attention_scores().
Status plan_scores(const ConstAnyTensor& q, const ConstAnyTensor& k,
                   const AttentionOptions& options, const ScoreCapture& capture, Planner& to);

// rotate().
Status plan_rotate(const ConstTensor& x, std::span<const int32_t> positions, const Rope& rope,
                   const Tensor& y, Planner& to);

// linear(). The caller gives tensors without gaps.
Status plan_linear(const ConstTensor& x, const ConstTensor& weight, const ConstTensor& bias,
                   const Tensor& y, const Device& device, Plan& plan);

// The rows of a cache are two operands: keys (B, H_kv, capacity, d_k) and values (B, H_kv,
// capacity, d_v) of the cache's type, or pages. The cache has all but them: lengths, and pages.
struct CacheOperands {
  uint32_t keys = 0, values = 0;  // 1 + number
};

// KVCache::create().
Status create_cache(const KVCacheConfig& config, KVCache& cache);
// KVCache::append(). If there is no error, the cache counts the tokens as appended.
Status plan_append(KVCache& cache, const CacheOperands& rows, const ConstAnyTensor& k,
                   const ConstAnyTensor& v, std::span<const int32_t> counts, Planner& to);
// KVCache::attend().
Status plan_attend(const KVCache& cache, const CacheOperands& rows, const ConstAnyTensor& q,
                   const AttentionOptions& options, const AttentionOutputs& outputs, Planner& to);

}  // namespace multihead::webgpu
