// The block of memory that holds the arguments of a call, and after it what the call has written
// for JavaScript: see wire.inc. (Passed as Embind's value objects, arguments cost 15 us a call and
// a ninth of the module.)
#pragma once

#include <cstdint>

namespace multihead::bindings {

#define WIRE_CONSTANT(name, javascript, value) inline constexpr int name = value;
#include "wire.inc"

// Before the arguments stands how many numbers they are.
inline constinit double argument_block[kBlockLength] = {};

template <class T>
T* pointer(uint32_t address) {
  // JavaScript has addresses as numbers.
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

inline uint32_t address_of(const void* pointer) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pointer));
}

}  // namespace multihead::bindings
