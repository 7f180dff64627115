// Runs a test once on every SIMD target that is compiled in and that this machine has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace multihead::testing {

// Highway's target bits; a build with a single target (WebAssembly) gives one entry.
std::vector<int64_t> simd_targets();
std::string simd_target_name(int64_t target);

// While it lives, kernels run on `target`.
class UseSimdTarget {
 public:
  explicit UseSimdTarget(int64_t target);
  ~UseSimdTarget();
  UseSimdTarget(const UseSimdTarget&) = delete;
  UseSimdTarget& operator=(const UseSimdTarget&) = delete;
};

}  // namespace multihead::testing
