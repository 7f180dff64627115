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

HWY_EXPORT(block_bytes);
HWY_EXPORT(short_bytes);
HWY_EXPORT(split_bytes);
HWY_EXPORT(partial_bytes);
HWY_EXPORT(backward_bytes);

uint64_t block_scratch_bytes(const AttentionParams& params, const BlockTiling& tiling) {
  return HWY_DYNAMIC_DISPATCH(block_bytes)(params, tiling);
}

uint64_t short_heads_scratch_bytes(const AttentionParams& params, const BlockTiling& tiling) {
  return HWY_DYNAMIC_DISPATCH(short_bytes)(params, tiling);
}

uint64_t decode_scratch_bytes(const AttentionParams& params, const SplitTiling& tiling) {
  return HWY_DYNAMIC_DISPATCH(split_bytes)(params, tiling);
}

uint64_t decode_partial_bytes(const AttentionParams& params, const SplitTiling& tiling) {
  return HWY_DYNAMIC_DISPATCH(partial_bytes)(params, tiling);
}

uint64_t backward_scratch_bytes(const BackwardParams& params, const BackwardTiling& tiling) {
  return HWY_DYNAMIC_DISPATCH(backward_bytes)(params, tiling);
}

}  // namespace multihead::cpu
#endif  // HWY_ONCE
