#include "multihead/safetensors.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/guard.h"
#include "nn/safetensors_format.h"

namespace multihead {
namespace {

using engine::memory_guard;
using nlohmann::json;
using nn::format_error;
using Type = SafetensorsEntry::Type;

struct TypeInfo {
  const char* name;
  Type type;
  uint64_t bits;
};
constexpr TypeInfo kTypes[] = {{"F64", Type::kF64, 64},
                               {"F32", Type::kF32, 32},
                               {"F16", Type::kF16, 16},
                               {"BF16", Type::kBF16, 16},
                               {"I64", Type::kI64, 64},
                               {"I32", Type::kI32, 32},
                               {"I16", Type::kI16, 16},
                               {"I8", Type::kI8, 8},
                               {"U64", Type::kU64, 64},
                               {"U32", Type::kU32, 32},
                               {"U16", Type::kU16, 16},
                               {"U8", Type::kU8, 8},
                               {"BOOL", Type::kBool, 8},
                               {"C64", Type::kC64, 64},
                               {"F8_E5M2", Type::kF8E5M2, 8},
                               {"F8_E4M3", Type::kF8E4M3, 8},
                               {"F8_E5M2FNUZ", Type::kF8E5M2Fnuz, 8},
                               {"F8_E4M3FNUZ", Type::kF8E4M3Fnuz, 8},
                               {"F8_E8M0", Type::kF8E8M0, 8},
                               {"F6_E2M3", Type::kF6E2M3, 6},
                               {"F6_E3M2", Type::kF6E3M2, 6},
                               {"F4", Type::kF4, 4}};

const TypeInfo* type_named(std::string_view name) {
  const auto* const info = std::find_if(std::begin(kTypes), std::end(kTypes),
                                        [&](const TypeInfo& type) { return name == type.name; });
  return info == std::end(kTypes) ? nullptr : info;
}

std::string type_names() {
  std::string names;
  for (const TypeInfo& type : kTypes) names += (names.empty() ? "" : ", ") + std::string(type.name);
  return names;
}

// The format's own limit, for headers that are made to exhaust a parser.
constexpr uint64_t kMostHeaderBytes = 100'000'000;

// One tensor as the header describes it.
struct Described {
  std::string name;
  const TypeInfo* type = nullptr;
  Dims shape;
  uint64_t begin = 0, end = 0;
};

// Takes the header's tokens as they are parsed. There is no tree of the JSON: its destructor needs
// memory, and a file can make it a hundred times as large as itself. Every function returns false
// to stop, and `status` says why.
class HeaderParser final : public json::json_sax_t {
 public:
  explicit HeaderParser(uint64_t data_bytes) : data_bytes_(data_bytes) {}

  Status status;
  std::vector<Described> tensors;

