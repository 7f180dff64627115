#include "nn/io/safetensors_header.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "engine/error/printable.h"
#include "nn/io/safetensors_format.h"

namespace multihead::nn {
namespace {

using nlohmann::json;
using Type = SafetensorsEntry::Type;

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

// Parses the header token by token. A JSON tree could take a hundred times the memory of the file,
// and its destructor allocates. Every function returns false to stop; `status` then holds the
// error.
class HeaderParser final : public json::json_sax_t {
 public:
  Status status;
  std::vector<HeaderEntry> tensors;

  bool null() override {
    // Writers of other languages leave no metadata so.
    const bool is_metadata = place() == Place::kHeader && name_ == kSafetensorsMetadata;
    return is_metadata || scalar("null");
  }
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
    return scalar(engine::printable(text));
  }
  bool string(string_t& value) override {
    if (place() == Place::kMetadata) return true;
    if (place() == Place::kTensor && field_ == "dtype") {
      tensor().type = type_named(value);
      if (tensor().type != nullptr) return true;
      return stop(tensor().name, "a dtype out of " + type_names(), quoted(value));
    }
    return scalar(quoted(value));
  }
  bool binary(binary_t& /*value*/) override { return scalar("binary data"); }  // not in JSON text

  bool key(string_t& name) override {
    if (!names_.back().insert(name).second) {
      return stop("safetensors header", "every name once in its object", quoted(name) + " twice");
    }
    if (place() == Place::kHeader) name_ = name;
    if (place() == Place::kTensor) field_ = name;
    return true;
  }

  bool start_object(size_t /*size*/) override {
    names_.emplace_back();
    if (places_.empty()) return enter(Place::kHeader);
    if (place() == Place::kHeader && name_ == kSafetensorsMetadata) return enter(Place::kMetadata);
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
    const HeaderEntry& t = tensor();
    if (offsets_ == 2 && t.begin <= t.end) return true;
    return stop(t.name, kOffsetsExpected,
                offsets_ < 2 ? std::to_string(offsets_) + " of them"
                             : "[" + std::to_string(t.begin) + "," + std::to_string(t.end) + "]");
  }

