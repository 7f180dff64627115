// What this machine can do at most, measured where the benchmarks run.
#pragma once

namespace multihead::bench {

// Floating-point operations per second of one thread: independent fused multiply-adds (or
// multiply and add, on a target without) in registers, on the SIMD target in use. The best
// of several short runs.
double measure_fma_peak();

// Bytes per second at which one thread reads memory that no cache holds.
double measure_read_stream();

}  // namespace multihead::bench
