// One check for every enumerator that a public call takes.
#pragma once

#include <type_traits>

#include "engine/error/error.h"

namespace multihead::engine {

// kOption for a number that no enumerator has. The enumerators are 0 .. `last`, without gaps.
template <class Enum>
Status validate_enumerator(Name argument, Enum value, Enum last) {
  static_assert(std::is_unsigned_v<std::underlying_type_t<Enum>>);
  if (value <= last) return {};
  return option_error(argument, Message::kEnumerator, static_cast<int>(last) + 1,
                      static_cast<int>(value));
}

}  // namespace multihead::engine
