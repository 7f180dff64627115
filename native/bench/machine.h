// Facts about the machine that runs the benchmark.
#pragma once

#include <string>
#include <vector>

namespace multihead::bench {

// Highway's names of the SIMD targets that are compiled in and supported by this processor.
std::vector<std::string> simd_targets();

// The processor's name, as its system states it; empty if it does not.
std::string processor();

// Restricts every kernel and the peak measurement to the target `name`, in upper or lower case.
// Returns false if there is no such target. "avx512" means the best of the AVX3 family.
bool use_simd_target(const std::string& name);

// Plans calls as on a processor of Intel ("intel") or of another vendor ("other"), whatever this
// processor is. Returns false for another name.
bool use_processor(const std::string& name);

// Makes blocks for a second-level cache of this size, such as "512K". Returns false for a text that
// is no size.
bool use_l2(const std::string& size);

struct Machine {
  double fma_peak;         // floating-point operations per second, one thread
  double read_stream;      // bytes per second, one thread
  double read_stream_all;  // bytes per second, all threads
  int threads;
};

// The first call measures the current SIMD target.
const Machine& machine();

}  // namespace multihead::bench
