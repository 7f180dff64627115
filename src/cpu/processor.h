// Properties of a processor beyond its instruction sets.
#pragma once

#include <cstdint>

namespace multihead::cpu {

enum class ProcessorFamily : uint8_t { kIntel, kOther };

ProcessorFamily processor_family();

// Makes plans for `family` instead of this processor, so that plans of every family can be tested
// and measured on any machine. Null: this processor's own family. Do not call this while calls are
// planned.
void replace_processor_family(const ProcessorFamily* family);

// True if bf16 pairs (VDPBF16PS) are multiplied at least as fast as f32. On Intel's server
// processors the instruction runs at half the rate of f32's multiply-add (2.1 cycles on Granite
// Rapids), so widening bf16 to f32 is faster. Zen 4 multiplies pairs at the full rate.
bool bf16_pairs_are_fast();

// True if loads of 64 bytes that cross a cache line are slow. On Granite Rapids they take 1.3
// cycles instead of 0.56: gpt2-1k causal with tiles of 6x4 is 6 % faster if all inputs start at
// cache lines. If true, V is copied; this copy was not measured there and costs 0 to 2 % on Zen 4.
bool split_loads_are_slow();

}  // namespace multihead::cpu
