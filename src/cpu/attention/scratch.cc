// Sizes of the scratch memory of the attention kernels. Plans ask for them, so that all memory is
// reserved before a kernel runs. Each layout stands next to the kernel that uses it.
#include <cstdint>

#include "cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention/scratch.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/attention/backward/backward_block-inl.h"
#include "cpu/attention/block/query_block-inl.h"
#include "cpu/attention/decode/decode_rows-inl.h"
#include "cpu/attention/forward/short_heads-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {

uint64_t block_bytes(const AttentionParams& params, const BlockTiling& tiling) {
  return lay_out_block(params, tiling, nullptr).bytes;
}

uint64_t short_bytes(const AttentionParams& params, const BlockTiling& tiling) {
  return lay_out_short(params, tiling, nullptr).bytes;
}

uint64_t split_bytes(const AttentionParams& params, const SplitTiling& tiling) {
  return lay_out_split(DecodeSizes(params, tiling), nullptr).bytes;
}

uint64_t partial_bytes(const AttentionParams& params, const SplitTiling& tiling) {
  return lay_out_partial(DecodeSizes(params, tiling), nullptr).bytes;
}

uint64_t backward_bytes(const BackwardParams& params, const BackwardTiling& tiling) {
  return lay_out_backward(params, tiling, nullptr).bytes;
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

#define MULTIHEAD_EXPORT_BYTES(function, bytes, Params, Tiling)   \
  HWY_EXPORT(bytes);                                              \
  uint64_t function(const Params& params, const Tiling& tiling) { \
    return HWY_DYNAMIC_DISPATCH(bytes)(params, tiling);           \
  }
MULTIHEAD_EXPORT_BYTES(block_scratch_bytes, block_bytes, AttentionParams, BlockTiling)
MULTIHEAD_EXPORT_BYTES(short_heads_scratch_bytes, short_bytes, AttentionParams, BlockTiling)
MULTIHEAD_EXPORT_BYTES(decode_scratch_bytes, split_bytes, AttentionParams, SplitTiling)
MULTIHEAD_EXPORT_BYTES(decode_partial_bytes, partial_bytes, AttentionParams, SplitTiling)
MULTIHEAD_EXPORT_BYTES(backward_scratch_bytes, backward_bytes, BackwardParams, BackwardTiling)
#undef MULTIHEAD_EXPORT_BYTES

}  // namespace multihead::cpu
#endif  // HWY_ONCE
