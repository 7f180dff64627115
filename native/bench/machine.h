// The machine as this run finds it.
#pragma once

#include <string>
#include <vector>

namespace multihead::bench {

// SIMD targets that are compiled in and that this processor has, by Highway's names.
std::vector<std::string> simd_targets();

// Lets every kernel, and the measurement of the peak, run on the target of that name, in any
// case; false where there is none. "avx512" is the best of the AVX3 family.
bool use_simd_target(const std::string& name);

struct Machine {
  double fma_peak;         // floating-point operations a second, one thread
  double read_stream;      // bytes a second, one thread
  double read_stream_all;  // bytes a second, all threads
  int threads;
};

// Measured at the first call, on the target in use.
const Machine& machine();

}  // namespace multihead::bench
