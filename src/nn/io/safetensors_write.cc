#if defined(_WIN32)
#include <io.h>
#else
#include <unistd.h>
#endif

#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "engine/error/printable.h"
#include "multihead/safetensors.h"
#include "nn/io/safetensors_format.h"
#include "rules/element.h"

namespace multihead {
namespace {

using engine::memory_guard;
using nn::format_error;

constexpr const char* kWritable = "a file that can be written";

DType dtype_of(SafetensorsType type, DType given) {
  switch (type) {
    case SafetensorsType::kF32:
      return DType::kF32;
    case SafetensorsType::kF16:
      return DType::kF16;
    case SafetensorsType::kBF16:
      return DType::kBF16;
    case SafetensorsType::kAsGiven:
      break;
  }
  return given;
}

const char* format_name(DType dtype) {
  if (dtype == DType::kInt8) return "I8";
  return dtype == DType::kF32 ? "F32" : dtype == DType::kF16 ? "F16" : "BF16";
}

// Returns the bits of a number converted to To: float, Float16 or BFloat16.
template <class To, class From>
auto bits_as(From from) {
  if constexpr (std::is_same_v<From, int8_t>) {
    return static_cast<uint8_t>(from);  // is not converted
  } else if constexpr (std::is_same_v<To, float>) {
    return std::bit_cast<uint32_t>(rules::to_float(from));
  } else if constexpr (std::is_same_v<To, From>) {
    return from.bits;  // keeps the payload of a NaN
  } else {
    return rules::from_float<To>(rules::to_float(from)).bits;
  }
}

// Takes the bytes of a file in order. room() returns memory for the next bytes, or null if they
// cannot be written.
class MemoryOutput {
 public:
  explicit MemoryOutput(std::vector<std::byte>& bytes) : to_(bytes.data()) {}
  std::byte* room(size_t bytes) { return std::exchange(to_, to_ + bytes); }

 private:
  std::byte* to_;
};

class FileOutput {
 public:
  // Without `replaces`, the file must not exist.
  FileOutput(const std::string& path, bool replaces)
      : file_(std::fopen(path.c_str(), replaces ? "wb" : "wbx")) {}
  ~FileOutput() {
    if (file_ != nullptr) std::fclose(file_);
  }
  FileOutput(const FileOutput&) = delete;
  FileOutput& operator=(const FileOutput&) = delete;

  bool is_open() const { return file_ != nullptr; }
  std::byte* room(size_t bytes) {
    if (filled_ + bytes > sizeof(buffer_) && !flush()) return nullptr;
    return buffer_ + std::exchange(filled_, filled_ + bytes);
  }
  // Returns false if any byte could not be written. With `reaches_disk`, waits until the disk has
  // the file.
  bool close(bool reaches_disk) {
    bool written = flush() && std::fflush(file_) == 0;
#if defined(_WIN32)
    if (written && reaches_disk) written = _commit(_fileno(file_)) == 0;
#else
    if (written && reaches_disk) written = fsync(fileno(file_)) == 0;
#endif
    return std::fclose(std::exchange(file_, nullptr)) == 0 && written;
  }

 private:
  bool flush() {
    const size_t count = std::exchange(filled_, 0);
    return std::fwrite(buffer_, 1, count, file_) == count;
  }

