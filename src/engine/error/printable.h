// Makes names and other words that come from files printable, for errors and programs.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "rules/shared.h"

namespace multihead::engine {

// Maximum number of characters of a name, and of each part of an error.
inline constexpr size_t kMostNameCharacters = 80;
inline constexpr size_t kMostPartCharacters = 4096;

// Returns the first `most` characters of `text` as UTF-8, then "…" if there are more. Control
// characters, line separators and bidirectional controls become escapes such as "\u202e", and
// invalid bytes escapes such as "\xff". Escapes of an earlier call are not escaped again.
MULTIHEAD_SHARED std::string printable(std::string_view text, size_t most = kMostNameCharacters);

// Returns the length in bytes of the UTF-8 character at the start of the nonempty `text`; 0 if it
// is invalid (RFC 3629).
MULTIHEAD_SHARED size_t utf8_length(std::string_view text);

// Collects names for one error: shows the first ten and the number of further names.
class NameList {
 public:
  // `detail` is appended to the name without escaping.
  void add(std::string_view name, std::string_view detail = {});

  bool empty() const { return count_ == 0; }
  // "a, b and 512 more"
  std::string text() const;

 private:
  std::string text_;
  size_t count_ = 0;
};

}  // namespace multihead::engine
