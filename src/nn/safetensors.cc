#include "nn/safetensors.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace multihead {
namespace {

using nlohmann::json;

Status format_error(const std::string& what, const std::string& expected, const std::string& got) {
  return {StatusCode::kFormat, what, expected, got};
}

// In a few words: dump() of what is nested deeply would use up the stack.
std::string described(const json& value) {
  if (value.is_object()) return "an object";
  if (!value.is_array()) return value.dump(-1, ' ', true, json::error_handler_t::replace);
  std::string text = "[";
  for (size_t i = 0; i < value.size() && i < 9; ++i) {
    if (i > 0) text += ",";
    text += value[i].is_structured() ? "..." : described(value[i]);
  }
  return text + (value.size() > 9 ? ",...]" : "]");
}

struct TypeInfo {
  const char* name;
  SafetensorsEntry::Type type;
  uint64_t bytes;
};
constexpr TypeInfo kTypes[] = {{"F32", SafetensorsEntry::Type::kF32, 4},
                               {"I32", SafetensorsEntry::Type::kI32, 4},
                               {"BOOL", SafetensorsEntry::Type::kBool, 1}};

bool is_count(const json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= INT64_MAX;
}

// Product of the extents and the element's size, or nothing where it overflows.
std::optional<uint64_t> byte_size(const Dims& shape, uint64_t element) {
  uint64_t product = element;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const auto extent = static_cast<uint64_t>(shape[axis]);
    if (extent != 0 && product > UINT64_MAX / extent) return std::nullopt;
    product *= extent;
  }
  return product;
}

Status parse_entry(const std::string& name, const json& fields, std::span<const std::byte> data,
                   SafetensorsEntry& entry, std::pair<uint64_t, uint64_t>& range) {
  if (!fields.is_object() || !fields.contains("dtype") || !fields.contains("shape") ||
      !fields.contains("data_offsets") || !fields["dtype"].is_string()) {
    return format_error(name, "dtype, shape and data_offsets", described(fields));
  }
  const auto dtype = fields["dtype"].get<std::string>();
  const auto* const info = std::find_if(std::begin(kTypes), std::end(kTypes),
                                        [&](const TypeInfo& type) { return dtype == type.name; });
  if (info == std::end(kTypes)) return format_error(name, "dtype F32, I32 or BOOL", dtype);

  const json& shape = fields["shape"];
  if (!shape.is_array() || shape.size() > static_cast<size_t>(Dims::kMaxRank) ||
      !std::all_of(shape.begin(), shape.end(), is_count)) {
    return format_error(name, "a shape of at most 8 extents, none negative", described(shape));
  }
  Dims dims;
  for (const json& extent : shape) dims.push_back(extent.get<int64_t>());

  const json& offsets = fields["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !is_count(offsets[0]) ||
      !is_count(offsets[1]) || offsets[0].get<uint64_t>() > offsets[1].get<uint64_t>() ||
      offsets[1].get<uint64_t>() > data.size()) {
    return format_error(name, "data_offsets within " + std::to_string(data.size()) + " bytes",
                        described(offsets));
  }
  range = {offsets[0].get<uint64_t>(), offsets[1].get<uint64_t>()};
  const std::optional<uint64_t> size = byte_size(dims, info->bytes);
  if (!size || *size != range.second - range.first) {
    return format_error(name, "data of dtype " + dtype + " and shape " + dims.to_string(),
                        std::to_string(range.second - range.first) + " bytes");
  }
  entry = {info->type, dims, data.subspan(range.first, *size)};
  return {};
}

}  // namespace

Status Safetensors::parse(std::vector<std::byte> bytes, Safetensors& result) {
  uint64_t header_size = 0;
  if (bytes.size() < sizeof(header_size)) {
    return format_error("safetensors", "at least 8 bytes", std::to_string(bytes.size()));
  }
  for (size_t i = sizeof(header_size); i-- > 0;) {
    header_size = header_size << 8 | static_cast<uint64_t>(bytes[i]);
  }
  if (header_size > bytes.size() - sizeof(header_size)) {
    return format_error("safetensors header",
                        "within the file's " + std::to_string(bytes.size()) + " bytes",
                        std::to_string(header_size) + " bytes");
  }
  const auto* const text = reinterpret_cast<const char*>(bytes.data()) + sizeof(header_size);
  const json header = json::parse(text, text + header_size, nullptr, false);
  if (!header.is_object()) {
    return format_error("safetensors header", "a JSON object", "something else");
  }

  Safetensors parsed;
  parsed.bytes_ = std::move(bytes);
  const auto data = std::span<const std::byte>(parsed.bytes_)
                        .subspan(sizeof(header_size) + static_cast<size_t>(header_size));
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& [name, fields] : header.items()) {
    if (name == "__metadata__") continue;
    SafetensorsEntry entry{};
    if (Status status = parse_entry(name, fields, data, entry, ranges.emplace_back());
        !status.ok()) {
      return status;
    }
    parsed.entries_.emplace(name, entry);
  }
  std::sort(ranges.begin(), ranges.end());
  uint64_t end = 0;
  for (const auto& [first, last] : ranges) {
    if (first != end) {
      return format_error("safetensors data",
                          "tensors side by side, the next at " + std::to_string(end),
                          "one at " + std::to_string(first));
    }
    end = last;
  }
  if (end != data.size()) {
    return format_error("safetensors data", std::to_string(end) + " bytes",
                        std::to_string(data.size()));
  }
  result = std::move(parsed);
  return {};
}

Status Safetensors::read(const std::string& path, Safetensors& result) {
  // A directory opens too, and claims to hold 2^63 bytes.
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
}

const SafetensorsEntry* Safetensors::find(const std::string& name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

}  // namespace multihead