  std::FILE* file_;
  size_t filled_ = 0;
  std::byte buffer_[size_t{1} << 16];
};

// Writes little-endian bytes.
template <class Output, class Bits>
bool write_bits(Output& output, Bits bits) {
  std::byte* const to = output.room(sizeof(bits));
  if (to == nullptr) return false;
  for (size_t i = 0; i < sizeof(bits); ++i) to[i] = static_cast<std::byte>(bits >> (8 * i) & 0xFFU);
  return true;
}

template <class Output>
bool write_element(const ConstAnyTensor& from, int64_t at, DType type, Output& output) {
  bool written = true;
  rules::visit_element(from.dtype, [&]<class From>(std::type_identity<From>) {
    const From stored = static_cast<const From*>(from.data)[at];
    rules::visit_element(type, [&]<class To>(std::type_identity<To>) {
      if constexpr (!std::is_same_v<To, int8_t> || std::is_same_v<To, From>)
        written = write_bits(output, bits_as<To>(stored));
    });
  });
  return written;
}

template <class Output>
bool write_tensor(const ConstAnyTensor& tensor, int axis, int64_t at, DType type, Output& output) {
  if (axis == tensor.shape.rank()) return write_element(tensor, at, type, output);
  for (int64_t i = 0; i < tensor.shape[axis]; ++i) {
    if (!write_tensor(tensor, axis + 1, at + i * tensor.strides[axis], type, output)) return false;
  }
  return true;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = engine::utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

// Appends a JSON string with its quotes.
void append_text(std::string_view text, std::string& to) {
  constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  constexpr char kDigits[] = "0123456789abcdef";
  to += '"';
  for (const char letter : text) {
    const size_t at = kEscaped.find(letter);
    if (at != std::string_view::npos) {
      to += '\\';
      to += kLetters[at];
    } else if (static_cast<unsigned char>(letter) < 0x20) {
      to += "\\u00";
      to += kDigits[static_cast<unsigned char>(letter) >> 4U];
      to += kDigits[static_cast<unsigned char>(letter) & 0xFU];
    } else {
      to += letter;
    }
  }
  to += '"';
}

// More than any memory, and small enough that the sum of two does not overflow.
constexpr uint64_t kMostBytes = uint64_t{1} << 62U;

// Larger elements come first, so each tensor is aligned to its element size.
constexpr int64_t kElementBytes[] = {4, 2, 1};

// Enumerators must be 0 .. `last`, without gaps.
template <class Enum>
Status validate_number(const std::string& argument, Enum value, Enum last) {
  if (value <= last) return {};
  return {StatusCode::kOption, argument,
          "one of its " + std::to_string(static_cast<int>(last) + 1) + " values",
          "number " + std::to_string(static_cast<int>(value))};
}

Status validate_tensor(const std::string& key, const ConstAnyTensor& tensor, SafetensorsType type) {
  const std::string name = engine::printable(key);
  if (key == nn::kSafetensorsMetadata || !is_utf8(key)) {
    return format_error("name", "UTF-8 other than __metadata__", name);
  }
  const auto shape_error = [&](const std::string& expected, const std::string& got) -> Status {
    return {StatusCode::kShape, name, expected, got};
  };
  const int rank = tensor.shape.rank();
  if (rank > Dims::kMaxRank) {
    return shape_error("at most 8 extents", "rank " + std::to_string(rank));
  }
  if (tensor.strides.rank() != rank) {
    return shape_error("as many strides as extents, " + std::to_string(rank),
                       std::to_string(tensor.strides.rank()) + " strides");
  }
  for (int axis = 0; axis < rank; ++axis) {
    if (tensor.shape[axis] < 0) {
      return shape_error("extents of 0 or more", tensor.shape.to_string());
    }
  }
  const DType last = type == SafetensorsType::kAsGiven ? DType::kInt8 : DType::kBF16;
  MULTIHEAD_TRY(validate_number(name, tensor.dtype, last));
  if (nn::bit_size(tensor.shape, 32).value_or(kMostBytes) >= kMostBytes) {
    return shape_error("fewer than 2^57 elements", tensor.shape.to_string());
  }
  if (tensor.data == nullptr && tensor.shape.elements() != 0) {
    return shape_error("data for " + tensor.shape.to_string(), "none");
  }
  return {};
}

struct Placed {
  const std::string* name;
  const ConstAnyTensor* tensor;
  DType dtype;
  uint64_t begin, end;  // byte range of its data
};

// The header for the tensors in the order of their names, padded to a multiple of eight bytes.
std::string header_of(const std::vector<Placed>& tensors) {
  std::string text = "{";
  for (const Placed& placed : tensors) {
    if (text.size() > 1) text += ',';
    append_text(*placed.name, text);
    text += ":{\"data_offsets\":[" + std::to_string(placed.begin) + "," +
            std::to_string(placed.end) + "],\"dtype\":\"" + format_name(placed.dtype) +
            "\",\"shape\":[";
    const Dims& shape = placed.tensor->shape;
    for (int axis = 0; axis < shape.rank(); ++axis) {
      text += (axis > 0 ? "," : "") + std::to_string(shape[axis]);
    }
    text += "]}";
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

// A checked file: where each tensor lies, and the size of everything.
struct Layout {
  std::vector<Placed> tensors;  // in the order of their names
  std::string header;
  uint64_t bytes;
};

Status lay_out(const StateDict& dict, SafetensorsType type, Layout& layout) {
  MULTIHEAD_TRY(validate_number("type", type, SafetensorsType::kBF16));
  layout.tensors.reserve(dict.size());
  for (const auto& [name, tensor] : dict) {
    MULTIHEAD_TRY(validate_tensor(name, tensor, type));
    layout.tensors.push_back({&name, &tensor, dtype_of(type, tensor.dtype), 0, 0});
  }
  uint64_t end = 0;
  for (const int64_t bytes_each : kElementBytes) {
    for (Placed& placed : layout.tensors) {
      if (bytes_of(placed.dtype) != bytes_each) continue;
      placed.begin = end;
      end += static_cast<uint64_t>(placed.tensor->shape.elements() * bytes_each);
      placed.end = end;
      if (end > kMostBytes) return Status::out_of_memory(end);
    }
  }
  layout.header = header_of(layout.tensors);
  layout.bytes = sizeof(uint64_t) + layout.header.size() + end;
  return {};
}

// Returns false if the output could not take all bytes.
template <class Output>
bool write_file(const Layout& layout, Output& output) {
  if (!write_bits(output, static_cast<uint64_t>(layout.header.size()))) return false;
  for (const char letter : layout.header) {
    if (!write_bits(output, static_cast<uint8_t>(letter))) return false;
  }
  for (const int64_t bytes_each : kElementBytes) {
    for (const Placed& placed : layout.tensors) {
      // Skip tensors without elements: their other extents may be of any size.
      if (bytes_of(placed.dtype) != bytes_each || placed.begin == placed.end) continue;
      if (!write_tensor(*placed.tensor, 0, 0, placed.dtype, output)) return false;
    }
  }
  return true;
}

Status write_error(const std::string& path, const std::string& what = "a write error") {
  return format_error(path, kWritable, what);
}

}  // namespace

Status write_safetensors(const StateDict& dict, SafetensorsType type,
                         std::vector<std::byte>& bytes) {
  return memory_guard([&]() -> Status {
    Layout layout;
    MULTIHEAD_TRY(lay_out(dict, type, layout));
    std::vector<std::byte> file;
    if (layout.bytes > file.max_size()) return Status::out_of_memory(layout.bytes);
    file.resize(static_cast<size_t>(layout.bytes));
    MemoryOutput output(file);
    write_file(layout, output);
    bytes = std::move(file);
    return {};
  });
}

Status write_safetensors(const StateDict& dict, SafetensorsType type, const std::string& path) {
  return memory_guard([&]() -> Status {
    Layout layout;
    MULTIHEAD_TRY(lay_out(dict, type, layout));
    const auto file = std::make_unique<FileOutput>(path, true);
    const bool written = file->is_open() && write_file(layout, *file) && file->close(false);
    return written ? Status() : write_error(path);
  });
}

Status nn::replace_safetensors(const StateDict& dict, const std::string& path) {
  namespace fs = std::filesystem;
  return memory_guard([&]() -> Status {
    std::error_code error;
    const fs::file_status there = fs::status(path, error);
    if (fs::exists(there) && !fs::is_regular_file(there)) {
      return write_error(path, fs::is_directory(there) ? "a folder" : "a device");
    }
    // A link stays: the file that it points to is replaced.
    fs::path to = path;
    if (fs::is_symlink(fs::symlink_status(to, error))) to = fs::weakly_canonical(to, error);
    Layout layout;
    MULTIHEAD_TRY(lay_out(dict, SafetensorsType::kAsGiven, layout));
    // Another saver may be writing a file of this name, or a crash may have left it.
    std::unique_ptr<FileOutput> file;
    fs::path from;
    bool is_taken = true;
    for (int number = 0; number < 16 && is_taken; ++number) {
      from = to;
      from += "." + std::to_string(number) + ".part";
      file = std::make_unique<FileOutput>(from.string(), false);
      is_taken = !file->is_open() && errno == EEXIST;
    }
    if (is_taken) return write_error(path, "unfinished files beside it, such as " + from.string());
    if (!file->is_open()) return write_error(path);
    // Nothing is allocated until the second file is gone.
    error.clear();
    const bool written = write_file(layout, *file) && file->close(true);
    if (written) fs::rename(from, to, error);
    if (written && !error) return {};
    file.reset();  // some systems delete no file that is open
    std::error_code ignored;
    fs::remove(from, ignored);
    return written ? write_error(path, error.message()) : write_error(path);
  });
}

}  // namespace multihead
