// Sizes of the processor's data caches, for block sizes.
#pragma once

#include <cstdint>
#include <string>

namespace multihead::cpu {

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
