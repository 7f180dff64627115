// This machine's limits, measured in the benchmark's process.
#pragma once

namespace multihead::bench {

// Floating-point operations per second of one thread on the current SIMD target: independent fused
// multiply-adds (or a multiply and an add, on a target without FMA) in registers. The best of
// several short runs.
double measure_fma_peak();

// Bytes per second that `threads` threads together read from memory that no cache holds. Builds
// without threads (WebAssembly) only accept 1.
double measure_read_stream(int threads);

// Reads 512 MB, so that no cache holds other data.
void evict_caches();

}  // namespace multihead::bench
