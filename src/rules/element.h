// Storage types of tensors and caches: the only switch over them, scalar conversions, and the order
// of bytes in files.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "multihead/tensor.h"

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

// Conversions between half-precision storage and float use integer operations, so the bits are the
// same on every machine.

// Exact: every binary16 number is a float.
constexpr float to_float(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000U) << 16U;
  const uint32_t exponent = (value.bits >> 10U) & 0x1FU;
  const uint32_t mantissa = value.bits & 0x3FFU;
  if (exponent == 0) {
    // Zero or subnormal: a multiple of 2^-24.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t widened = exponent == 31 ? 255U : exponent + 112U;  // 112 = 127 - 15
  return std::bit_cast<float>(sign | (widened << 23U) | (mantissa << 13U));
}

constexpr float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16U);
}

constexpr float to_float(float value) { return value; }

// Rounds to nearest, ties to even. Overflow gives infinity; NaN stays NaN.
constexpr Float16 to_float16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16U) & 0x8000U;
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  uint32_t half = 0;
  if (magnitude > 0x7F800000U) {
    half = 0x7E00U | ((magnitude >> 13U) & 0x3FFU);  // quiet NaN with the upper bits of the payload
  } else if (magnitude >= 0x47800000U) {             // 2^16
    half = 0x7C00U;
  } else if (magnitude < 0x38800000U) {  // 2^-14
    // Floats in [1/2, 1) are multiples of 2^-24, as subnormal halves are: the addition rounds.
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U;
  } else {
    // Rounding may carry into the exponent, up to infinity.
    const uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13U) & 1U);
    half = (rounded - (112U << 23U)) >> 13U;
  }
  return {static_cast<uint16_t>(sign | half)};
}

// Rounds as to_float16() does. A subnormal float becomes a subnormal bfloat16.
constexpr BFloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {
    return {static_cast<uint16_t>((bits >> 16U) | 0x40U)};
  }
  return {static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U)};
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

// True if this processor stores the lowest byte of a number first, as safetensors files do.
inline constexpr bool kOrderOfFiles = std::endian::native == std::endian::little;

// Changes numbers of `size` bytes from the order of files to the order of this processor, or back.
inline void turn_numbers([[maybe_unused]] std::span<std::byte> numbers,
                         [[maybe_unused]] size_t size) {
  if constexpr (!kOrderOfFiles) {
    for (; !numbers.empty(); numbers = numbers.subspan(size)) {
      std::ranges::reverse(numbers.first(size));
    }
  }
}

}  // namespace multihead::rules
