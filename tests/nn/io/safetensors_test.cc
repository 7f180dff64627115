#include "multihead/safetensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/little_endian.h"
#include "support/random_case.h"

namespace multihead {
namespace {

std::vector<std::byte> file(const std::string& header, size_t data_bytes) {
  std::vector<std::byte> bytes(8 + header.size() + data_bytes);
  const auto length = static_cast<uint64_t>(header.size());
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(length >> (8 * i) & 0xFF);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  for (size_t i = 0; i < data_bytes; ++i) {
    bytes[8 + header.size() + i] = static_cast<std::byte>(i);
  }
  return bytes;
}

std::string entry(const std::string& shape, const std::string& offsets,
                  const std::string& dtype = "F32") {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

TEST(Safetensors, ReadsTensorsAndSkipsMetadata) {
  Safetensors tensors;
  const Status status =
      Safetensors::parse(file(R"({"__metadata__":{"a":"b"},"x":)" + entry("[2,3]", "[0,24]") +
                                  R"(,"m":)" + entry("[4]", "[24,28]", "BOOL") + "}  ",
                              28),
                         tensors);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(tensors.entries().size(), 2U);
  EXPECT_EQ(tensors.find("x")->shape, (Dims{2, 3}));
  EXPECT_EQ(tensors.find("m")->data.size(), 4U);
  EXPECT_EQ(tensors.find("m")->data[0], std::byte{24});
  EXPECT_EQ(tensors.find("y"), nullptr);
}

TEST(Safetensors, RefusesWhatLies) {
  const std::vector<std::pair<std::string, std::vector<std::byte>>> cases = {
      {"truncated", std::vector<std::byte>(5)},
      {"header beyond the file", std::vector<std::byte>(16, std::byte{0xFF})},
      {"not JSON", file("{nonsense", 4)},
      {"not an object", file("[1,2]", 4)},
      {"unknown dtype", file(R"({"x":)" + entry("[1]", "[0,8]", "F63") + "}", 8)},
      {"dtype that is no text",
       file(R"({"x":{"dtype":["F32"],"shape":[1],"data_offsets":[0,4]}})", 4)},
      {"three offsets", file(R"({"x":)" + entry("[1]", "[0,4,4]") + "}", 4)},
      {"one offset", file(R"({"x":)" + entry("[1]", "[0]") + "}", 4)},
      {"nine extents", file(R"({"x":)" + entry("[1,1,1,1,1,1,1,1,1]", "[0,4]") + "}", 4)},
      {"an extent with a fraction", file(R"({"x":)" + entry("[1.0]", "[0,4]") + "}", 4)},
      {"a shape in a shape", file(R"({"x":)" + entry("[[1]]", "[0,4]") + "}", 4)},
      {"half a byte", file(R"({"x":)" + entry("[3]", "[0,1]", "F4") + "}", 1)},
      {"a tensor that is a number", file(R"({"x":1})", 0)},
      {"more behind the header's object", file("{} {}", 0)},
      {"no fields", file(R"({"x":{}})", 0)},
      {"offsets beyond the data", file(R"({"x":)" + entry("[2]", "[0,8]") + "}", 4)},
      {"offsets in the wrong order", file(R"({"x":)" + entry("[1]", "[4,0]") + "}", 4)},
      {"negative offset", file(R"({"x":)" + entry("[1]", "[-4,0]") + "}", 4)},
      {"size unlike the shape", file(R"({"x":)" + entry("[3]", "[0,8]") + "}", 8)},
      {"negative extent", file(R"({"x":)" + entry("[-2]", "[0,8]") + "}", 8)},
      {"product that overflows",
       file(R"({"x":)" + entry("[4611686018427387904,4]", "[0,0]") + "}", 0)},
      {"overlap",
       file(R"({"x":)" + entry("[2]", "[0,8]") + R"(,"y":)" + entry("[2]", "[4,12]") + "}", 12)},
      {"gap",
       file(R"({"x":)" + entry("[1]", "[0,4]") + R"(,"y":)" + entry("[1]", "[8,12]") + "}", 12)},
      {"a name twice",
       file(R"({"x":)" + entry("[1]", "[0,4]") + R"(,"\u0078":)" + entry("[1]", "[0,4]") + "}", 4)},
      {"a field twice",
       file(R"({"x":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4)},
      {"a blank in front", file(" {}", 0)},
      {"metadata that is no text", file(R"({"__metadata__":{"a":1}})", 0)},
      {"bytes left over", file(R"({"x":)" + entry("[1]", "[0,4]") + "}", 8)},
  };
  for (const auto& [name, bytes] : cases) {
    Safetensors tensors;
    const Status status = Safetensors::parse(bytes, tensors);
    EXPECT_EQ(status.code(), StatusCode::kFormat) << name;
    EXPECT_TRUE(tensors.entries().empty()) << name;
  }
}

TEST(Safetensors, ErrorsShowWordsOfTheFileInPrintableForm) {
  // A name of a megabyte, with a line feed and U+202E, which writes from right to left.
  const std::string bad = R"("x\n\u202e)" + std::string(1'000'000, 'y') + '"';
  const std::string fields = entry("[1]", "[0,4]"), number = "1." + std::string(1'000'000, '0');
  const std::vector<std::string> headers = {
      "{" + bad + ":" + entry("[1]", "[0,4]", "F63") + "}",
      "{" + bad + ":" + entry("[3]", "[0,4]") + "}",
      "{" + bad + ":" + entry("[1]", "[0,4,4]") + "}",
      "{" + bad + ":1}",
      "{" + bad + ":{}}",
      "{" + bad + ":" + fields + "," + bad + ":" + fields + "}",
      R"({"x":)" + bad + "}",
      R"({"x":{"dtype":)" + bad + "}}",
      R"({"x":{"shape":)" + bad + "}}",
      R"({"x":{"shape":[)" + bad + "]}}",
      R"({"x":{"shape":[)" + number + "]}}",
      R"({"x":{"data_offsets":)" + bad + "}}",
      R"({"x":{)" + bad + ":1," + bad + ":1}}",
      R"({"__metadata__":)" + bad + "}",
      bad,
  };
  for (const std::string& header : headers) {
    Safetensors tensors;
    const Status status = Safetensors::parse(file(header, 4), tensors);
    EXPECT_EQ(status.code(), StatusCode::kFormat) << header.substr(0, 40);
    const std::string message = status.message();
    EXPECT_LT(message.size(), 500U) << header.substr(0, 40);
    EXPECT_EQ(message.find('\n'), std::string::npos) << message.substr(0, 500);
    EXPECT_EQ(message.find("\u202E"), std::string::npos) << message.substr(0, 500);
  }
  // A dict with such names that cannot be written.
  const float numbers[2] = {};
  const std::string name = "x\n\u202E" + std::string(1'000'000, 'y');
  for (const auto& [wrong, tensor] :
       {std::pair{name + "\xFF", ConstAnyTensor(ConstTensor(numbers, {2}))},
        {name, ConstTensor(numbers, {-1})},
        {name, ConstTensor(nullptr, {2})}}) {
    std::vector<std::byte> bytes;
    const Status status = write_safetensors({{wrong, tensor}}, SafetensorsType::kAsGiven, bytes);
    EXPECT_NE(status.message().find("x\\u000a\\u202eyyy"), std::string::npos);
    EXPECT_LT(status.message().size(), 500U);
  }
  // F32 data at an odd address, which is valid until views are made.
  Safetensors tensors;
  const std::string odd =
      R"({"a":)" + entry("[1]", "[0,1]", "U8") + "," + bad + ":" + entry("[1]", "[1,5]") + "}";
  ASSERT_TRUE(Safetensors::parse(file(odd, 5), tensors).ok());
  StateDict dict;
  EXPECT_LT(tensors.state_dict(dict).message().size(), 500U);
}

TEST(Safetensors, RoundTripsEveryFloatingPointType) {
  // Numbers that all three types represent, including an infinity; (2, 3), column-major.
  const std::vector<float> values{1.0F, -0.5F, 0.0F, 96.0F, -INFINITY, 0.125F};
  StateDict dict;
  dict["a.turned"] = ConstTensor(values.data(), {2, 3}, {1, 2});
  dict["b"] = ConstTensor(values.data(), {6});
  dict["empty"] = ConstTensor(nullptr, {0, 4});
  dict["scalar"] = ConstTensor(values.data() + 3, Dims{});
  for (const SafetensorsType type : {SafetensorsType::kAsGiven, SafetensorsType::kF32,
                                     SafetensorsType::kF16, SafetensorsType::kBF16}) {
    std::vector<std::byte> bytes;
    ASSERT_TRUE(write_safetensors(dict, type, bytes).ok());
    Safetensors tensors;
    const Status status = Safetensors::parse(bytes, tensors);
    ASSERT_TRUE(status.ok()) << status.message();
    StateDict read;
    ASSERT_TRUE(tensors.state_dict(read).ok());
    ASSERT_EQ(read.size(), dict.size());
    const bool half = type == SafetensorsType::kF16 || type == SafetensorsType::kBF16;
    EXPECT_EQ(bytes_of(read.at("b").dtype), half ? 2 : 4);
    EXPECT_EQ(read.at("a.turned").shape, (Dims{2, 3}));
    for (int64_t i = 0; i < 6; ++i) {
      EXPECT_EQ(testing::element(read.at("b"), i), values[static_cast<size_t>(i)]);
      EXPECT_EQ(testing::element(read.at("a.turned"), i),
                values[static_cast<size_t>(i / 3 + i % 3 * 2)]);
    }
    EXPECT_EQ(testing::element(read.at("scalar"), 0), 96.0F);
    // A file that was read is written unchanged.
    std::vector<std::byte> again;
    ASSERT_TRUE(write_safetensors(read, SafetensorsType::kAsGiven, again).ok());
    EXPECT_EQ(again, bytes);
  }
}

// All dtypes of the format; real checkpoints have most of them (masks, positions, scales, counts).
TEST(Safetensors, ReadsEveryDtype) {
  using Type = SafetensorsEntry::Type;
  const struct {
    const char* name;
    Type type;
    size_t bytes;  // of four elements
  } dtypes[] = {{"BOOL", Type::kBool, 4},
                {"F4", Type::kF4, 2},
                {"F6_E2M3", Type::kF6E2M3, 3},
                {"F6_E3M2", Type::kF6E3M2, 3},
                {"U8", Type::kU8, 4},
                {"I8", Type::kI8, 4},
                {"F8_E5M2", Type::kF8E5M2, 4},
                {"F8_E4M3", Type::kF8E4M3, 4},
                {"F8_E8M0", Type::kF8E8M0, 4},
                {"F8_E4M3FNUZ", Type::kF8E4M3Fnuz, 4},
                {"F8_E5M2FNUZ", Type::kF8E5M2Fnuz, 4},
                {"I16", Type::kI16, 8},
                {"U16", Type::kU16, 8},
                {"F16", Type::kF16, 8},
                {"BF16", Type::kBF16, 8},
                {"I32", Type::kI32, 16},
                {"U32", Type::kU32, 16},
                {"F32", Type::kF32, 16},
                {"C64", Type::kC64, 32},
                {"F64", Type::kF64, 32},
                {"I64", Type::kI64, 32},
                {"U64", Type::kU64, 32}};
  for (const auto& [name, type, bytes] : dtypes) {
    const std::string offsets = "[0," + std::to_string(bytes) + "]";
    Safetensors tensors;
    const Status status =
        Safetensors::parse(file(R"({"x":)" + entry("[2,2]", offsets, name) + "}", bytes), tensors);
    ASSERT_TRUE(status.ok()) << name << ": " << status.message();
    EXPECT_EQ(tensors.find("x")->type, type) << name;
    EXPECT_EQ(tensors.find("x")->data.size(), bytes) << name;
  }
}

// F64 is converted to f32; integers and 8-bit types are not parameters.
TEST(Safetensors, StateDictHoldsFloatingPointAlone) {
  const double values[] = {1.0 + 0x1p-25, -0x1p-140, 1e300, std::nan("")};
  // The doubles are at an offset of two bytes, so that none of them is aligned.
  std::vector<std::byte> bytes =
      file(R"({"a":)" + entry("[2]", "[0,2]", "F8_E4M3") + R"(,"b":)" +
               entry("[2,2]", "[2,34]", "F64") + R"(,"c":)" + entry("[1]", "[34,38]", "I32") +
               R"(,"d":)" + entry("[1]", "[38,46]", "F64") + "}",
           46);
  const std::vector<std::byte> stored =
      testing::little_endian(std::as_bytes(std::span(values)), sizeof(double));
  std::copy(stored.begin(), stored.end(), bytes.end() - 44);
  std::copy_n(stored.begin() + sizeof(double), sizeof(double), bytes.end() - 8);
  Safetensors tensors;
  Status status = Safetensors::parse(std::move(bytes), tensors);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(tensors.entries().size(), 4U);
  // The views stay valid when the object is moved.
  const Safetensors moved = std::move(tensors);
  StateDict dict;
  status = moved.state_dict(dict);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(dict.size(), 2U);
  const ConstAnyTensor& b = dict.at("b");
  EXPECT_EQ(b.dtype, DType::kF32);
  EXPECT_EQ(b.shape, (Dims{2, 2}));
  EXPECT_EQ(testing::element(b, 0), 1.0F);
  EXPECT_EQ(testing::element(b, 1), -0x1p-140F);
  EXPECT_EQ(testing::element(b, 2), INFINITY);
  EXPECT_TRUE(std::isnan(testing::element(b, 3)));
  EXPECT_EQ(testing::element(dict.at("d"), 0), -0x1p-140F);
}

// Unknown fields are ignored, as in the reader by the format's authors.
TEST(Safetensors, PassesOverFieldsOfTheFuture) {
  Safetensors tensors;
  const Status status = Safetensors::parse(
      file(R"({"x":{"dtype":"F32","note":{"a":[1,{"b":null}]},"shape":[],"data_offsets":[0,4]}})",
           4),
      tensors);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(tensors.find("x")->shape.rank(), 0);
}

TEST(Safetensors, RefusesAHeaderOfMoreThanAHundredMegabytes) {
  Safetensors tensors;
  const Status status = Safetensors::parse(file("{}" + std::string(100'000'000, ' '), 0), tensors);
  EXPECT_EQ(status.code(), StatusCode::kFormat);
}

// An odd number of halves, followed (in the order of names) by floats.
TEST(Safetensors, WritesWhatCanBeViewed) {
  const std::vector<Float16> halves(3, Float16{0x3C00});
  const std::vector<float> values{1.0F, 2.0F};
  std::vector<std::byte> bytes;
  ASSERT_TRUE(write_safetensors({{"a", ConstAnyTensor(halves.data(), DType::kF16, {3}, {1})},
                                 {"b", ConstTensor(values.data(), {2})}},
                                SafetensorsType::kAsGiven, bytes)
                  .ok());
  Safetensors tensors;
  ASSERT_TRUE(Safetensors::parse(bytes, tensors).ok());
  StateDict read;
  ASSERT_TRUE(tensors.state_dict(read).ok());
  EXPECT_EQ(testing::element(read.at("a"), 2), 1.0F);
  EXPECT_EQ(testing::element(read.at("b"), 1), 2.0F);
}

TEST(Safetensors, RoundsToNearestEven) {
  const std::vector<float> values{1.0F + 0x1p-11F, 1.0F + 0x1.8p-10F, 65519.0F, 65520.0F};
  std::vector<std::byte> bytes;
  ASSERT_TRUE(
      write_safetensors({{"x", ConstTensor(values.data(), {4})}}, SafetensorsType::kF16, bytes)
          .ok());
  Safetensors tensors;
  ASSERT_TRUE(Safetensors::parse(bytes, tensors).ok());
  StateDict read;
  ASSERT_TRUE(tensors.state_dict(read).ok());
  const float expected[] = {1.0F, 1.0F + 0x1p-9F, 65504.0F, INFINITY};
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(testing::element(read.at("x"), i), expected[i]);
}

TEST(Safetensors, RefusesToWriteWhatCannotBeRead) {
  const std::vector<float> values(2);
  std::vector<std::byte> bytes{std::byte{7}};
  const ConstAnyTensor good = ConstTensor(values.data(), {2});
  for (const char* name : {"__metadata__", "\xFF"}) {
    EXPECT_EQ(write_safetensors({{name, good}}, SafetensorsType::kF32, bytes).argument(), "name");
  }
  EXPECT_EQ(write_safetensors({{"x", ConstTensor(nullptr, {2})}}, SafetensorsType::kF32, bytes)
                .argument(),
            "x");
  EXPECT_EQ(bytes.size(), 1U);
  EXPECT_EQ(write_safetensors({{"x", good}}, SafetensorsType::kF32, std::string("no/such/file"))
                .argument(),
            "no/such/file");
}

// Shapes found with the address sanitizer: each of them once wrote beyond the file's bytes.
TEST(Safetensors, RefusesToWriteShapesThatAreNone) {
  const std::vector<float> values(16);
  std::vector<std::byte> bytes{std::byte{7}};
  const auto refused = [&](const ConstAnyTensor& tensor, SafetensorsType type) {
    const Status status = write_safetensors({{"x", tensor}}, type, bytes);
    EXPECT_EQ(bytes.size(), 1U);
    return std::pair(status.code(), status.argument());
  };
  using Refusal = std::pair<StatusCode, std::string>;
  const Refusal shape{StatusCode::kShape, "x"};
  for (const SafetensorsType type : {SafetensorsType::kAsGiven, SafetensorsType::kF16}) {
    EXPECT_EQ(refused(ConstTensor(values.data(), {2, 1, 1, 1, 1, 1, 1, 1, 2}), type), shape);
    EXPECT_EQ(refused(ConstTensor(values.data(), {-2, -2}), type), shape);
    EXPECT_EQ(refused(ConstTensor(values.data(), {-1, 0}), type), shape);
    EXPECT_EQ(refused(ConstTensor(values.data(), {2, 2}, {1}), type), shape);
    EXPECT_EQ(refused(ConstTensor(values.data(), {1LL << 32, 1LL << 32}, {0, 0}), type), shape);
    const ConstAnyTensor unknown(values.data(), static_cast<DType>(9), {2}, {1});
    EXPECT_EQ(refused(unknown, type), (Refusal{StatusCode::kOption, "x"}));
  }
  EXPECT_EQ(refused(ConstTensor(values.data(), {2}), static_cast<SafetensorsType>(4)),
            (Refusal{StatusCode::kOption, "type"}));
}

// The sizes of sixty-four tensors, whose sum overflows to 0 in 64 bits.
TEST(Safetensors, RefusesToWriteMoreThanAMemoryHolds) {
  const float value = 1.0F;
  StateDict dict;
  for (int i = 0; i < 64; ++i) {
    dict[std::to_string(i)] = ConstTensor(&value, {1LL << 28, 1LL << 28}, {0, 0});
  }
  std::vector<std::byte> bytes;
  EXPECT_EQ(write_safetensors(dict, SafetensorsType::kF32, bytes).code(), StatusCode::kMemory);
}

TEST(Safetensors, WritesEveryNameThatIsUtf8) {
  const float value = 1.0F;
  StateDict dict;
  for (const char* name : {"", "a\"b\\c", "\x01\t\n\r\b\f\x7F", "\u00e9\u20ac", "\U0001F600"}) {
    dict[name] = ConstTensor(&value, Dims{});
  }
  std::vector<std::byte> bytes;
  ASSERT_TRUE(write_safetensors(dict, SafetensorsType::kF32, bytes).ok());
  Safetensors tensors;
  const Status status = Safetensors::parse(bytes, tensors);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(tensors.entries().size(), dict.size());
  for (const auto& [name, tensor] : dict) EXPECT_NE(tensors.find(name), nullptr) << name;
  // A lone continuation byte, a truncated, an overlong, a surrogate, and one beyond U+10FFFF.
  for (const char* name : {"\x80", "\xE2\x82", "\xC0\xAF", "\xE0\x80\xAF", "\xED\xA0\x80",
                           "\xF4\x90\x80\x80", "\xF8\x88\x80\x80\x80"}) {
    EXPECT_EQ(write_safetensors({{name, ConstTensor(&value, Dims{})}}, SafetensorsType::kF32, bytes)
                  .argument(),
              "name");
  }
}

// Without this check, a loop over the first extent would run almost forever.
TEST(Safetensors, WritesNothingOfTensorsWithoutElements) {
  std::vector<std::byte> bytes;
  const Dims shape{1LL << 56, 0};
  ASSERT_TRUE(
      write_safetensors({{"x", ConstTensor(nullptr, shape)}}, SafetensorsType::kF32, bytes).ok());
  Safetensors tensors;
  ASSERT_TRUE(Safetensors::parse(bytes, tensors).ok());
  EXPECT_EQ(tensors.find("x")->shape, shape);
}

// A tensor of four-byte elements after one of two bytes: legal in a file, but not viewable.
TEST(Safetensors, NamesWhatIsNotAligned) {
  Safetensors tensors;
  ASSERT_TRUE(Safetensors::parse(file(R"({"h":)" + entry("[1]", "[0,2]", "F16") + R"(,"x":)" +
                                          entry("[1]", "[2,6]") + "}",
                                      6),
                                 tensors)
                  .ok());
  StateDict dict;
  const Status status = tensors.state_dict(dict);
  EXPECT_EQ(status.code(), StatusCode::kFormat);
  EXPECT_TRUE(dict.empty());
}

// Every truncation and every changed byte of a small file is refused or read, but never beyond its
// end.
TEST(Safetensors, SurvivesAnyDamage) {
  const std::vector<float> values(6, 1.0F);
  std::vector<std::byte> bytes;
  ASSERT_TRUE(write_safetensors({{"a", ConstTensor(values.data(), {2, 3})},
                                 {"b", ConstTensor(values.data(), {6})}},
                                SafetensorsType::kF16, bytes)
                  .ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    Safetensors tensors;
    EXPECT_FALSE(
        Safetensors::parse({bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size)}, tensors)
            .ok());
  }
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const unsigned change : {0x01U, 0x10U, 0x80U, 0xFFU}) {
      std::vector<std::byte> damaged = bytes;
      damaged[at] ^= static_cast<std::byte>(change);
      Safetensors tensors;
      if (!Safetensors::parse(damaged, tensors).ok()) continue;
      for (const auto& [name, tensor] : tensors.entries()) {
        EXPECT_LE(tensor.data.size(), bytes.size());
      }
    }
  }
}

TEST(Safetensors, NamesAFileThatIsNotThere) {
  Safetensors tensors;
  const Status status = Safetensors::read("no/such.safetensors", tensors);
  EXPECT_EQ(status.argument(), "no/such.safetensors");
}

}  // namespace
}  // namespace multihead
