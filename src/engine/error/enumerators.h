// Checks the enumerators that public calls take.
#pragma once

#include <type_traits>

#include "engine/error/error.h"

namespace multihead::engine {

// Returns kOption if `value` is not one of the enumerators 0 .. `last`, which have no gaps.
template <class Enum>
Status validate_enumerator(Name argument, Enum value, Enum last) {
  static_assert(std::is_unsigned_v<std::underlying_type_t<Enum>>);
  if (value <= last) return {};
  return option_error(argument, Message::kEnumerator, static_cast<int>(last) + 1,
                      static_cast<int>(value));
}

}  // namespace multihead::engine
