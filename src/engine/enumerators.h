// One check for every enumerator that a public call takes.
#pragma once

#include <string>
#include <type_traits>

#include "multihead/status.h"

namespace multihead::engine {

inline Status enumerator_error(const char* argument, int last, int value) {
  return {StatusCode::kOption, argument, "one of its " + std::to_string(last + 1) + " values",
          "number " + std::to_string(value)};
}

// kOption for a number that no enumerator has. The enumerators are 0 .. `last`, without gaps.
template <class Enum>
Status validate_enumerator(const char* argument, Enum value, Enum last) {
  static_assert(std::is_unsigned_v<std::underlying_type_t<Enum>>);
  if (value <= last) return {};
  return enumerator_error(argument, static_cast<int>(last), static_cast<int>(value));
}

}  // namespace multihead::engine
