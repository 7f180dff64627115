// Tile and block sizes per SIMD target. KERNELS: 12 to 24 accumulators hide the latency of
// the fused multiply-add; more than the target's registers spill.
//
// Included once per target, from the -inl files.
#if defined(MULTIHEAD_CPU_TILE_SIZE_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_TILE_SIZE_H_
#undef MULTIHEAD_CPU_TILE_SIZE_H_
#else
#define MULTIHEAD_CPU_TILE_SIZE_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

namespace multihead::cpu::HWY_NAMESPACE {

struct TileSize {
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64             // 32 registers
  static constexpr size_t kScoreRows = 8, kScoreVecs = 3;  // keys x vectors of queries
  static constexpr size_t kValueRows = 6, kValueVecs = 4;  // queries x vectors of value columns
  static constexpr size_t kPanelGroups = 1;
#elif HWY_TARGET <= HWY_AVX2  // 16 registers, fused multiply-add
  static constexpr size_t kScoreRows = 4, kScoreVecs = 3;
  static constexpr size_t kValueRows = 6, kValueVecs = 2;
  static constexpr size_t kPanelGroups = 2;
#elif HWY_ARCH_WASM && defined(__wasm_relaxed_simd__)
  // V8 keeps 12 accumulators in registers as 6x2, but spills 4x3.
  static constexpr size_t kScoreRows = 6, kScoreVecs = 2;
  static constexpr size_t kValueRows = 6, kValueVecs = 2;
  static constexpr size_t kPanelGroups = 3;
#else  // 16 registers, of which multiply and add take one more
  static constexpr size_t kScoreRows = 2, kScoreVecs = 4;
  static constexpr size_t kValueRows = 2, kValueVecs = 4;
  static constexpr size_t kPanelGroups = 3;
#endif
  // Queries of one panel: groups x kScoreVecs vectors. Its scores against a key block
  // stay in the first-level cache.
  static constexpr size_t kPanelVecs = kPanelGroups * kScoreVecs;
  static constexpr size_t kBlockPanels = 2;  // panels that share a key block while it is in L2
  static constexpr int64_t kKeyBlock = 192;
};

}  // namespace multihead::cpu::HWY_NAMESPACE

#endif  // MULTIHEAD_CPU_TILE_SIZE_H_