  bool parse_error(size_t /*at*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return stop("safetensors header", "a JSON object from its first byte on", "something else");
  }

 private:
  // Kind of the innermost object or array around the current token.
  enum class Place : uint8_t { kOutside, kHeader, kMetadata, kTensor, kShape, kOffsets, kIgnored };
  static constexpr uint64_t kMostExtent = std::numeric_limits<int64_t>::max();

  Place place() const { return places_.empty() ? Place::kOutside : places_.back(); }
  bool enter(Place place) {
    places_.push_back(place);
    return true;
  }
  HeaderEntry& tensor() { return tensors.back(); }
  static std::string quoted(const std::string& text) { return '"' + engine::printable(text) + '"'; }

  bool stop(const std::string& what, const std::string& expected, const std::string& got) {
    status = format_error(engine::printable(what), expected, got);
    return false;
  }
  // Handles a scalar that the parser does not store: an error where another kind is expected,
  // ignored in unknown fields, which later versions of the format may add.
  bool scalar(const std::string& got) {
    switch (place()) {
      case Place::kHeader:
        return name_ == kSafetensorsMetadata ? stop(name_, "an object of texts", got)
                                             : stop(name_, "dtype, shape and data_offsets", got);
      case Place::kMetadata:
        return stop(kSafetensorsMetadata, "an object of texts", got + " in it");
      case Place::kShape:
        return stop(tensor().name, kShapeExpected, got + " in it");
      case Place::kOffsets:
        return stop(tensor().name, kOffsetsExpected, got + " in it");
      case Place::kTensor:
        if (field_ == "dtype") return stop(tensor().name, "a text as dtype", got);
        if (field_ == "shape") return stop(tensor().name, kShapeExpected, got);
        if (field_ == "data_offsets") return stop(tensor().name, kOffsetsExpected, got);
        return true;
      case Place::kOutside:
        return stop("safetensors header", "a JSON object from its first byte on", got);
      case Place::kIgnored:
        break;
    }
    return true;
  }
  static constexpr const char* kOffsetsExpected = "data_offsets, a begin and an end";
  static constexpr const char* kShapeExpected = "a shape of at most 8 extents, none negative";

  bool end_tensor() {
    const HeaderEntry& t = tensor();
    if (t.type == nullptr || !has_shape_ || !has_offsets_) {
      return stop(t.name, "dtype, shape and data_offsets",
                  std::string("no ") + (t.type == nullptr ? "dtype"
                                        : has_shape_      ? "data_offsets"
                                                          : "shape"));
    }
    const std::optional<uint64_t> bits = bit_size(t.shape, t.type->bits);
    if (bits && *bits % 8 == 0 && *bits / 8 == t.end - t.begin) return true;
    return stop(t.name,
                "data of dtype " + std::string(t.type->name) + " and shape " + t.shape.to_string(),
                std::to_string(t.end - t.begin) + " bytes");
  }

  std::vector<Place> places_;
  std::vector<std::set<std::string>> names_;  // names seen in each object around the current token
  std::string name_, field_;
  bool has_shape_ = false, has_offsets_ = false;
  int offsets_ = 0;
};

// Sorts tensors by data offset and checks that they fill all bytes without overlaps or gaps.
Status validate_places(std::vector<HeaderEntry>& tensors, uint64_t data_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t end = 0;
  for (const HeaderEntry& tensor : tensors) {
    if (tensor.begin != end) {
      return format_error("safetensors data",
                          "tensors side by side, the next at " + std::to_string(end),
                          "one at " + std::to_string(tensor.begin));
    }
    end = tensor.end;
  }
  if (end == data_bytes) return {};
  return format_error(
      "safetensors data", std::to_string(end) + " bytes",
      std::to_string(data_bytes) + (data_bytes < end ? ", as of a download that was cut off" : ""));
}

}  // namespace

Status parse_safetensors_header(std::string_view text, uint64_t data_bytes,
                                std::vector<HeaderEntry>& tensors) {
  HeaderParser parser;
  // JSON may begin with blanks, but the header must not.
  if (!text.starts_with('{')) {
    return format_error("safetensors header", "a JSON object from its first byte on",
                        "something else");
  }
  if (!json::sax_parse(text.data(), text.data() + text.size(), &parser)) return parser.status;
  MULTIHEAD_TRY(validate_places(parser.tensors, data_bytes));
  tensors = std::move(parser.tensors);
  return {};
}

std::string_view kind_of_file(std::string_view begin) {
  constexpr std::pair<std::string_view, std::string_view> kKinds[] = {
#define FILE_KIND(begin, what) {begin, what},
#include "nn/io/file_kinds.inc"
#undef FILE_KIND
  };
  for (const auto& [start, what] : kKinds) {
    if (begin.starts_with(start)) return what;
  }
  return {};
}

Status parse_safetensors_file(std::span<const std::byte> file, std::vector<HeaderEntry>& tensors,
                              std::span<const std::byte>& data) {
  // The format's limit on the length of a header, which protects parsers from denial of service.
  constexpr uint64_t kMostHeader = 100'000'000, kPrefix = 8;
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  uint64_t length = 0;
  for (size_t i = kPrefix; i-- > 0;) {
    length = length << 8U | (i < file.size() ? static_cast<uint64_t>(file[i]) : 0);
  }
  const uint64_t most = file.size() < kPrefix ? 0 : file.size() - kPrefix;
  if (length > std::min(most, kMostHeader) ||
      !text.substr(std::min(static_cast<size_t>(kPrefix), text.size())).starts_with('{')) {
    // The fourth byte of a header's length is 0 unless the header has 16 MB.
    const std::string_view kind = text.size() > 3 && text[3] != 0 ? kind_of_file(text) : "";
    if (!kind.empty()) return format_error("safetensors", "a safetensors file", std::string(kind));
  }
  if (file.size() < kPrefix) {
    return format_error("safetensors", "at least 8 bytes", std::to_string(file.size()));
  }
  if (length > kMostHeader) {
    return format_error("safetensors header", "at most " + std::to_string(kMostHeader) + " bytes",
                        std::to_string(length) + ": this is no safetensors file");
  }
  if (length > most) {
    return format_error("safetensors header", std::to_string(length) + " bytes",
                        std::to_string(most) + ", as of a download that was cut off");
  }
  data = file.subspan(static_cast<size_t>(kPrefix + length));
  return parse_safetensors_header(text.substr(kPrefix, static_cast<size_t>(length)), data.size(),
                                  tensors);
}

}  // namespace multihead::nn
