// The order of bytes in files.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <span>
#include <vector>

namespace multihead::testing {

inline constexpr bool kOrderOfFiles = std::endian::native == std::endian::little;

// The bytes of elements of `size` bytes as safetensors files have them, whatever the order of this
// processor.
inline std::vector<std::byte> little_endian(std::span<const std::byte> elements, size_t size) {
  std::vector<std::byte> bytes(elements.begin(), elements.end());
  if constexpr (!kOrderOfFiles) {
    for (size_t at = 0; at < bytes.size(); at += size) {
      std::ranges::reverse(std::span(bytes).subspan(at, size));
    }
  }
  return bytes;
}

}  // namespace multihead::testing