  bool null() override { return scalar("null"); }
  bool boolean(bool /*value*/) override { return scalar("a boolean"); }
  bool number_integer(number_integer_t value) override { return scalar(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    if (place() == Place::kShape && value <= kMostExtent &&
        tensor().shape.rank() < Dims::kMaxRank) {
      tensor().shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place() == Place::kOffsets && offsets_ < 2) {
      (offsets_++ == 0 ? tensor().begin : tensor().end) = value;
      return true;
    }
    return scalar(std::to_string(value));
  }
  bool number_float(number_float_t /*value*/, const string_t& text) override {
    return scalar(text);
  }
  bool string(string_t& value) override {
    if (place() == Place::kMetadata) return true;
    if (place() == Place::kTensor && field_ == "dtype") {
      tensor().type = type_named(value);
      if (tensor().type != nullptr) return true;
      return stop(tensor().name, "a dtype out of " + type_names(), value);
    }
    return scalar("\"" + value + "\"");
  }
  bool binary(binary_t& /*value*/) override { return scalar("binary data"); }  // not in JSON text

  bool key(string_t& name) override {
    if (!names_.back().insert(name).second) {
      return stop("safetensors header", "every name once in its object", "\"" + name + "\" twice");
    }
    if (place() == Place::kHeader) name_ = name;
    if (place() == Place::kTensor) field_ = name;
    return true;
  }

  bool start_object(size_t /*size*/) override {
    names_.emplace_back();
    if (places_.empty()) return enter(Place::kHeader);
    if (place() == Place::kHeader && name_ == nn::kSafetensorsMetadata) {
      return enter(Place::kMetadata);
    }
    if (place() == Place::kHeader) {
      tensors.emplace_back().name = name_;
      has_shape_ = has_offsets_ = false;
      return enter(Place::kTensor);
    }
    return scalar("an object") && enter(Place::kIgnored);
  }
  bool end_object() override {
    names_.pop_back();
    const Place left = place();
    places_.pop_back();
    return left != Place::kTensor || end_tensor();
  }

  bool start_array(size_t /*size*/) override {
    if (place() == Place::kTensor && field_ == "shape") {
      has_shape_ = true;
      return enter(Place::kShape);
    }
    if (place() == Place::kTensor && field_ == "data_offsets") {
      has_offsets_ = true;
      offsets_ = 0;
      return enter(Place::kOffsets);
    }
    return scalar("an array") && enter(Place::kIgnored);
  }
  bool end_array() override {
    const Place left = place();
    places_.pop_back();
    if (left != Place::kOffsets) return true;
    const Described& t = tensor();
    if (offsets_ == 2 && t.begin <= t.end && t.end <= data_bytes_) return true;
    return stop(t.name, offsets_expected(),
                offsets_ < 2 ? std::to_string(offsets_) + " of them"
                             : "[" + std::to_string(t.begin) + "," + std::to_string(t.end) + "]");
  }

  bool parse_error(size_t /*at*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return stop("safetensors header", "a JSON object from its first byte on", "something else");
  }

 private:
  // What encloses the present token.
  enum class Place : uint8_t { kOutside, kHeader, kMetadata, kTensor, kShape, kOffsets, kIgnored };
  static constexpr uint64_t kMostExtent = std::numeric_limits<int64_t>::max();

  Place place() const { return places_.empty() ? Place::kOutside : places_.back(); }
  bool enter(Place place) {
    places_.push_back(place);
    return true;
  }
  Described& tensor() { return tensors.back(); }

  bool stop(const std::string& what, const std::string& expected, const std::string& got) {
    status = format_error(what, expected, got);
    return false;
  }
  std::string offsets_expected() const {
    return "data_offsets within " + std::to_string(data_bytes_) + " bytes";
  }

  // A value that is none of those that are read: wrong where one of those belongs, else of a field
  // that the format may get one day.
  bool scalar(const std::string& got) {
    switch (place()) {
      case Place::kHeader:
        return name_ == nn::kSafetensorsMetadata
                   ? stop(name_, "an object of texts", got)
                   : stop(name_, "dtype, shape and data_offsets", got);
      case Place::kMetadata:
        return stop(nn::kSafetensorsMetadata, "an object of texts", got + " in it");
      case Place::kShape:
        return stop(tensor().name, kShapeExpected, got + " in it");
      case Place::kOffsets:
        return stop(tensor().name, offsets_expected(), got + " in it");
      case Place::kTensor:
        if (field_ == "dtype") return stop(tensor().name, "a text as dtype", got);
        if (field_ == "shape") return stop(tensor().name, kShapeExpected, got);
        if (field_ == "data_offsets") return stop(tensor().name, offsets_expected(), got);
        return true;
      case Place::kOutside:
        return stop("safetensors header", "a JSON object from its first byte on", got);
      case Place::kIgnored:
        break;
    }
    return true;
  }
  static constexpr const char* kShapeExpected = "a shape of at most 8 extents, none negative";

  bool end_tensor() {
    const Described& t = tensor();
    if (t.type == nullptr || !has_shape_ || !has_offsets_) {
      return stop(t.name, "dtype, shape and data_offsets",
                  std::string("no ") + (t.type == nullptr ? "dtype"
                                        : has_shape_      ? "data_offsets"
                                                          : "shape"));
    }
    const std::optional<uint64_t> bits = nn::bit_size(t.shape, t.type->bits);
    if (bits && *bits % 8 == 0 && *bits / 8 == t.end - t.begin) return true;
    return stop(t.name,
                "data of dtype " + std::string(t.type->name) + " and shape " + t.shape.to_string(),
                std::to_string(t.end - t.begin) + " bytes");
  }

  uint64_t data_bytes_;
  std::vector<Place> places_;
  std::vector<std::set<std::string>> names_;  // in each object that encloses the present token
  std::string name_, field_;
  bool has_shape_ = false, has_offsets_ = false;
  int offsets_ = 0;
};

// Side by side from the first byte to the last.
Status validate_places(std::vector<Described>& tensors, uint64_t data_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const Described& a, const Described& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t end = 0;
  for (const Described& tensor : tensors) {
    if (tensor.begin != end) {
      return format_error("safetensors data",
                          "tensors side by side, the next at " + std::to_string(end),
                          "one at " + std::to_string(tensor.begin));
    }
    end = tensor.end;
  }
  if (end == data_bytes) return {};
  return format_error("safetensors data", std::to_string(end) + " bytes",
                      std::to_string(data_bytes));
}

// The tensors of F64 as f32, in the order of the map; null where there are none.
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
      // A tensor of eight bytes may lie anywhere.
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
    Safetensors parsed;
    parsed.bytes_ = std::move(bytes);
    const auto data = std::span<const std::byte>(parsed.bytes_)
                          .subspan(sizeof(header_size) + static_cast<size_t>(header_size));
    const auto* const text =
        reinterpret_cast<const char*>(parsed.bytes_.data()) + sizeof(header_size);
    HeaderParser header(data.size());
    // Blanks in front are JSON, but not the format.
    if (header_size == 0 || *text != '{') {
      return format_error("safetensors header", "a JSON object from its first byte on",
                          "something else");
    }
    if (!json::sax_parse(text, text + header_size, &header)) return header.status;
    if (Status status = validate_places(header.tensors, data.size()); !status.ok()) return status;
    for (Described& tensor : header.tensors) {
      const auto at = static_cast<size_t>(tensor.begin);
      parsed.entries_.emplace(
          std::move(tensor.name),
          SafetensorsEntry{tensor.type->type, tensor.shape,
                           data.subspan(at, static_cast<size_t>(tensor.end) - at)});
    }
    if (Status status = narrow(parsed.entries_, parsed.narrowed_); !status.ok()) return status;
    result = std::move(parsed);
    return {};
  });
}

Status Safetensors::read(const std::string& path, Safetensors& result) {
  return memory_guard([&]() -> Status {
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
        return format_error(name, "data at a multiple of " + std::to_string(alignment) + " bytes",
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
