#include "cpu/target.h"

#include <atomic>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/target.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/tile_size.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

TargetTraits traits() {
  return {.lanes = static_cast<int64_t>(hn::Lanes(DF())),
          .strip_lanes = static_cast<int64_t>(TileSize::kMaxVecs * hn::Lanes(DF())),
          .panel_lanes = static_cast<int64_t>(TileSize::kPanelVecs * hn::Lanes(DF())),
          .block_panels = static_cast<int64_t>(TileSize::kBlockPanels),
          .key_block = TileSize::kKeyBlock,
          .short_keys = TileSize::kShortKeys,
          .decode_few_rows = static_cast<int64_t>(TileSize::kDecodeFewRows),
          .least_jobs = HWY_ARCH_WASM ? 1 : 16,
          .bf16_pairs = kHasBf16Pairs,
          .bf16_tiles = kHasTileProducts,
          .prefetches = kPrefetches};
}

const char* name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#if HWY_ARCH_X86 && (HWY_COMPILER_GCC_ACTUAL || HWY_COMPILER_CLANG)
#include <cpuid.h>
#endif

namespace multihead::cpu {

HWY_EXPORT(traits);
HWY_EXPORT(name);

namespace {

ProcessorFamily find_family() {
#if HWY_ARCH_X86 && (HWY_COMPILER_GCC_ACTUAL || HWY_COMPILER_CLANG)
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(0, &eax, &ebx, &ecx, &edx) != 0 && ebx == signature_INTEL_ebx &&
      ecx == signature_INTEL_ecx && edx == signature_INTEL_edx) {
    return ProcessorFamily::kIntel;
  }
#endif
  return ProcessorFamily::kOther;
}

std::atomic<const ProcessorFamily*> family_instead = nullptr;

}  // namespace

ProcessorFamily processor_family() {
  static const ProcessorFamily own = find_family();
  const ProcessorFamily* const other = family_instead.load();
  return other == nullptr ? own : *other;
}

void replace_processor_family(const ProcessorFamily* family) { family_instead.store(family); }

bool bf16_pairs_are_fast() { return processor_family() != ProcessorFamily::kIntel; }
bool split_loads_are_slow() { return processor_family() == ProcessorFamily::kIntel; }

TargetTraits target_traits() { return HWY_DYNAMIC_DISPATCH(traits)(); }
const char* target_name() { return HWY_DYNAMIC_DISPATCH(name)(); }

}  // namespace multihead::cpu
#endif  // HWY_ONCE
