// What this machine can do at most, measured where the benchmarks run.
#pragma once

namespace multihead::bench {

// Floating-point operations per second of one thread: independent fused multiply-adds (or
// multiply and add, on a target without) in registers, on the SIMD target in use. The best
// of several short runs.
double measure_fma_peak();

// Bytes per second at which `threads` threads together read memory that no cache holds. A build
// without threads (WebAssembly) takes 1 only.
double measure_read_stream(int threads);

// Reads so much memory that nothing else is left in the caches.
void evict_caches();

}  // namespace multihead::bench
