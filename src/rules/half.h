// Scalar conversions between half-precision storage and float. They use integer operations, so the
// bits are the same on every machine.
#pragma once

#include <bit>
#include <cstdint>

#include "multihead/tensor.h"

namespace multihead::rules {

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

}  // namespace multihead::rules
