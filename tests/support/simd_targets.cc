#include "support/simd_targets.h"

#include <cstdint>
#include <string>
#include <vector>

#include "hwy/highway.h"
#include "hwy/targets.h"

namespace multihead::testing {

#if HWY_TARGETS == HWY_STATIC_TARGET

std::vector<int64_t> simd_targets() { return {HWY_STATIC_TARGET}; }
UseSimdTarget::UseSimdTarget(int64_t /*target*/) {}
UseSimdTarget::~UseSimdTarget() = default;

#else

std::vector<int64_t> simd_targets() {
  std::vector<int64_t> targets;
  int64_t remaining = hwy::SupportedTargets() & HWY_TARGETS;
  while (remaining != 0) {
    const int64_t lowest = remaining & -remaining;
    targets.push_back(lowest);
    remaining &= ~lowest;
  }
  return targets;
}

UseSimdTarget::UseSimdTarget(int64_t target) { hwy::SetSupportedTargetsForTest(target); }
UseSimdTarget::~UseSimdTarget() { hwy::SetSupportedTargetsForTest(0); }

#endif

std::string simd_target_name(int64_t target) { return hwy::TargetName(target); }

}  // namespace multihead::testing
