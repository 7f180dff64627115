// The memory block that passes the arguments of a call to C++, and afterwards its results to
// JavaScript: see wire.inc. (Embind's value objects instead would cost 15 us per call and a ninth
// of the module.)
#pragma once

#include <cstdint>

// WIRE_EACH(macro, type, members...) expands to macro(type, member) for each member; at most 16.
// WIRE_NEXT cannot expand itself, so it ends with a call of itself that the preprocessor completes
// when WIRE_EXPAND reads the text again.
#define WIRE_EACH(...) WIRE_EXPAND(WIRE_NEXT(__VA_ARGS__))
#define WIRE_NEXT(macro, type, member, ...) \
  macro(type, member) __VA_OPT__(WIRE_NEXT_AGAIN WIRE_PARENTHESES(macro, type, __VA_ARGS__))
#define WIRE_NEXT_AGAIN() WIRE_NEXT
#define WIRE_PARENTHESES ()
#define WIRE_EXPAND(...) WIRE_EXPAND4(WIRE_EXPAND4(WIRE_EXPAND4(WIRE_EXPAND4(__VA_ARGS__))))
#define WIRE_EXPAND4(...) WIRE_EXPAND1(WIRE_EXPAND1(WIRE_EXPAND1(WIRE_EXPAND1(__VA_ARGS__))))
#define WIRE_EXPAND1(...) __VA_ARGS__

namespace multihead::bindings {

#define WIRE_CONSTANT(name, javascript, value) inline constexpr int name = value;
#include "wire.inc"

// Element 0 is the number of arguments that follow.
inline constinit double argument_block[kBlockLength] = {};

template <class T>
T* pointer(uint32_t address) {
  // Converts an address, which JavaScript represents as a number.
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

inline uint32_t address_of(const void* pointer) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pointer));
}

}  // namespace multihead::bindings
