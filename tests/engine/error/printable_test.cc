#include "engine/error/printable.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <utility>

#include "multihead/status.h"

namespace multihead::engine {
namespace {

std::string utf8(unsigned code) {
  const auto byte = [](unsigned value) { return std::string(1, static_cast<char>(value)); };
  if (code < 0x80) return byte(code);
  if (code < 0x800) return byte(0xC0 | code >> 6) + byte(0x80 | (code & 0x3F));
  return byte(0xE0 | code >> 12) + byte(0x80 | (code >> 6 & 0x3F)) + byte(0x80 | (code & 0x3F));
}

TEST(Printable, KeepsTextOfEveryScript) {
  const std::string text = "h.0.attn \\u202e é ⊤ 注意 👩‍🚀 ﷽";
  EXPECT_EQ(printable(text), text);
  EXPECT_EQ(printable(""), "");
}

TEST(Printable, EscapesControlsAndNothingElse) {
  EXPECT_EQ(printable(std::string("a\0b\n\x1b[2J", 8)), "a\\u0000b\\u000a\\u001b[2J");
  std::string escaped;
  for (unsigned code = 0; code < 0x10000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;  // surrogates, which UTF-8 does not encode
    if (printable(utf8(code)) != utf8(code)) escaped += printable(utf8(code)).substr(2) + " ";
  }
  std::string expected;
  for (const auto& [first, last] : {std::pair{0x0, 0x1F},
                                    {0x7F, 0x9F},
                                    {0x61C, 0x61C},
                                    {0x200E, 0x200F},
                                    {0x2028, 0x202E},
                                    {0x2066, 0x2069}}) {
    for (int code = first; code <= last; ++code) {
      constexpr char kDigits[] = "0123456789abcdef";
      for (int shift = 12; shift >= 0; shift -= 4) expected += kDigits[code >> shift & 0xF];
      expected += ' ';
    }
  }
  EXPECT_EQ(escaped, expected);
}

TEST(Printable, EscapesBytesThatAreNoUtf8) {
  EXPECT_EQ(printable("\xFF"
                      "a\xC3"),
            "\\xffa\\xc3");
  EXPECT_EQ(printable("\xC0\xAF"), "\\xc0\\xaf");           // overlong
  EXPECT_EQ(printable("\xED\xA0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(printable("\xF4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
}

TEST(Printable, CutsBetweenCharacters) {
  EXPECT_EQ(printable(std::string(80, 'x')), std::string(80, 'x'));
  EXPECT_EQ(printable(std::string(81, 'x')), std::string(80, 'x') + "…");
  EXPECT_EQ(printable("éé⊤⊤", 3), "éé⊤…");
  // A second call changes nothing.
  const std::string once = printable(std::string(100, '\n'), 80);
  EXPECT_EQ(once.size(), 80 * 6 + std::string("…").size());
  EXPECT_EQ(printable(once, 1000), once);
}

TEST(Printable, ListsTenNamesAndCountsTheOthers) {
  NameList list;
  EXPECT_TRUE(list.empty());
  for (int i = 1; i <= 10; ++i) list.add("n" + std::to_string(i), i == 1 ? " (2)" : "");
  EXPECT_EQ(list.text(), "n1 (2), n2, n3, n4, n5, n6, n7, n8, n9, n10");
  for (size_t i = 0; i < 512; ++i) list.add(std::string(1000, 'y'));
  EXPECT_EQ(list.text(), "n1 (2), n2, n3, n4, n5, n6, n7, n8, n9, n10 and 512 more");
  NameList one;
  one.add(std::string(1000, '\r'));
  EXPECT_LT(one.text().size(), 500U);
}

}  // namespace
}  // namespace multihead::engine
