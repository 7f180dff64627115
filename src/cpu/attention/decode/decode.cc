// Attention of few query rows over many keys: the next token, or a few, against a cache.
//
// Every key and value is read once and used for a few rows, so memory bandwidth limits the speed,
// and keys and values are read in the order of memory. Keys are processed in blocks that fit in the
// first-level cache; while some rows are used, the rows a few kilobytes ahead are prefetched. Long
// caches are split among the threads, and the results merged by their maxima and sums (Dao et al.,
// flash-decoding, 2023), see merge.cc.
#include "cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention/decode/decode.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/attention/decode/decode_split-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace {

void compute_split(const AttentionParams& params, const SplitTiling& tiling, const DecodeJob& job,
                   void* partials, void* scratch) {
  KvSplit(params, tiling, job, partials, scratch).compute();
}

}  // namespace
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

HWY_EXPORT(compute_split);

void decode_split(const AttentionParams& params, const SplitTiling& tiling, const DecodeJob& job,
                  void* partials, void* scratch) {
  HWY_DYNAMIC_DISPATCH(compute_split)(params, tiling, job, partials, scratch);
}

}  // namespace multihead::cpu
#endif  // HWY_ONCE
