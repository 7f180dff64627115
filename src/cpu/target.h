// Properties of the current SIMD target and of the processor, for plans and block sizes.
#pragma once

#include <cstdint>
#include <string>

namespace multihead::cpu {

// Properties of the current SIMD target, from which the engine divides a call into jobs. Widths in
// floats.
struct TargetTraits {
  int64_t lanes;         // floats per vector
  int64_t strip_lanes;   // width of a tile of weights times V
  int64_t panel_lanes;   // queries per panel: their scores against a key block are made and used at
                         // a time
  int64_t block_panels;  // most panels per block of queries
  int64_t key_block;     // most keys per step of the online softmax
  int64_t short_keys;    // most keys of forward_short_heads()
  int64_t decode_few_rows;  // largest number of rows that has its own decode tile
  int64_t least_jobs;       // fewest jobs per call, if it has enough rows
  bool bf16_pairs;          // multiplies pairs of bf16
  bool bf16_tiles;          // has the kernels for AMX
  bool prefetches;
};
TargetTraits target_traits();

// Name of the target, for example "AVX3_ZEN4".
const char* target_name();

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

// Bytes of the second-level cache that one core uses. Processors whose size is not known count as
// 1 MB, and so do larger caches: no block was measured to gain from more.
inline constexpr int64_t kLargestL2 = int64_t{1} << 20;

// Asked of the system once. At least 64 kB, at most kLargestL2.
int64_t l2_cache_bytes();

// Makes blocks for an L2 of `bytes` instead of this processor's, so that all sizes can be tested
// and measured on any machine. 0: this processor's own. Do not call this while calls are planned or
// run.
void replace_l2_cache_bytes(int64_t bytes);

// The number of bytes in a size as Linux writes it into /sys ("512K"); 0 for any other text.
int64_t bytes_of_size(const std::string& text);

}  // namespace multihead::cpu
