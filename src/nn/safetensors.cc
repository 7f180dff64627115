#include "multihead/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/scratch.h"
#include "rules/half.h"

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
                               {"BOOL", SafetensorsEntry::Type::kBool, 1},
                               {"F16", SafetensorsEntry::Type::kF16, 2},
                               {"BF16", SafetensorsEntry::Type::kBF16, 2}};

// The format's own limit, for headers that are made to exhaust a parser.
constexpr uint64_t kMostHeaderBytes = 100'000'000;
constexpr const char* kMetadata = "__metadata__";

// The header's text as JSON, discarded where it is none; `twice` is a name that stands twice in one
// object, of which the parser keeps the last.
json parse_header(const char* begin, const char* end, std::optional<std::string>& twice) {
  // The names in each object that encloses the present one.
  std::vector<std::set<std::string>> open;
  const auto note = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) open.emplace_back();
    if (event == json::parse_event_t::object_end) open.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& name = value.get_ref<const std::string&>();
      if (!open.back().insert(name).second) twice = name;
    }
    return true;
  };
  return json::parse(begin, end, note, false);
}

bool is_text(const json& value) { return value.is_string(); }

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
  if (info == std::end(kTypes))
    return format_error(name, "dtype F32, F16, BF16, I32 or BOOL", dtype);

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
  const uint64_t most = std::min<uint64_t>(bytes.size() - sizeof(header_size), kMostHeaderBytes);
  if (header_size > most) {
    return format_error("safetensors header", "at most " + std::to_string(most) + " bytes",
                        std::to_string(header_size) + " bytes");
  }
  const auto* const text = reinterpret_cast<const char*>(bytes.data()) + sizeof(header_size);
  std::optional<std::string> twice;
  const json header = parse_header(text, text + header_size, twice);
  if (!header.is_object() || *text != '{') {
    return format_error("safetensors header", "a JSON object from its first byte on",
                        "something else");
  }
  if (twice) {
    return format_error("safetensors header", "every name once in its object",
                        described(*twice) + " twice");
  }

  Safetensors parsed;
  parsed.bytes_ = std::move(bytes);
  const auto data = std::span<const std::byte>(parsed.bytes_)
                        .subspan(sizeof(header_size) + static_cast<size_t>(header_size));
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& [name, fields] : header.items()) {
    if (name == kMetadata) {
      if (fields.is_object() && std::all_of(fields.begin(), fields.end(), is_text)) continue;
      return format_error(name, "an object of texts", described(fields));
    }
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

Status Safetensors::state_dict(StateDict& dict) const {
  StateDict views;
  for (const auto& [name, entry] : entries_) {
    using Type = SafetensorsEntry::Type;
    if (entry.type == Type::kI32 || entry.type == Type::kBool) continue;
    const DType dtype = entry.type == Type::kF32   ? DType::kF32
                        : entry.type == Type::kF16 ? DType::kF16
                                                   : DType::kBF16;
    const auto address = reinterpret_cast<uintptr_t>(entry.data.data());
    const auto alignment = static_cast<uintptr_t>(bytes_of(dtype));
    if (address % alignment != 0) {
      return format_error(name, "data at a multiple of " + std::to_string(alignment) + " bytes",
                          "data beside it");
    }
    views.emplace(name, ConstAnyTensor(entry.data.data(), dtype, entry.shape,
                                       contiguous_strides(entry.shape)));
  }
  dict = std::move(views);
  return {};
}

namespace {

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

// Of one element, in the bytes of a little-endian machine.
void write_element(const ConstAnyTensor& from, int64_t at, DType type, std::byte*& to) {
  const auto put = [&](auto bits) {
    for (size_t i = 0; i < sizeof(bits); ++i) {
      *to++ = static_cast<std::byte>(bits >> (8 * i) & 0xFFU);
    }
  };
  float value = 0;
  switch (from.dtype) {
    case DType::kF32:
      value = static_cast<const float*>(from.data)[at];
      break;
    case DType::kF16: {
      const Float16 half = static_cast<const Float16*>(from.data)[at];
      if (type == DType::kF16) return put(half.bits);
      value = rules::to_float(half);
      break;
    }
    case DType::kBF16: {
      const BFloat16 half = static_cast<const BFloat16*>(from.data)[at];
      if (type == DType::kBF16) return put(half.bits);
      value = rules::to_float(half);
      break;
    }
  }
  if (type == DType::kF16) return put(rules::to_float16(value).bits);
  if (type == DType::kBF16) return put(rules::to_bfloat16(value).bits);
  put(std::bit_cast<uint32_t>(value));
}

void write_tensor(const ConstAnyTensor& tensor, int axis, int64_t at, DType type, std::byte*& to) {
  if (axis == tensor.shape.rank()) return write_element(tensor, at, type, to);
  for (int64_t i = 0; i < tensor.shape[axis]; ++i) {
    write_tensor(tensor, axis + 1, at + i * tensor.strides[axis], type, to);
  }
}

}  // namespace

Status write_safetensors(const StateDict& dict, SafetensorsType type,
                         std::vector<std::byte>& bytes) {
  // Larger elements before smaller ones, so that each lies at a multiple of its size.
  std::vector<std::pair<std::string, ConstAnyTensor>> tensors(dict.begin(), dict.end());
  const auto bytes_each = [&](const ConstAnyTensor& tensor) {
    return bytes_of(dtype_of(type, tensor.dtype));
  };
  std::sort(tensors.begin(), tensors.end(), [&](const auto& a, const auto& b) {
    return std::pair(bytes_each(b.second), std::string_view(a.first)) <
           std::pair(bytes_each(a.second), std::string_view(b.first));
  });
  json header = json::object();
  uint64_t end = 0;
  for (const auto& [name, tensor] : tensors) {
    // dump() replaces what is no UTF-8, so that the name would be another.
    const json as_json = name;
    if (name == kMetadata ||
        json::parse(as_json.dump(-1, ' ', false, json::error_handler_t::replace), nullptr, false) !=
            as_json) {
      return format_error("name", "UTF-8 other than __metadata__",
                          as_json.dump(-1, ' ', true, json::error_handler_t::replace));
    }
    if (tensor.data == nullptr && tensor.shape.elements() != 0) {
      return format_error(name, "data for " + tensor.shape.to_string(), "none");
    }
    const DType dtype = dtype_of(type, tensor.dtype);
    json extents = json::array();
    for (int axis = 0; axis < tensor.shape.rank(); ++axis) extents.push_back(tensor.shape[axis]);
    const uint64_t begin = end;
    end += static_cast<uint64_t>(tensor.shape.elements() * bytes_of(dtype));
    header[name] = {{"dtype", format_name(dtype)},
                    {"shape", std::move(extents)},
                    {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t size = sizeof(uint64_t) + text.size() + end;
  engine::Buffer probe;
  if (!probe.reserve(size)) return Status::out_of_memory(size);
  probe = {};
  std::vector<std::byte> file(static_cast<size_t>(size));
  std::byte* to = file.data();
  for (size_t i = 0; i < sizeof(uint64_t); ++i) {
    *to++ = static_cast<std::byte>(static_cast<uint64_t>(text.size()) >> (8 * i) & 0xFFU);
  }
  to = std::transform(text.begin(), text.end(), to,
                      [](char letter) { return static_cast<std::byte>(letter); });
  for (const auto& [name, tensor] : tensors) {
    write_tensor(tensor, 0, 0, dtype_of(type, tensor.dtype), to);
  }
  bytes = std::move(file);
  return {};
}

Status write_safetensors(const StateDict& dict, SafetensorsType type, const std::string& path) {
  std::vector<std::byte> bytes;
  if (Status status = write_safetensors(dict, type, bytes); !status.ok()) return status;
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  file.close();
  return file ? Status() : format_error(path, "a file that can be written", "a write error");
}

}  // namespace multihead
