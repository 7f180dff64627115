// What is known of a processor beyond its instruction sets.
#pragma once

namespace multihead::cpu {

// Whether bf16 pairs (VDPBF16PS) are multiplied at least as fast as f32. On Intel's server
// processors they are not: the instruction runs at half the rate of f32's multiply-add (2.1 cycles
// on Granite Rapids), so that widening bf16 to f32 is faster. Zen 4 multiplies pairs at the full
// rate.
bool bf16_pairs_are_fast();

}  // namespace multihead::cpu
