#include "models/io/gguf.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "engine/error/printable.h"
#include "models/config_reader.h"
#include "models/stored_blocks.h"

namespace multihead::models {
// A namespace of its own, since files of a library are compiled together.
namespace gguf {
namespace {

// The largest counts in a header; a file with more is refused before its tensors are read.
constexpr uint64_t kMostTensors = 1 << 20, kMostSettings = 1 << 16;
constexpr uint64_t kMostAlignment = 1 << 20;

// ---- The bytes of the file, from the beginning on. ----

class Reader {
 public:
  explicit Reader(std::span<const std::byte> file) : file_(file) {}

  // Gives 0 beyond the end of the file, and sets `truncated`.
  template <class T>
  T number() {
    uint64_t bits = 0;
    for (const std::byte byte : take(sizeof(T))) {
      bits = (bits >> 8U) | (static_cast<uint64_t>(byte) << 56U);
    }
    bits >>= 64 - 8 * sizeof(T);
    if constexpr (sizeof(T) == 8) return std::bit_cast<T>(bits);
    if constexpr (sizeof(T) == 4) return std::bit_cast<T>(static_cast<uint32_t>(bits));
    if constexpr (sizeof(T) == 2) return std::bit_cast<T>(static_cast<uint16_t>(bits));
    if constexpr (sizeof(T) == 1) return std::bit_cast<T>(static_cast<uint8_t>(bits));
  }

