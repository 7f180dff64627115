// Shared by the reader and the writer of safetensors files.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "multihead/state_dict.h"
#include "multihead/status.h"
#include "multihead/tensor.h"

namespace multihead::nn {

// Key of the metadata in the header: an object of strings.
inline constexpr const char* kSafetensorsMetadata = "__metadata__";

inline Status format_error(const std::string& what, const std::string& expected,
                           const std::string& got) {
  return {StatusCode::kFormat, what, expected, got};
}

// Writes all tensors of `dict` to a second file, waits until the disk has it, and then renames it,
// so that a crash or an error leaves the old file intact. Replaces the file that a link points to.
// Refuses an existing path that is not a regular file, such as a
// device, because renaming would replace it. Errors: as write_safetensors().
Status replace_safetensors(const StateDict& dict, const std::string& path);

// Size in bits of a tensor whose extents are not negative; nullopt if the number overflows 64 bits.
inline std::optional<uint64_t> bit_size(const Dims& shape, uint64_t element_bits) {
  uint64_t product = element_bits;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const auto extent = static_cast<uint64_t>(shape[axis]);
    if (extent != 0 && product > std::numeric_limits<uint64_t>::max() / extent) return std::nullopt;
    product *= extent;
  }
  return product;
}

}  // namespace multihead::nn
