// Reading and writing safetensors files (huggingface.co/docs/safetensors, format section): eight
// bytes of header length, a JSON header, raw little-endian row-major data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "multihead/export.h"
#include "multihead/state_dict.h"
#include "multihead/status.h"
#include "multihead/tensor.h"

namespace MULTIHEAD_PUBLIC multihead {

struct SafetensorsEntry {
  enum class Type : uint8_t { kF32, kI32, kBool, kF16, kBF16 };
  Type type;
  Dims shape;
  std::span<const std::byte> data;
};

// The file's bytes and what its header says of them.
class Safetensors {
 public:
  // Takes over `bytes`. Errors: kFormat, naming the tensor and what is wrong with it (a header
  // beyond the file or 100 MB, a name twice in it, an unknown dtype, offsets that lie outside the
  // data, overlap or leave gaps, or a size that is not that of the shape). `result` is unchanged
  // then.
  static Status parse(std::vector<std::byte> bytes, Safetensors& result);
  // Up to 1 GiB. Errors: those of parse(), and kFormat where there is no file that can be read.
  static Status read(const std::string& path, Safetensors& result);

  // Views of all tensors of floating point; they live as long as this does and is not assigned to.
  // Errors: kFormat, naming a tensor that does not lie at a multiple of its element's size.
  Status state_dict(StateDict& dict) const;

  // Null where there is none of that name.
  const SafetensorsEntry* find(const std::string& name) const;
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }

 private:
  std::vector<std::byte> bytes_;
  std::map<std::string, SafetensorsEntry> entries_;
};

enum class SafetensorsType : uint8_t { kAsGiven, kF32, kF16, kBF16 };

// A file of these tensors, every one of `type` (rounded to nearest, ties to even) or of its own.
// The header is padded with spaces so that the data is aligned to 8, and they lie in the order of
// their names, larger elements before smaller ones, so that each is aligned to its element.
// Errors: kFormat (a name that is not UTF-8, or `__metadata__`), kMemory.
Status write_safetensors(const StateDict& dict, SafetensorsType type,
                         std::vector<std::byte>& bytes);
// The same into a file. Errors: kFormat too where it cannot be written.
Status write_safetensors(const StateDict& dict, SafetensorsType type, const std::string& path);

}  // namespace multihead
