// Attention of few query rows over many keys: the next token, or a few, against a cache.
//
// Every key and value is read once and used for a few rows, so memory bandwidth limits the speed,
// and keys and values are read in the order of memory. Keys are processed in blocks that fit in the
// first-level cache; while some rows are used, the rows a few kilobytes ahead are prefetched. Long
// caches are split among the threads, and the results merged by their maxima and sums (Dao et al.,
// flash-decoding, 2023), see merge.cc.
#include <cstdint>

#include "cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention/decode/decode.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/attention/decode/decode_layout-inl.h"
#include "cpu/attention/decode/decode_split-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace {

void compute_split(const AttentionParams& params, const SplitGeometry& geometry,
                   const DecodeJob& job, void* partials, void* scratch) {
  KvSplit(params, geometry, job, partials, scratch).compute();
}

uint64_t scratch_bytes(const AttentionParams& params, const SplitGeometry& geometry) {
  return lay_out_split(DecodeSizes(params, geometry), nullptr).bytes;
}

uint64_t partial_bytes(const AttentionParams& params, const SplitGeometry& geometry) {
  return lay_out_partial(DecodeSizes(params, geometry), nullptr).bytes;
}

}  // namespace
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

HWY_EXPORT(compute_split);
HWY_EXPORT(scratch_bytes);
HWY_EXPORT(partial_bytes);

uint64_t decode_scratch_bytes(const AttentionParams& params, const SplitGeometry& geometry) {
  return HWY_DYNAMIC_DISPATCH(scratch_bytes)(params, geometry);
}

uint64_t decode_partial_bytes(const AttentionParams& params, const SplitGeometry& geometry) {
  return HWY_DYNAMIC_DISPATCH(partial_bytes)(params, geometry);
}

void decode_split(const AttentionParams& params, const SplitGeometry& geometry,
                  const DecodeJob& job, void* partials, void* scratch) {
  HWY_DYNAMIC_DISPATCH(compute_split)(params, geometry, job, partials, scratch);
}

}  // namespace multihead::cpu
#endif  // HWY_ONCE
