// Runs a test on every SIMD target that is compiled in and that this machine supports.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace multihead::testing {

// Returns Highway's target bits; one entry in a build with a single target (WebAssembly).
std::vector<int64_t> simd_targets();
std::string simd_target_name(int64_t target);

// While this object exists, kernels run on `target`.
class UseSimdTarget {
 public:
  explicit UseSimdTarget(int64_t target);
  ~UseSimdTarget();
  UseSimdTarget(const UseSimdTarget&) = delete;
  UseSimdTarget& operator=(const UseSimdTarget&) = delete;
};

// Calls check() for every target of simd_targets(), with the target's name in failure messages.
// Compute target-independent data, such as the oracle's result, once before the call.
template <class Check>
void on_every_target(const Check& check) {
  for (const int64_t target : simd_targets()) {
    const UseSimdTarget use(target);
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, simd_target_name(target));
    check();
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace multihead::testing
