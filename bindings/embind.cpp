// The table of functions that JavaScript calls, and those of memory and errors. Checks of
// JavaScript values, lifetime and ownership are the TypeScript package's.
#ifndef MULTIHEAD_GPU
#include <emscripten/bind.h>
#endif
#include <emscripten/emscripten.h>

#include <cstdint>
#include <cstdlib>
#include <initializer_list>

#include "argument_block.h"
#include "call.h"
#include "functions.h"
#include "multihead/multihead.h"
#include "results.h"

namespace multihead::bindings {

// JavaScript numbers the values of an enumeration as wire.inc lists them.
template <class Enum>
consteval bool in_order(std::initializer_list<Enum> values) {
  int next = 0;
  for (const Enum value : values) {
    if (static_cast<int>(value) != next++) return false;
  }
  return true;
}

// NOLINTNEXTLINE(bugprone-macro-parentheses): a namespace
#define WIRE_ENUM(type, javascript, ...)        \
  namespace javascript {                        \
  using enum type;                              \
  static_assert(in_order<type>({__VA_ARGS__})); \
  }
#include "wire.inc"

uint32_t block_address() { return address_of(argument_block); }

// 64 bytes: a cache line, and the widest vector of any target.
extern "C" EMSCRIPTEN_KEEPALIVE uint32_t multihead_allocate(uint32_t bytes) {
  constexpr uint32_t kAlignment = 64;
  // sbrk() takes a signed number of bytes, some of malloc()'s own among them.
  constexpr uint32_t kLargest = INT32_MAX - (1 << 20);
  // The reserve comes first: without it the next call could not report its error.
  if (bytes > kLargest || !has_reserve()) return 0;
  const uint32_t rounded = (bytes + kAlignment) / kAlignment * kAlignment;
  return address_of(std::aligned_alloc(kAlignment, rounded));
}

extern "C" EMSCRIPTEN_KEEPALIVE void multihead_release(uint32_t address) {
  std::free(pointer<void>(address));
}

void last_error() { write(*last_status.record()); }

void simd_target() {
  static const SimdTarget target{multihead::simd_target()};
  write(target);
}

}  // namespace multihead::bindings

#ifndef MULTIHEAD_GPU  // which functions.h exports
// In place of a file of Embind's library, which registers strings, views and all other types: 3 kB
// of the glue (Brotli). Registered are the types of wire.inc's functions.
extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier)
void _embind_register_bindings(emscripten::internal::InitFunc* /*listed*/) {}
// The name of a type that is not registered, which no function has.
const char* __getTypeName(emscripten::internal::TYPEID /*type*/) { return nullptr; }
// NOLINTEND(bugprone-reserved-identifier)
}

template <class T>
constexpr emscripten::internal::TYPEID type_id = emscripten::internal::TypeID<T>::get();

EMSCRIPTEN_BINDINGS(multihead) {
  using namespace emscripten::internal;
  _embind_register_void(type_id<void>, "void");
  _embind_register_bool(type_id<bool>, "bool", true, false);
  _embind_register_integer(type_id<int32_t>, "int", 4, INT32_MIN, INT32_MAX);
  _embind_register_integer(type_id<uint32_t>, "unsigned int", 4, 0, UINT32_MAX);
  _embind_register_float(type_id<double>, "double", 8);
#define WIRE_BASE_FUNCTION(javascript, cpp, signature) \
  emscripten::function(#javascript, &multihead::bindings::cpp);
#ifdef MULTIHEAD_MODELS
#define WIRE_MODELS_FUNCTION WIRE_BASE_FUNCTION
#define WIRE_SHARED_FUNCTION WIRE_BASE_FUNCTION
#else
#define WIRE_CORE_FUNCTION WIRE_BASE_FUNCTION
#ifndef MULTIHEAD_CORE
#define WIRE_FUNCTION WIRE_BASE_FUNCTION
#endif
#endif
#include "wire.inc"
}
#endif
