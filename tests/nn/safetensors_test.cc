#include "nn/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

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
      {"bytes left over", file(R"({"x":)" + entry("[1]", "[0,4]") + "}", 8)},
  };
  for (const auto& [name, bytes] : cases) {
    Safetensors tensors;
    const Status status = Safetensors::parse(bytes, tensors);
    EXPECT_EQ(status.code(), StatusCode::kFormat) << name;
    EXPECT_TRUE(tensors.entries().empty()) << name;
  }
}

TEST(Safetensors, NamesAFileThatIsNotThere) {
  Safetensors tensors;
  const Status status = Safetensors::read("no/such.safetensors", tensors);
  EXPECT_EQ(status.argument(), "no/such.safetensors");
}

}  // namespace
}  // namespace multihead
