// The order of bytes in files.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <span>

namespace multihead::rules {

// True if this processor stores the lowest byte of a number first, as safetensors files do.
inline constexpr bool kOrderOfFiles = std::endian::native == std::endian::little;

// Changes numbers of `size` bytes from the order of files to the order of this processor, or back.
inline void turn_numbers([[maybe_unused]] std::span<std::byte> numbers,
                         [[maybe_unused]] size_t size) {
  if constexpr (!kOrderOfFiles) {
    for (; !numbers.empty(); numbers = numbers.subspan(size)) {
      std::ranges::reverse(numbers.first(size));
    }
  }
}

}  // namespace multihead::rules
