// This machine's limits, measured in the benchmark's process.
#pragma once

namespace multihead::bench {

// Floating-point operations per second of one thread: independent fused multiply-adds (or
// multiply and add, on a target without) in registers, on the SIMD target in use. The best
// of several short runs.
double measure_fma_peak();

// Bytes per second that `threads` threads together read from memory that no cache holds. Builds
// without threads (WebAssembly) only take 1.
double measure_read_stream(int threads);

// Reads so much memory that the caches hold nothing else.
void evict_caches();

}  // namespace multihead::bench
