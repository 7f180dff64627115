#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "engine/error/guard.h"
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
  return dtype == DType::kF32 ? "F32" : dtype == DType::kF16 ? "F16" : "BF16";
}

// Returns the bits of a number converted to To: float, Float16 or BFloat16.
template <class To, class From>
auto bits_as(From from) {
  if constexpr (std::is_same_v<To, float>) {
    return std::bit_cast<uint32_t>(rules::to_float(from));
  } else if constexpr (std::is_same_v<To, From>) {
    return from.bits;  // keeps the payload of a NaN
  } else {
    return rules::from_float<To>(rules::to_float(from)).bits;
  }
}

// Writes one element as little-endian bytes.
void write_element(const ConstAnyTensor& from, int64_t at, DType type, std::byte*& to) {
  const auto put = [&](auto bits) {
    for (size_t i = 0; i < sizeof(bits); ++i) {
      *to++ = static_cast<std::byte>(bits >> (8 * i) & 0xFFU);
    }
  };
  rules::visit_element(from.dtype, [&]<class From>(std::type_identity<From>) {
    const From stored = static_cast<const From*>(from.data)[at];
    rules::visit_element(type, [&]<class To>(std::type_identity<To>) {
      if constexpr (!std::is_same_v<To, int8_t>) put(bits_as<To>(stored));
    });
  });
}

void write_tensor(const ConstAnyTensor& tensor, int axis, int64_t at, DType type, std::byte*& to) {
  if (axis == tensor.shape.rank()) return write_element(tensor, at, type, to);
  for (int64_t i = 0; i < tensor.shape[axis]; ++i) {
    write_tensor(tensor, axis + 1, at + i * tensor.strides[axis], type, to);
  }
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

// Enumerators must be 0 .. `last`, without gaps.
template <class Enum>
Status validate_number(const std::string& argument, Enum value, Enum last) {
  if (value <= last) return {};
  return {StatusCode::kOption, argument,
          "one of its " + std::to_string(static_cast<int>(last) + 1) + " values",
          "number " + std::to_string(static_cast<int>(value))};
}

Status validate_tensor(const std::string& key, const ConstAnyTensor& tensor) {
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
  MULTIHEAD_TRY(validate_number(name, tensor.dtype, DType::kBF16));
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

}  // namespace

Status write_safetensors(const StateDict& dict, SafetensorsType type,
                         std::vector<std::byte>& bytes) {
  return memory_guard([&]() -> Status {
    MULTIHEAD_TRY(validate_number("type", type, SafetensorsType::kBF16));
    std::vector<Placed> tensors;
    tensors.reserve(dict.size());
    for (const auto& [name, tensor] : dict) {
      MULTIHEAD_TRY(validate_tensor(name, tensor));
      tensors.push_back({&name, &tensor, dtype_of(type, tensor.dtype), 0, 0});
    }
    // Larger elements come first, so each tensor is aligned to its element size.
    uint64_t end = 0;
    for (const int64_t bytes_each : {4, 2}) {
      for (Placed& placed : tensors) {
        if (bytes_of(placed.dtype) != bytes_each) continue;
        placed.begin = end;
        end += static_cast<uint64_t>(placed.tensor->shape.elements() * bytes_each);
        placed.end = end;
        if (end > kMostBytes) return Status::out_of_memory(end);
      }
    }
    const std::string header = header_of(tensors);
    const uint64_t size = sizeof(uint64_t) + header.size() + end;
    std::vector<std::byte> file;
    if (size > file.max_size()) return Status::out_of_memory(size);
    file.resize(static_cast<size_t>(size));
    std::byte* to = file.data();
    for (size_t i = 0; i < sizeof(uint64_t); ++i) {
      *to++ = static_cast<std::byte>(static_cast<uint64_t>(header.size()) >> (8 * i) & 0xFFU);
    }
    std::byte* const data = std::transform(header.begin(), header.end(), to, [](char letter) {
      return static_cast<std::byte>(letter);
    });
    for (const Placed& placed : tensors) {
      // Skip tensors without elements: their other extents may be of any size.
      if (placed.begin == placed.end) continue;
      to = data + placed.begin;
      write_tensor(*placed.tensor, 0, 0, placed.dtype, to);
    }
    bytes = std::move(file);
    return {};
  });
}

Status write_safetensors(const StateDict& dict, SafetensorsType type, const std::string& path) {
  return memory_guard([&]() -> Status {
    std::vector<std::byte> bytes;
    MULTIHEAD_TRY(write_safetensors(dict, type, bytes));
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    file.close();
    return file ? Status() : format_error(path, kWritable, "a write error");
  });
}

Status nn::replace_safetensors(const StateDict& dict, const std::string& path) {
  return memory_guard([&]() -> Status {
    std::error_code error;
    const std::filesystem::file_status there = std::filesystem::status(path, error);
    if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there)) {
      return format_error(path, kWritable,
                          std::filesystem::is_directory(there) ? "a folder" : "a device");
    }
    const std::string beside = path + ".part";
    Status status = write_safetensors(dict, SafetensorsType::kAsGiven, beside);
    if (status.ok()) {
      std::filesystem::rename(beside, path, error);
      if (!error) return {};
      status = format_error(path, kWritable, error.message());
    } else if (status.argument() == beside) {
      status = format_error(path, kWritable, status.got());
    }
    std::filesystem::remove(beside, error);
    return status;
  });
}

}  // namespace multihead
