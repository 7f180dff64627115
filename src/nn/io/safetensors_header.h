// The header of a safetensors file: JSON with the name, type, shape and data offsets of each
// tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/safetensors.h"
#include "multihead/status.h"
#include "multihead/tensor.h"
#include "rules/shared.h"

namespace multihead::nn {

struct TypeInfo {
  const char* name;  // name of the type in the header
  SafetensorsEntry::Type type;
  uint64_t bits;
};

struct HeaderEntry {
  std::string name;
  const TypeInfo* type = nullptr;
  Dims shape;
  uint64_t begin = 0, end = 0;  // byte range in the data after the header
};

// Parses the header of a file with `data_bytes` of data, and checks that its tensors fill the data
// without overlaps or gaps. `tensors` are sorted by data offset. Errors: kFormat.
MULTIHEAD_SHARED Status parse_safetensors_header(std::string_view text, uint64_t data_bytes,
                                                 std::vector<HeaderEntry>& tensors);

// Reads the header of a whole file, and sets `data` to its bytes after the header. Errors: kFormat,
// which says what the file is if it is a kind of file that people have in its place.
MULTIHEAD_SHARED Status parse_safetensors_file(std::span<const std::byte> file,
                                               std::vector<HeaderEntry>& tensors,
                                               std::span<const std::byte>& data);

// What a file of another format is, and what to do; empty for other files.
MULTIHEAD_SHARED std::string_view kind_of_file(std::string_view begin);

}  // namespace multihead::nn