  std::string_view text() {
    const auto bytes = take(number<uint64_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  std::span<const std::byte> take(uint64_t count) {
    if (truncated || count > file_.size() - at_) {
      truncated = true;
      return {};
    }
    const auto taken = file_.subspan(at_, static_cast<size_t>(count));
    at_ += taken.size();
    return taken;
  }

  uint64_t at() const { return at_; }
  bool truncated = false;

 private:
  std::span<const std::byte> file_;
  size_t at_ = 0;
};

// ---- Settings. ----

enum Type : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kText,
  kArray,
  kU64,
  kI64,
  kF64
};

ConfigValue number_value(double number) { return {ConfigValue::Kind::kNumber, number, {}}; }
ConfigValue flag_value(bool flag) { return {ConfigValue::Kind::kBool, flag ? 1.0 : 0.0, {}}; }
ConfigValue text_value(std::string text) { return {ConfigValue::Kind::kText, 0, std::move(text)}; }

std::optional<ConfigValue> read_value(Reader& reader, uint32_t type) {
  switch (type) {
    case kU8:
      return number_value(reader.number<uint8_t>());
    case kI8:
      return number_value(reader.number<int8_t>());
    case kU16:
      return number_value(reader.number<uint16_t>());
    case kI16:
      return number_value(reader.number<int16_t>());
    case kU32:
      return number_value(reader.number<uint32_t>());
    case kI32:
      return number_value(reader.number<int32_t>());
    case kF32:
      return number_value(static_cast<double>(reader.number<float>()));
    case kBool:
      return flag_value(reader.number<uint8_t>() != 0);
    case kText:
      return text_value(std::string(reader.text()));
    case kU64:
      return number_value(static_cast<double>(reader.number<uint64_t>()));
    case kI64:
      return number_value(static_cast<double>(reader.number<int64_t>()));
    case kF64:
      return number_value(reader.number<double>());
    default:
      return std::nullopt;
  }
}

// Passes over an array: no setting is made of it. The tokenizer's arrays are the largest part of
// the header.
bool skip_array(Reader& reader, int depth = 0) {
  constexpr int kMostDepth = 4;
  const auto type = reader.number<uint32_t>();
  const auto count = reader.number<uint64_t>();
  if (type == kArray && depth == kMostDepth) return false;
  for (uint64_t i = 0; i < count && !reader.truncated; ++i) {
    if (type == kArray ? !skip_array(reader, depth + 1) : !read_value(reader, type)) return false;
  }
  return true;
}

// Adds the elements of a short array of numbers, such as one for each layer.
void add_elements(Reader reader, const std::string& name, Config& settings) {
  constexpr uint64_t kMostElements = 1024;
  const auto type = reader.number<uint32_t>();
  const auto count = reader.number<uint64_t>();
  if (count > kMostElements || type == kText || type == kArray || name.starts_with("tokenizer."))
    return;
  for (uint64_t i = 0; i < count; ++i) {
    if (auto value = read_value(reader, type))
      settings.emplace(name + "." + std::to_string(i), std::move(*value));
  }
}

// The settings by their names; an array is null, and its elements have its name with their numbers.
Status read_settings(Reader& reader, uint64_t count, Config& settings) {
  for (uint64_t i = 0; i < count && !reader.truncated; ++i) {
    const std::string name(reader.text());
    const auto type = reader.number<uint32_t>();
    ConfigValue value;
    if (type == kArray) {
      const Reader elements = reader;
      if (!skip_array(reader)) return format_error(name, "an array of known types", "another one");
      if (!reader.truncated) add_elements(elements, name, settings);
    } else if (auto read = read_value(reader, type)) {
      value = std::move(*read);
    } else {
      return format_error(name, "a type of 0 to 12", std::to_string(type));
    }
    if (!settings.emplace(name, std::move(value)).second)
      return format_error(name, "every setting once", "it twice");
  }
  return {};
}

// ---- Tensors. ----

struct Tensor {
  StoredTensor stored;
  uint64_t offset = 0;
};

Status read_tensors(Reader& reader, uint64_t count, std::vector<Tensor>& tensors) {
  for (uint64_t i = 0; i < count && !reader.truncated; ++i) {
    auto& [stored, offset] = tensors.emplace_back();
    stored.name = std::string(reader.text());
    const auto rank = reader.number<uint32_t>();
    if (rank > 4) return format_error(stored.name, "at most 4 axes", std::to_string(rank));
    std::vector<int64_t> extents;
    uint64_t elements = 1;  // without axes of 0
    for (uint32_t axis = 0; axis < rank; ++axis) {
      const auto extent = reader.number<uint64_t>();
      constexpr uint64_t kMost = uint64_t{1} << 48U;
      if (extent > kMost / elements) {
        return format_error(stored.name, "at most 2^48 numbers", "more");
      }
      elements *= std::max<uint64_t>(1, extent);
      extents.push_back(static_cast<int64_t>(extent));
    }
    // The innermost axis comes first in the file.
    for (auto extent = extents.rbegin(); extent != extents.rend(); ++extent)
      stored.shape.push_back(*extent);
    stored.type = gguf_type_name(reader.number<uint32_t>());
    offset = reader.number<uint64_t>();
  }
  return {};
}

// Finds the bytes of a tensor; none if its type is not read, since its size is then unknown.
Status find_bytes(const Tensor& tensor, std::span<const std::byte> data,
                  std::span<const std::byte>& bytes) {
  const auto& [stored, offset] = tensor;
  const std::optional<Stored> type = stored_type(stored.type);
  if (!type) return {};
  const StoredForm& form = form_of(*type);
  const int64_t columns = stored.shape.rank() == 0 ? 1 : stored.shape[stored.shape.rank() - 1];
  if (columns % form.numbers != 0) {
    return format_error(stored.name,
                        "rows of a multiple of " + std::to_string(form.numbers) + " numbers in " +
                            std::string(form.name),
                        std::to_string(columns));
  }
  const uint64_t size = static_cast<uint64_t>(stored.shape.elements() / form.numbers) * form.bytes;
  if (offset > data.size() || size > data.size() - offset) {
    return format_error(
        engine::printable(stored.name),
        std::to_string(size) + " bytes from byte " + std::to_string(offset) + " of the tensors on",
        "a file with " + std::to_string(data.size()));
  }
  bytes = data.subspan(static_cast<size_t>(offset), static_cast<size_t>(size));
  return {};
}

Status read(std::span<const std::byte> file, GgufFile& read_file) {
  Reader reader(file);
  reader.take(4);
  const auto version = reader.number<uint32_t>();
  if (version != 2 && version != 3)
    return format_error("GGUF", "version 2 or 3", std::to_string(version));
  const auto count = reader.number<uint64_t>(), settings_count = reader.number<uint64_t>();
  if (count > kMostTensors || settings_count > kMostSettings) {
    return format_error("GGUF",
                        "at most " + std::to_string(kMostTensors) + " tensors and " +
                            std::to_string(kMostSettings) + " settings",
                        std::to_string(count) + " and " + std::to_string(settings_count));
  }
  Config settings;
  MULTIHEAD_TRY(read_settings(reader, settings_count, settings));
  std::vector<Tensor> tensors;
  if (!reader.truncated) MULTIHEAD_TRY(read_tensors(reader, count, tensors));
  const auto named = settings.find("general.alignment");
  const double alignment = named == settings.end() ? 32 : named->second.number;
  if (!(alignment >= 1 && alignment <= static_cast<double>(kMostAlignment)) ||
      alignment != std::floor(alignment)) {
    return format_error("general.alignment", "1 to " + std::to_string(kMostAlignment),
                        text_of(alignment));
  }
  reader.take((static_cast<uint64_t>(alignment) - reader.at() % static_cast<uint64_t>(alignment)) %
              static_cast<uint64_t>(alignment));
  if (reader.truncated)
    return format_error("GGUF", "the whole header",
                        "a file of " + std::to_string(file.size()) + " bytes that ends in it");
  settings["general.architecture"];  // so that is_gguf() is true
  GgufFile made;
  made.settings = std::move(settings);
  const auto data = file.subspan(static_cast<size_t>(reader.at()));
  for (Tensor& tensor : tensors) {
    MULTIHEAD_TRY(find_bytes(tensor, data, made.bytes.emplace_back()));
    made.tensors.push_back(std::move(tensor.stored));
  }
  read_file = std::move(made);
  return {};
}

}  // namespace
}  // namespace gguf

bool is_gguf_file(std::span<const std::byte> file) {
  return file.size() >= 4 && std::memcmp(file.data(), "GGUF", 4) == 0;
}

Status read_gguf(std::span<const std::byte> file, GgufFile& read) { return gguf::read(file, read); }

}  // namespace multihead::models
