// Normally distributed numbers that are a pure function of (seed, stream, index): the same bits in
// every build, native or WebAssembly, with or without fused multiply-add.
#pragma once

#include <cstdint>

namespace multihead::rules {

// to[i] = standard_deviation * (normal number i of the stream), rounded to float.
void fill_normal(uint64_t seed, uint64_t stream, double standard_deviation, float* to,
                 int64_t count);

}  // namespace multihead::rules
