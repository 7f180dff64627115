// The order of bytes in files.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "rules/element.h"

namespace multihead::testing {

// The bytes of elements of `size` bytes as safetensors files have them, whatever the order of this
// processor.
inline std::vector<std::byte> little_endian(std::span<const std::byte> elements, size_t size) {
  std::vector<std::byte> bytes(elements.begin(), elements.end());
  rules::turn_numbers(bytes, size);
  return bytes;
}

}  // namespace multihead::testing
