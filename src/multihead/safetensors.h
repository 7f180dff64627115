// Reading and writing safetensors files (huggingface.co/docs/safetensors, format section): eight
// bytes of header length, a JSON header, raw little-endian row-major data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "multihead/export.h"
#include "multihead/state_dict.h"
#include "multihead/status.h"
#include "multihead/tensor.h"

namespace MULTIHEAD_PUBLIC multihead {

struct SafetensorsEntry {
  // All dtypes of the format, under its own names.
  enum class Type : uint8_t {
    kF32,
    kI32,
    kBool,
    kF16,
    kBF16,
    kF64,
    kI64,
    kU64,
    kU32,
    kI16,
    kU16,
    kI8,
    kU8,
    kC64,     // a complex number of two F32
    kF8E5M2,  // arXiv:2209.05433
    kF8E4M3,
    kF8E5M2Fnuz,
    kF8E4M3Fnuz,
    kF8E8M0,  // OCP Microscaling formats, as the next three
    kF6E2M3,
    kF6E3M2,
    kF4,  // two in a byte
  };
  Type type;
  Dims shape;
  std::span<const std::byte> data;
};

// The file's bytes and what its header says of them.
class Safetensors {
 public:
  Safetensors() = default;
  Safetensors(Safetensors&&) noexcept = default;
  Safetensors& operator=(Safetensors&&) noexcept = default;
  // Not copied: entries and state dict are views of this object's memory.
  Safetensors(const Safetensors&) = delete;
  Safetensors& operator=(const Safetensors&) = delete;

  // Takes over `bytes`. Errors: kFormat, naming the tensor and what is wrong with it (a header
  // beyond the file or 100 MB, a name twice in it, an unknown dtype, offsets that lie outside the
  // data, overlap or leave gaps, or a size that is not that of the shape); kMemory. `result` is
  // unchanged then.
  static Status parse(std::vector<std::byte> bytes, Safetensors& result);
  // Up to 1 GiB. Errors: those of parse(), and kFormat where there is no file that can be read.
  static Status read(const std::string& path, Safetensors& result);

  // Views of all tensors of F32, F16 and BF16, and of F64 as f32 (rounded to nearest; parse() made
  // those). Left out: integers, booleans, complex numbers, and floating point of 8 bits and fewer,
  // which means something only with scales that the format does not know. The views live as long as
  // this does and is not assigned to. Errors: kFormat, naming a tensor that does not lie at a
  // multiple of its element's size; kMemory.
  Status state_dict(StateDict& dict) const;

  // Null where there is none of that name.
  const SafetensorsEntry* find(const std::string& name) const;
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }

 private:
  std::vector<std::byte> bytes_;
  std::map<std::string, SafetensorsEntry> entries_;
  // The tensors of F64 as f32, side by side in the order of their names.
  std::unique_ptr<float[]> narrowed_;
};

enum class SafetensorsType : uint8_t { kAsGiven, kF32, kF16, kBF16 };

// A file of these tensors, every one of `type` (rounded to nearest, ties to even) or of its own.
// The header is padded with spaces so that the data is aligned to 8, and they lie in the order of
// their names, larger elements before smaller ones, so that each is aligned to its element.
// Errors: kFormat (a name that is not UTF-8, or `__metadata__`); kShape (a rank above 8, an extent
// that is negative, no data); kOption (a type or dtype of no name); kMemory. Nothing is written
// then.
Status write_safetensors(const StateDict& dict, SafetensorsType type,
                         std::vector<std::byte>& bytes);
// The same into a file. Errors: kFormat too where it cannot be written; the file may be incomplete
// then.
Status write_safetensors(const StateDict& dict, SafetensorsType type, const std::string& path);

}  // namespace multihead
