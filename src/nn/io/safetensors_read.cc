#include "multihead/safetensors.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "engine/error/printable.h"
#include "nn/io/safetensors_format.h"
#include "nn/io/safetensors_header.h"
#include "rules/element.h"

namespace multihead {
namespace {

using engine::memory_guard;
using nn::format_error;
using Type = SafetensorsEntry::Type;

// Converts the F64 tensors to f32, in the order of the map; null if there are none.
Status narrow(const std::map<std::string, SafetensorsEntry>& entries,
              std::unique_ptr<float[]>& narrowed) {
  size_t count = 0;
  for (const auto& [name, entry] : entries) {
    if (entry.type == Type::kF64) count += entry.data.size() / sizeof(double);
  }
  if (count == 0) return {};
  std::unique_ptr<float[]> made(new (std::nothrow) float[count]);
  if (made == nullptr) return Status::out_of_memory(count * sizeof(float));
  float* to = made.get();
  for (const auto& [name, entry] : entries) {
    if (entry.type != Type::kF64) continue;
    for (size_t at = 0; at < entry.data.size(); at += sizeof(double)) {
      double value = 0;
      // memcpy, because elements of eight bytes may be unaligned.
      std::memcpy(&value, entry.data.data() + at, sizeof(double));
      *to++ = static_cast<float>(value);
    }
  }
  narrowed = std::move(made);
  return {};
}

std::optional<DType> viewed_as(Type type) {
  switch (type) {
    case Type::kF32:
    case Type::kF64:
      return DType::kF32;
    case Type::kF16:
      return DType::kF16;
    case Type::kBF16:
      return DType::kBF16;
    default:
      return std::nullopt;
  }
}

}  // namespace

Status Safetensors::parse(std::vector<std::byte> bytes, Safetensors& result) {
  return memory_guard([&]() -> Status {
    std::vector<nn::HeaderEntry> header;
    std::span<const std::byte> read_only;
    MULTIHEAD_TRY(nn::parse_safetensors_file(bytes, header, read_only));
    Safetensors parsed;
    parsed.bytes_ = std::move(bytes);
    const auto data = std::span<std::byte>(parsed.bytes_).last(read_only.size());
    for (nn::HeaderEntry& tensor : header) {
      const auto at = static_cast<size_t>(tensor.begin);
      const auto elements = data.subspan(at, static_cast<size_t>(tensor.end) - at);
      const uint64_t bits = tensor.type->bits;
      // Types of less than a byte have no order. A complex number is two numbers.
      if (bits >= 8) {
        rules::turn_numbers(
            elements, static_cast<size_t>(tensor.type->type == Type::kC64 ? bits / 16 : bits / 8));
      }
      parsed.entries_.emplace(std::move(tensor.name),
                              SafetensorsEntry{tensor.type->type, tensor.shape, elements});
    }
    MULTIHEAD_TRY(narrow(parsed.entries_, parsed.narrowed_));
    result = std::move(parsed);
    return {};
  });
}

Status Safetensors::read(const std::string& path, Safetensors& result) {
  return memory_guard([&]() -> Status {
    // Refuse directories: opening one succeeds, and its size reads as 2^63 bytes.
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) {
      return format_error(path, "a readable file", error ? error.message() : "something else");
    }
    constexpr uintmax_t kMostBytes = uintmax_t{1} << 30;
    const uintmax_t size = std::filesystem::file_size(path, error);
    if (error) return format_error(path, "a readable file", error.message());
    if (size > kMostBytes) {
      return format_error(path, "at most " + std::to_string(kMostBytes) + " bytes",
                          std::to_string(size));
    }
    std::ifstream file(path, std::ios::binary);
    std::vector<std::byte> bytes(static_cast<size_t>(size));
    file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (!file) return format_error(path, "a readable file", "a read error");
    return parse(std::move(bytes), result);
  });
}

const SafetensorsEntry* Safetensors::find(const std::string& name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

Status Safetensors::state_dict(StateDict& dict) const {
  return memory_guard([&]() -> Status {
    StateDict views;
    const float* narrowed = narrowed_.get();
    for (const auto& [name, entry] : entries_) {
      const std::optional<DType> dtype = viewed_as(entry.type);
      if (!dtype) continue;
      const void* data = entry.data.data();
      if (entry.type == Type::kF64) {
        data = narrowed;
        narrowed += entry.data.size() / sizeof(double);
      }
      const auto alignment = static_cast<uintptr_t>(bytes_of(*dtype));
      if (reinterpret_cast<uintptr_t>(data) % alignment != 0) {
        return format_error(engine::printable(name),
                            "data at a multiple of " + std::to_string(alignment) + " bytes",
                            "data beside it");
      }
      views.emplace(name,
                    ConstAnyTensor(data, *dtype, entry.shape, contiguous_strides(entry.shape)));
    }
    dict = std::move(views);
    return {};
  });
}

}  // namespace multihead
