// Tile and block sizes per SIMD target. A tile keeps rows x vecs sums in registers: enough of
// them to hide the latency of the fused multiply-add, no more than there are registers.
//
// Included once per target, from the -inl files.
#if defined(MULTIHEAD_CPU_SIMD_TILE_SIZE_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_SIMD_TILE_SIZE_H_
#undef MULTIHEAD_CPU_SIMD_TILE_SIZE_H_
#else
#define MULTIHEAD_CPU_SIMD_TILE_SIZE_H_
#endif

#include <cstddef>
#include <cstdint>

#include "cpu/simd/file_namespace.h"
#include "hwy/highway.h"

namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {

// WebAssembly has no prefetch.
inline constexpr bool kPrefetches = !HWY_ARCH_WASM;

// Every processor with AMX has AVX-512. A 512-bit vector is one row of a tile.
inline constexpr bool kHasTileProducts = HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86;

struct TileSize {
#if HWY_ARCH_ARM_A64  // 32 registers of four floats
  // Judged by llvm-mca, not timed: 4x4 keeps 98 to 100 % of the multipliers of Neoverse N1, N2, V1
  // and V2 busy, with four steps of the depth per loop. 6x4 leaves no registers for four steps:
  // with one step 76 to 83 %, with four, spilled, 91 to 95 %. A panel of 32 queries reads each
  // strip of V half as often as one of AVX-512's four vectors, and its scores, 32 kB, and a strip
  // of V, 16 kB, fit in an L1 of 64 kB. Four exponentials at once take 16 % fewer cycles than two
  // on Cortex-A76 and 1 % fewer elsewhere.
  static constexpr size_t kMaxVecs = 4;
  static constexpr size_t kScoreVecs = kMaxVecs;
  static constexpr size_t rows(size_t vecs) { return vecs > 2 ? 4 : 8; }
  static constexpr size_t kPanelVecs = 8;
  static constexpr size_t kBlockPanels = 8;
  static constexpr int64_t kKeyBlock = 256;
  static constexpr bool kFuseExpIntoQK = false;
  static constexpr size_t kExpsAtOnce = 4;
#elif HWY_TARGET <= HWY_AVX3  // 32 registers
  // Zen 4, share of the FMA peak in cache: 4x4 98.9 %, 8x3 97.3, 6x4 97.4, 12x2 96.5. Intel's
  // Granite Rapids: 4x4 85 to 87, 6x4 90 to 92; with vectors that cross cache lines, which are slow
  // to load there, 69 to 75 and 82 to 85. gpt2-1k causal was 8 % faster there with 6x4. AVX3_SPR is
  // the target for Sapphire Rapids and its successors.
  static constexpr size_t kWideRows = HWY_TARGET == HWY_AVX3_SPR ? 6 : 4;
  static constexpr size_t kMaxVecs = 4;
  static constexpr size_t kScoreVecs = kMaxVecs;
  static constexpr size_t rows(size_t vecs) { return vecs > 2 ? kWideRows : 8; }
  static constexpr size_t kPanelVecs = 4;
  static constexpr size_t kBlockPanels = 4;
  static constexpr int64_t kKeyBlock = 256;
  static constexpr bool kFuseExpIntoQK = HWY_ARCH_X86;
  static constexpr size_t kExpsAtOnce = 2;
#elif HWY_TARGET <= HWY_AVX2  // 16 registers, fused multiply-add
  // Zen 4, Q K^T with 64 columns: 4x3 97 %, 6x2 94. P V is as fast with 6x2, and 64 columns of V
  // are whole strips of two.
  static constexpr size_t kMaxVecs = 2;
  static constexpr size_t kScoreVecs = 3;
  static constexpr size_t rows(size_t vecs) { return vecs == 3 ? 4 : vecs == 2 ? 6 : 8; }
  static constexpr size_t kPanelVecs = 3;
  static constexpr size_t kBlockPanels = 15;
  static constexpr int64_t kKeyBlock = 256;
  static constexpr bool kFuseExpIntoQK = false;
  static constexpr size_t kExpsAtOnce = 6;
#elif HWY_ARCH_WASM && defined(__wasm_relaxed_simd__)
  // V8 keeps 12 accumulators in registers as 6x2, but spills 4x3.
  static constexpr size_t kMaxVecs = 2;
  static constexpr size_t kScoreVecs = kMaxVecs;
  static constexpr size_t rows(size_t vecs) { return vecs == 2 ? 6 : 8; }
  static constexpr size_t kPanelVecs = 6;
  static constexpr size_t kBlockPanels = 32;
  static constexpr int64_t kKeyBlock = 256;
  static constexpr bool kFuseExpIntoQK = false;
  static constexpr size_t kExpsAtOnce = 2;
#else  // 16 registers; separate multiply and add need one more
  static constexpr size_t kMaxVecs = 4;
  static constexpr size_t kScoreVecs = kMaxVecs;
  static constexpr size_t rows(size_t vecs) { return vecs > 2 ? 2 : 4; }
  static constexpr size_t kPanelVecs = 12;
  static constexpr size_t kBlockPanels = 8;
  static constexpr int64_t kKeyBlock = 192;
  static constexpr bool kFuseExpIntoQK = false;
  static constexpr size_t kExpsAtOnce = 2;
#endif
  // Most keys of short_heads-inl.h, which form one step of the softmax. With 256, bert and vit in
  // cache gain 3 to 4 % on AVX-512 and lose 8 to 13 % on AVX2.
  static constexpr int64_t kShortKeys = 64;
  // Largest number of query rows that has a decode tile of its own. WebAssembly has no tiles of two
  // rows: for all storage types they would take a twelfth of the module.
  static constexpr size_t kDecodeFewRows = HWY_ARCH_WASM ? 1 : 2;

  // kMaxVecs, rows(vecs): size of a tile of every product. kScoreVecs: width of a tile of scores.

  // kPanelVecs: vectors of queries per panel. The scores of a panel against a key block are made,
  // turned into weights and used before the next panel. They stay in L1 or L2.

  // kBlockPanels: most panels that share a key block while it is in L2. With 32 instead of 8,
  // long-8k gains 3 % in WebAssembly, whose single thread needs no smaller jobs.

  // kKeyBlock: most keys of one step of the online softmax. With 256, vit's 197 keys are one step.

  // kFuseExpIntoQK: from the second key block on, scores become weights while they are in
  // registers. gpt2-1k full gains 2 % on AVX-512 and nothing on AVX2. WebAssembly loses 3 %,
  // because with 16 registers the waiting sums are spilled. Needs kExp2Overflows, which ARM64
  // lacks.

  // kExpsAtOnce: keys whose exponentials are computed together. gpt2-1k on AVX2: six are 0.7 %
  // faster than two or four; eight, which do not fit the registers, lose 3.5 %.
};

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE

#endif  // MULTIHEAD_CPU_SIMD_TILE_SIZE_H_
