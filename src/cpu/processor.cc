#include "cpu/processor.h"

#include "hwy/highway.h"

#if HWY_ARCH_X86 && (HWY_COMPILER_GCC_ACTUAL || HWY_COMPILER_CLANG)
#include <cpuid.h>

#include <cstdint>
#endif

namespace multihead::cpu {
namespace {

bool find_fast_pairs() {
#if HWY_ARCH_X86 && (HWY_COMPILER_GCC_ACTUAL || HWY_COMPILER_CLANG)
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(0, &eax, &ebx, &ecx, &edx) == 0) return false;
  const bool is_intel =
      ebx == signature_INTEL_ebx && ecx == signature_INTEL_ecx && edx == signature_INTEL_edx;
  return !is_intel;
#else
  return true;
#endif
}

}  // namespace

bool bf16_pairs_are_fast() {
  static const bool are_fast = find_fast_pairs();
  return are_fast;
}

}  // namespace multihead::cpu
