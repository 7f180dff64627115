// Storage types of tensors and caches: the only switch over them, and scalar conversions.
#pragma once

#include <cstdint>
#include <type_traits>

#include "multihead/tensor.h"
#include "rules/half.h"

namespace multihead::rules {

// Calls visit(std::type_identity<T>()) with the C++ type of `type`: float, Float16, BFloat16 or
// int8_t. Always inlined, so that a kernel's visitor can be inlined into the kernel.
template <class Visit>
[[gnu::always_inline]] constexpr decltype(auto) visit_element(DType type, Visit&& visit) {
  switch (type) {
    case DType::kF16:
      return visit(std::type_identity<Float16>());
    case DType::kBF16:
      return visit(std::type_identity<BFloat16>());
    case DType::kInt8:
      return visit(std::type_identity<int8_t>());
    case DType::kF32:
      break;
  }
  return visit(std::type_identity<float>());
}

// int8 without its scale.
constexpr float to_float(int8_t value) { return static_cast<float>(value); }

// Rounds to nearest, ties to even. Not for int8, whose scale depends on the whole row.
template <class T>
constexpr T from_float(float value) {
  if constexpr (std::is_same_v<T, Float16>) {
    return to_float16(value);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bfloat16(value);
  } else {
    static_assert(std::is_same_v<T, float>);
    return value;
  }
}

// to[c] = from[offset + c] for c < width. `from` has type `type`.
inline void read_floats(const void* from, DType type, int64_t offset, int64_t width, float* to) {
  visit_element(type, [&]<class T>(std::type_identity<T>) {
    const T* const row = static_cast<const T*>(from) + offset;
    for (int64_t c = 0; c < width; ++c) to[c] = to_float(row[c]);
  });
}

// to[offset + c] = from[c] for c < width. `to` has type `type`, which is not int8.
inline void write_floats(const float* from, int64_t width, void* to, DType type, int64_t offset) {
  visit_element(type, [&]<class T>(std::type_identity<T>) {
    if constexpr (!std::is_same_v<T, int8_t>) {
      T* const row = static_cast<T*>(to) + offset;
      for (int64_t c = 0; c < width; ++c) row[c] = from_float<T>(from[c]);
    }
  });
}

}  // namespace multihead::rules
