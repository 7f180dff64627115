// Safetensors: any bytes are refused or read, never beyond their end. A file that was read can be
// written and read again unchanged. Any state dict is refused or written.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fuzz/bytes.h"
#include "multihead/safetensors.h"

namespace {

using multihead::ConstAnyTensor;
using multihead::Dims;
using multihead::DType;
using multihead::Safetensors;
using multihead::SafetensorsType;
using multihead::StateDict;
using multihead::Status;
using multihead::StatusCode;
using multihead::fuzz::Bytes;

std::vector<std::byte> as_bytes(uint64_t header_size, const std::string& text) {
  std::vector<std::byte> bytes(8 + text.size());
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(header_size >> (8 * i) & 0xFFU);
  std::transform(text.begin(), text.end(), bytes.begin() + 8,
                 [](char letter) { return static_cast<std::byte>(letter); });
  return bytes;
}

std::string number(Bytes& from) {
  if (!from.one_in(32)) return std::to_string(from.integer(0, 7));
  return from.pick<const char*>({"-1", "1e3", "2.0", "18446744073709551616", "9223372036854775807",
                                 "4611686018427387904", "null", "[]", "{}", "\"1\"", "01"});
}

// Returns a file whose header and data are both almost valid.
std::vector<std::byte> file_of(Bytes& from) {
  std::string header = "{";
  int64_t end = 0;
  const int64_t tensors = from.integer(0, 4);
  for (int64_t i = 0; i < tensors; ++i) {
    const auto* const dtype = from.pick<const char*>(
        {"F32", "F64", "F16", "BF16", "I64", "BOOL", "U8", "F8_E4M3", "F4", "F6_E2M3", "C64"});
    const std::string name = dtype;
    const int64_t bits = name.starts_with("F4")    ? 4
                         : name.starts_with("F6_") ? 6
                         : name.ends_with("64")    ? 64
                         : name == "F32"           ? 32
                         : name.ends_with("16")    ? 16
                                                   : 8;
    std::string shape;
    int64_t elements = 1;
    for (int64_t axis = from.integer(0, from.one_in(32) ? 10 : 3); axis > 0; --axis) {
      const std::string extent = number(from);
      if (extent.size() == 1) elements *= extent[0] - '0';
      shape += (shape.empty() ? "" : ",") + extent;
    }
    const int64_t begin = end;
    end += elements * bits / 8 % 4096;
    if (from.one_in(32)) end += from.integer(0, 8);
    header += (i == 0 ? "\"" : ",\"") + std::string(from.one_in(32) ? "a" : "") +
              static_cast<char>('a' + i % 3) + "\":{\"dtype\":\"" +
              (from.one_in(32) ? "F31" : name) + "\",\"shape\":[" + shape + "],\"data_offsets\":[" +
              (from.one_in(32) ? number(from) : std::to_string(begin)) + "," + std::to_string(end) +
              "]" + (from.one_in(32) ? ",\"x\":[{\"y\":1}]" : "") + "}";
  }
  if (from.one_in(8)) {
    header += std::string(tensors == 0 ? "" : ",") +
              "\"__metadata__\":{\"a\":" + (from.one_in(4) ? "1" : "\"b\"") + "}";
  }
  header += from.one_in(32) ? "" : "}";
  if (from.one_in(4)) header.resize((header.size() + 7) / 8 * 8, ' ');
  if (from.one_in(16))
    header[static_cast<size_t>(from.integer(0, static_cast<int64_t>(header.size()) - 1))] ^=
        static_cast<char>(from.byte());
  const auto size = static_cast<uint64_t>(from.one_in(32) ? from.integer(INT64_MIN, INT64_MAX)
                                                          : static_cast<int64_t>(header.size()));
  if (from.one_in(32)) end += from.integer(-4, 4);
  std::string data(static_cast<size_t>(std::max<int64_t>(end, 0)), '\0');
  for (char& letter : data) letter = static_cast<char>(from.byte());
  return as_bytes(size, header + data);
}

// Reads every byte of all views, so that the sanitizers detect reads outside the memory.
uint64_t sum_of(const StateDict& dict) {
  uint64_t sum = 0;
  for (const auto& [name, tensor] : dict) {
    const auto* const data = static_cast<const uint8_t*>(tensor.data);
    const int64_t bytes = tensor.shape.elements() * bytes_of(tensor.dtype);
    for (int64_t i = 0; i < bytes; ++i) sum += data[i];
  }
  return sum;
}

void read(std::vector<std::byte> bytes) {
  const size_t size = bytes.size();
  Safetensors tensors;
  Status status = Safetensors::parse(std::move(bytes), tensors);
  multihead::fuzz::check_words(status);
  if (!status.ok()) {
    FUZZ_CHECK(status.code() == StatusCode::kFormat, "%s", status.message().c_str());
    FUZZ_CHECK(tensors.entries().empty(), "a file that was refused");
    return;
  }
  size_t described = 0;
  for (const auto& [name, entry] : tensors.entries()) described += entry.data.size();
  FUZZ_CHECK(described + 8 <= size, "%zu of %zu bytes", described, size);
  StateDict dict;
  status = tensors.state_dict(dict);
  multihead::fuzz::check_words(status);
  if (!status.ok()) return;
  const uint64_t sum = sum_of(dict);
  std::vector<std::byte> written;
  status = write_safetensors(dict, SafetensorsType::kAsGiven, written);
  FUZZ_CHECK(status.ok(), "%s", status.message().c_str());
  const std::vector<std::byte> copy = written;
  Safetensors again;
  status = Safetensors::parse(std::move(written), again);
  FUZZ_CHECK(status.ok(), "%s", status.message().c_str());
  StateDict read;
  status = again.state_dict(read);
  FUZZ_CHECK(status.ok(), "%s", status.message().c_str());
  FUZZ_CHECK(read.size() == dict.size() && sum_of(read) == sum, "%zu tensors", read.size());
  status = write_safetensors(read, SafetensorsType::kAsGiven, written);
  FUZZ_CHECK(status.ok() && written == copy, "%s", status.message().c_str());
}

void write(Bytes& from) {
  std::vector<float> values(64, 1.5F);
  StateDict dict;
  for (int64_t i = from.integer(0, 3); i >= 0; --i) {
    ConstAnyTensor tensor;
    tensor.dtype = static_cast<DType>(from.one_in(16) ? from.byte() : from.integer(0, 2));
    // Legal tensors stay within the memory of `values`.
    int64_t room = 64;
    for (int64_t axis = from.integer(0, from.one_in(16) ? 10 : 4); axis > 0; --axis) {
      const int64_t extent = from.one_in(24) ? from.integer(INT64_MIN, -1) : from.integer(0, 3);
      const bool shares = from.one_in(4) || extent > room;
      const int64_t shared = from.one_in(32) ? from.integer(0, INT64_MAX) : 5;
      tensor.shape.push_back(shares ? std::min<int64_t>(shared, extent < 0 ? extent : shared)
                                    : extent);
      tensor.strides.push_back(shares ? 0 : room / std::max<int64_t>(extent, 1) - 1);
      if (!shares) room = std::max<int64_t>(room / std::max<int64_t>(extent, 1), 1);
    }
    if (from.one_in(24)) tensor.strides.push_back(0);
    tensor.data = from.one_in(16) ? nullptr : values.data();
    // Skips legal tensors with more elements, which would take too long.
    uint64_t elements = 1;
    bool many = false;
    for (int axis = 0; axis < std::min(tensor.shape.rank(), Dims::kMaxRank); ++axis) {
      const auto extent = static_cast<uint64_t>(std::max<int64_t>(tensor.shape[axis], 0));
      many = many || (extent != 0 && elements > UINT64_MAX / extent);
      elements *= extent;
      many = many || (elements > 100'000 && elements < uint64_t{1} << 57U);
    }
    if (many) continue;
    std::string name;
    for (int64_t length = from.integer(0, 6); length > 0; --length) {
      name += static_cast<char>(from.one_in(8) ? from.byte() : from.integer('a', 'c'));
    }
    dict[name] = tensor;
  }
  std::vector<std::byte> bytes{std::byte{7}};
  const Status status =
      write_safetensors(dict, static_cast<SafetensorsType>(from.integer(0, 4)), bytes);
  multihead::fuzz::check_words(status);
  if (!status.ok()) {
    FUZZ_CHECK(bytes.size() == 1, "%s", status.message().c_str());
    return;
  }
  Safetensors tensors;
  const Status parsed = Safetensors::parse(std::move(bytes), tensors);
  FUZZ_CHECK(parsed.ok() && tensors.entries().size() == dict.size(), "%s",
             parsed.message().c_str());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes from(data, size);
  switch (from.integer(0, 3)) {
    case 0: {
      std::vector<std::byte> bytes(from.left());
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(from.byte());
      read(std::move(bytes));
      break;
    }
    case 1: {
      // A file with a header of random text and the right length.
      std::string text(from.left(), ' ');
      for (char& letter : text) letter = static_cast<char>(from.byte());
      read(as_bytes(text.size(), text));
      break;
    }
    case 2:
      read(file_of(from));
      break;
    default:
      write(from);
  }
  return 0;
}
