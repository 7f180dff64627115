#include "cpu/processor.h"

#include <atomic>

#include "hwy/highway.h"

#if HWY_ARCH_X86 && (HWY_COMPILER_GCC_ACTUAL || HWY_COMPILER_CLANG)
#include <cpuid.h>

#include <cstdint>
#endif

namespace multihead::cpu {
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

}  // namespace multihead::cpu
