// Facts about the machine of this run.
#pragma once

#include <string>
#include <vector>

namespace multihead::bench {

// The SIMD targets that are compiled in and that this processor supports, by Highway's names.
std::vector<std::string> simd_targets();

// Restricts every kernel, and the measurement of the peak, to the target of that name, in upper or
// lower case; false if there is none. "avx512" means the best of the AVX3 family.
bool use_simd_target(const std::string& name);

// Plans calls for processors of Intel ("intel") or of others ("other"), whatever this one is; false
// for another name.
bool use_processor(const std::string& name);

struct Machine {
  double fma_peak;         // floating-point operations a second, one thread
  double read_stream;      // bytes a second, one thread
  double read_stream_all;  // bytes a second, all threads
  int threads;
};

// Measured by the first call, on the current SIMD target.
const Machine& machine();

}  // namespace multihead::bench
