#include "cpu/amx/amx.h"

#include <atomic>

#include "hwy/highway.h"

#if HWY_ARCH_X86_64 && defined(__linux__) && (HWY_COMPILER_GCC_ACTUAL || HWY_COMPILER_CLANG)
#define MULTIHEAD_HAS_AMX 1
#else
#define MULTIHEAD_HAS_AMX 0
#endif

#if MULTIHEAD_HAS_AMX

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>

HWY_PUSH_ATTRIBUTES("amx-tile,amx-bf16")
#include "cpu/amx/tile_product-inl.h"

namespace multihead::cpu {
namespace {

// The AMX instructions in inline assembly. GCC 12's intrinsics are macros that accept the number of
// a tile only as a literal.
struct AmxTiles {
  template <int kTile>
  HWY_INLINE void load(const void* from, size_t row_step) const {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
                 :
                 : "r"(from), "r"(row_step), "i"(kTile)
                 : "memory");
  }
  template <int kTile>
  HWY_INLINE void zero() const {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kC, int kA, int kB>
  HWY_INLINE void multiply() const {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
  template <int kTile>
  HWY_INLINE void store(void* to, size_t row_step) const {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
                 :
                 : "r"(to), "r"(row_step), "i"(kTile)
                 : "memory");
  }
};

// The operand of LDTILECFG for eight tiles of 16 rows of 64 bytes.
struct TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  std::array<uint8_t, 14> reserved = {};
  std::array<uint16_t, 16> row_bytes = {64, 64, 64, 64, 64, 64, 64, 64};
  std::array<uint8_t, 16> rows = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);
constexpr TileConfig kConfig;

void begin() { asm volatile("ldtilecfg %0" : : "m"(kConfig)); }

void multiply(const TileProduct& product) {
  AmxTiles tiles;
  multiply_tiles(tiles, product);
}

void end() { asm volatile("tilerelease"); }

}  // namespace
}  // namespace multihead::cpu
HWY_POP_ATTRIBUTES

namespace multihead::cpu {
namespace {

constexpr TileUnit kAmx = {.begin = begin, .multiply = multiply, .end = end};

// State components that the operating system saves (XCR0).
uint64_t saved_components() {
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

// Detects AMX: Intel's Software Developer's Manual, volume 1, chapter 18; Linux's
// Documentation/arch/x86/xstate.
AmxState find_amx() {
  constexpr uint32_t kOsSaves = 1U << 27;                           // leaf 1, ecx
  constexpr uint32_t kTileAndBf16 = (1U << 24) | (1U << 22);        // leaf 7, edx
  constexpr uint64_t kTileConfig = 1U << 17, kTileData = 1U << 18;  // XCR0
  constexpr long kRequestPermission = 0x1023, kTileDataNumber = 18;

  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 ||
      (edx & kTileAndBf16) != kTileAndBf16) {
    return AmxState::kNoInstruction;
  }
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & kOsSaves) == 0) {
    return AmxState::kNotEnabled;
  }
  const uint64_t needed = kTileConfig | kTileData;
  if ((saved_components() & needed) != needed) return AmxState::kNotEnabled;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileDataNumber) == 0
             ? AmxState::kReady
             : AmxState::kPermissionDenied;
}

AmxState amx_state_of_process() {
  static const AmxState state = find_amx();
  return state;
}

const TileUnit* amx_unit() { return &kAmx; }

}  // namespace
}  // namespace multihead::cpu

#else

namespace multihead::cpu {
namespace {

AmxState amx_state_of_process() { return AmxState::kNotCompiled; }
const TileUnit* amx_unit() { return nullptr; }

}  // namespace
}  // namespace multihead::cpu

#endif

namespace multihead::cpu {
namespace {

std::atomic<const TileUnit*> unit_instead = nullptr;

}  // namespace

AmxState amx_state() {
  return unit_instead.load() != nullptr ? AmxState::kReady : amx_state_of_process();
}

const TileUnit* tile_unit() {
  if (const TileUnit* const model = unit_instead.load(); model != nullptr) return model;
  return amx_state_of_process() == AmxState::kReady ? amx_unit() : nullptr;
}

void replace_tile_unit(const TileUnit* model) { unit_instead.store(model); }

}  // namespace multihead::cpu
