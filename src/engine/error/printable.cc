#include "engine/error/printable.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace multihead::engine {
namespace {

constexpr size_t kMostListed = 10;

// Decodes one valid UTF-8 character.
uint32_t code_point(std::string_view character) {
  const auto lead = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return lead;
  // The lead byte of an n-byte character begins with n ones and a zero.
  uint32_t code = lead & (0x7FU >> character.size());
  for (const char letter : character.substr(1)) {
    code = code << 6U | (static_cast<unsigned char>(letter) & 0x3FU);
  }
  return code;
}

// True for characters that control a terminal, end a line or change the order of neighboring
// characters: Unicode's categories Cc, Zl and Zp and its property Bidi_Control. All are below
// U+10000.
bool is_control(uint32_t code) {
  const auto within = [code](uint32_t first, uint32_t last) {
    return first <= code && code <= last;
  };
  return code < 0x20 || within(0x7F, 0x9F) || code == 0x61C || within(0x200E, 0x200F) ||
         within(0x2028, 0x202E) || within(0x2066, 0x2069);
}

// Appends a backslash, `kind` and hexadecimal digits.
void append_escape(char kind, uint32_t number, int digits, std::string& to) {
  to += '\\';
  to += kind;
  while (digits-- > 0) to += "0123456789abcdef"[number >> (4 * digits) & 0xFU];
}

}  // namespace

size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80) return 0;
  }
  // Refuses overlong forms, surrogates and code points beyond U+10FFFF.
  const unsigned char second = byte(1);
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
      (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)) {
    return 0;
  }
  return length;
}

std::string printable(std::string_view text, size_t most) {
  std::string result;
  for (size_t count = 0; !text.empty(); ++count) {
    if (count == most) return result + "…";
    const size_t length = utf8_length(text);
    const std::string_view character = text.substr(0, std::max<size_t>(length, 1));
    if (length == 0) {
      append_escape('x', static_cast<unsigned char>(character[0]), 2, result);
    } else if (const uint32_t code = code_point(character); is_control(code)) {
      append_escape('u', code, 4, result);
    } else {
      result += character;
    }
    text.remove_prefix(character.size());
  }
  return result;
}

void NameList::add(std::string_view name, std::string_view detail) {
  if (++count_ > kMostListed) return;
  if (count_ > 1) text_ += ", ";
  text_ += printable(name);
  text_ += detail;
}

std::string NameList::text() const {
  if (count_ <= kMostListed) return text_;
  return text_ + " and " + std::to_string(count_ - kMostListed) + " more";
}

}  // namespace multihead::engine
