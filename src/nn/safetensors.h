// Reading safetensors files (huggingface.co/docs/safetensors, format section): eight bytes of
// header length, a JSON header, raw little-endian row-major data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "multihead/status.h"
#include "multihead/tensor.h"

namespace multihead {

struct SafetensorsEntry {
  enum class Type : uint8_t { kF32, kI32, kBool };
  Type type;
  Dims shape;
  std::span<const std::byte> data;
};

// The file's bytes and what its header says of them.
class Safetensors {
 public:
  // Takes over `bytes`. Errors: kFormat, naming the tensor and what is wrong with it (a
  // header beyond the file, an unknown dtype, offsets that lie outside the data, overlap or
  // leave gaps, or a size that is not that of the shape). `result` is unchanged then.
  static Status parse(std::vector<std::byte> bytes, Safetensors& result);
  static Status read(const std::string& path, Safetensors& result);

  // Null where there is none of that name.
  const SafetensorsEntry* find(const std::string& name) const;
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }

 private:
  std::vector<std::byte> bytes_;
  std::map<std::string, SafetensorsEntry> entries_;
};

}  // namespace multihead
