#include "multihead/safetensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

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
      {"unknown dtype", file(R"({"x":)" + entry("[1]", "[0,8]", "F64") + "}", 8)},
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

TEST(Safetensors, RoundTripsEveryFloatingPointType) {
  // Numbers that all three types hold, one of them infinite; (2, 3) column by column.
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
    // What was read is written as it was.
    std::vector<std::byte> again;
    ASSERT_TRUE(write_safetensors(read, SafetensorsType::kAsGiven, again).ok());
    EXPECT_EQ(again, bytes);
  }
}

TEST(Safetensors, RefusesAHeaderOfMoreThanAHundredMegabytes) {
  Safetensors tensors;
  const Status status = Safetensors::parse(file("{}" + std::string(100'000'000, ' '), 0), tensors);
  EXPECT_EQ(status.code(), StatusCode::kFormat);
}

// An odd number of halves, and floats behind them by name.
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

// A tensor of four bytes behind one of two is legal in a file and cannot be viewed.
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

// Every truncation and every changed byte of a small file: refused or read, never beyond it.
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
