/// \file
/// Reads and writes safetensors files, in the library multihead::safetensors
/// (huggingface.co/docs/safetensors, "Format"): eight bytes of header length, a JSON header, then
/// raw little-endian row-major data.
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

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

/// A tensor of a file.
struct SafetensorsEntry {
  /// All dtypes of the format, under its own names.
  enum class Type : uint8_t {
    kF32,         ///< 32-bit float
    kI32,         ///< 32-bit signed integer
    kBool,        ///< boolean, one byte
    kF16,         ///< IEEE 754 binary16
    kBF16,        ///< the upper half of an F32
    kF64,         ///< 64-bit float
    kI64,         ///< 64-bit signed integer
    kU64,         ///< 64-bit unsigned integer
    kU32,         ///< 32-bit unsigned integer
    kI16,         ///< 16-bit signed integer
    kU16,         ///< 16-bit unsigned integer
    kI8,          ///< 8-bit signed integer
    kU8,          ///< 8-bit unsigned integer
    kC64,         ///< a complex number of two F32
    kF8E5M2,      ///< arXiv:2209.05433
    kF8E4M3,      ///< arXiv:2209.05433
    kF8E5M2Fnuz,  ///< finite, without negative zero (arXiv:2206.02915)
    kF8E4M3Fnuz,  ///< likewise
    kF8E8M0,      ///< OCP Microscaling formats
    kF6E2M3,      ///< OCP Microscaling formats
    kF6E3M2,      ///< OCP Microscaling formats
    kF4,          ///< OCP Microscaling formats; two in a byte
  };
  Type type;                        ///< element type
  Dims shape;                       ///< outermost extent first
  std::span<const std::byte> data;  ///< row-major, in the byte order of this machine; a view
};

/// A parsed file: its bytes, and the name, type, shape and data of each tensor.
class Safetensors {
 public:
  /// No tensors; see parse() and read().
  Safetensors() = default;
  /// Movable, not copyable.
  Safetensors(Safetensors&&) noexcept = default;
  /// Movable, not copyable.
  Safetensors& operator=(Safetensors&&) noexcept = default;
  /// Cannot be copied: entries and state dicts are views of this object's memory.
  Safetensors(const Safetensors&) = delete;
  Safetensors& operator=(const Safetensors&) = delete;

  /// Errors: kFormat, naming the tensor and the problem (a header longer than the file or 100 MB, a
  /// name that occurs twice, an unknown dtype, offsets outside the data, overlapping or with gaps,
  /// a size that does not match the shape); kMemory. `result` is unchanged.
  static Status parse(std::vector<std::byte> bytes, Safetensors& result);
  /// Reads and parses a file of up to 1 GiB. Errors: as parse(), and kFormat if the file cannot be
  /// read.
  static Status read(const std::string& path, Safetensors& result);

  /// Returns views of the F32, F16 and BF16 tensors, and of the F64 tensors, which parse() rounded
  /// to the nearest f32. Leaves out integers, booleans, complex numbers, and floating point of 8
  /// bits or fewer, because the format does not store its scales. The views are valid until this
  /// object is destroyed or assigned to. Errors: kFormat, naming a tensor whose offset is not a
  /// multiple of its element size; kMemory.
  Status state_dict(StateDict& dict) const;

  /// Null if there is no tensor of that name.
  const SafetensorsEntry* find(const std::string& name) const;
  /// All tensors by name.
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }

 private:
  std::vector<std::byte> bytes_;
  std::map<std::string, SafetensorsEntry> entries_;
  // The F64 tensors as f32, one after another in the order of their names.
  std::unique_ptr<float[]> narrowed_;
};

/// The element type of a written file.
enum class SafetensorsType : uint8_t {
  kAsGiven,  ///< the type of each tensor
  kF32,      ///< 32-bit floats
  kF16,      ///< IEEE 754 binary16
  kBF16,     ///< the upper half of a float
};

/// Writes a file of all tensors of `dict`, converted to `type` (rounded to nearest, ties to even)
/// unless it is kAsGiven. Spaces after the header align the data to 8 bytes. Tensors with larger
/// elements come first, so that each is aligned to its element size; within one size they are in
/// the order of their names. Tensors of int8 can only be written as given, as I8. Errors: kFormat
/// (a name that is not UTF-8, or is "__metadata__"); kShape (a rank above 8, a negative extent, no
/// data); kOption (a `type` or dtype that does not exist); kMemory. Nothing is written on an error.
Status write_safetensors(const StateDict& dict, SafetensorsType type,
                         std::vector<std::byte>& bytes);
/// write_safetensors() to a file. Errors: also kFormat if the file cannot be written; it may then
/// be incomplete.
Status write_safetensors(const StateDict& dict, SafetensorsType type, const std::string& path);

}  // namespace multihead
MULTIHEAD_PUBLIC_END
