// exp, log, powers, sine and cosine without tables. The C library's tables take 14 kB that do not
// compress: a tenth of the module. Errors: at most 2 units in the last place; sine and cosine
// 4e-16; pow() see small_pow().
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace multihead::bindings {

// ln 2 as a sum of two parts. The product of the high part with an exponent is exact.
inline constexpr double kLn2High = 0x1.62e42fee00000p-1, kLn2Low = 0x1.a39ef35793c76p-33;

// 2^exponent for exponents of normal numbers.
inline double power_of_two(int64_t exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52U);
}

// x * 2^exponent, for exponents of exp(). Multiplies in two steps, because the result may be
// subnormal.
inline double scaled(double x, int64_t exponent) {
  const int64_t half = exponent / 2;
  return x * power_of_two(half) * power_of_two(exponent - half);
}

// e^r for |r| <= ln(2) / 2, by Taylor's series.
inline double small_exp_reduced(double r) {
  constexpr double kFactorials[] = {6227020800.0, 479001600.0, 39916800.0, 3628800.0,
                                    362880.0,     40320.0,     5040.0,     720.0,
                                    120.0,        24.0,        6.0,        2.0};
  double sum = 0;
  for (const double factorial : kFactorials) sum = sum * r + 1.0 / factorial;
  return 1.0 + (r + r * r * sum);
}

// Adding this constant rounds to an integer, which is then in the low bits of the mantissa.
inline constexpr double kRounding = 0x1.8p52;

inline double small_exp(double x) {
  if (!(x < 709.8)) return x > 0 ? std::numeric_limits<double>::infinity() : x;
  if (x < -745.2) return 0;
  const double exponent = x * 1.4426950408889634 + kRounding - kRounding;
  const double r = (x - exponent * kLn2High) - exponent * kLn2Low;
  return scaled(small_exp_reduced(r), static_cast<int64_t>(exponent));
}

inline double small_exp2(double x) {
  if (!(x < 1024.0)) return x > 0 ? std::numeric_limits<double>::infinity() : x;
  if (x < -1075.0) return 0;
  const double exponent = x + kRounding - kRounding;
  return scaled(small_exp_reduced((x - exponent) * 0.69314718055994531),
                static_cast<int64_t>(exponent));
}

// With x = 2^k (1 + f) and s = f / (2 + f), ln(1 + f) = f - s (f - R), where R is the sum of
// 2 s^(2i) / (2i + 1) from i = 1 on.
inline double small_log(double x) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (!(x > 0)) return x == 0 ? -kInfinity : std::numeric_limits<double>::quiet_NaN();
  if (x == kInfinity) return x;
  int64_t exponent = 0;
  if (x < std::numeric_limits<double>::min()) {
    x *= 0x1p54;
    exponent = -54;
  }
  const auto bits = std::bit_cast<uint64_t>(x);
  constexpr uint64_t kMantissa = (uint64_t{1} << 52U) - 1;
  exponent += static_cast<int64_t>(bits >> 52U) - 1023;
  double m = std::bit_cast<double>((bits & kMantissa) | uint64_t{1023} << 52U);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double f = m - 1.0, s = f / (2.0 + f), z = s * s;
  double sum = 0;
  for (double odd = 23; odd >= 3; odd -= 2) sum = (sum + 2.0 / odd) * z;
  const auto k = static_cast<double>(exponent);
  return k * kLn2High - ((s * (f - sum) - k * kLn2Low) - f);
}

// x^y = e^(y ln x) for x > 0. The relative error is 1e-16 times |y ln x|.
inline double small_pow(double x, double y) { return y == 0 ? 1.0 : small_exp(y * small_log(x)); }

// Bits of 2 / pi: 64 zeros, then the bits after the binary point.
inline constexpr uint32_t kTwoOverPi[] = {
    0x00000000, 0x00000000, 0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599, 0x3c439041,
    0xfe5163ab, 0xdebbc561, 0xb7246e3a, 0x424dd2e0, 0x06492eea, 0x09d1921c, 0xfe1deb1c, 0xb129a73e,
    0xe88235f5, 0x2ebb4484, 0xe99c7026, 0xb45f7e41, 0x3991d639, 0x835339f4, 0x9c845f8b, 0xbdf9283b,
    0x1ff897ff, 0xde05980f, 0xef2f118b, 0x5a0a6d1f, 0x6d367ecf, 0x27cb09b7, 0x4f463f66, 0x9e5fea2d,
    0x7527bac7, 0xebe5f17b, 0x3d0739f7, 0x8a5292ea, 0x6bfb5fb1, 0x1f8d5d08, 0x56033046, 0xfc7b6bab};

// An angle as quadrant * pi / 2 + rest, |rest| <= pi / 4.
struct ReducedAngle {
  double rest;
  uint32_t quadrant;
};

// Reduces a finite angle >= pi / 4. With x = m 2^e, the number of turns x (2 / pi) / 4 is m times
// 2^(e - 2) (2 / pi). Whole turns do not matter, so 192 bits after the binary point suffice (Payne
// and Hanek, 1983).
inline ReducedAngle reduced(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  const uint64_t m = (bits & ((uint64_t{1} << 52U) - 1)) | uint64_t{1} << 52U;
  // First bit in the table: e - 2 + 64, at least 9.
  const auto from = static_cast<uint32_t>(bits >> 52U) - 1075 + 62;
  constexpr int kWords = 6;
  uint32_t part[kWords], product[kWords] = {};  // least significant word first
  for (uint32_t i = 0; i < kWords; ++i) {
    const uint32_t word = from / 32 + i, shift = from % 32;
    const uint64_t both = uint64_t{kTwoOverPi[word]} << 32U | kTwoOverPi[word + 1];
    part[kWords - 1 - i] = static_cast<uint32_t>(both >> (32 - shift));
  }
  for (int half = 0; half < 2; ++half) {
    const uint64_t factor = half == 0 ? m & 0xffffffffU : m >> 32U;
    uint64_t carry = 0;
    for (int i = 0; i + half < kWords; ++i) {
      carry += factor * part[i] + product[i + half];
      product[i + half] = static_cast<uint32_t>(carry);
      carry >>= 32U;
    }
  }
  const auto pair = [&](int i) { return uint64_t{product[i + 1]} << 32U | product[i]; };
  const uint64_t high = pair(4), low = pair(2);
  // The fraction of a quadrant, in [-1/2, 1/2).
  const auto fraction = static_cast<int64_t>(high << 2U | low >> 62U);
  const auto quadrant = static_cast<uint32_t>(high >> 62U) + (fraction < 0 ? 1 : 0);
  constexpr double kHalfPi = 1.5707963267948966;
  return {(static_cast<double>(fraction) * 0x1p-64 + static_cast<double>(low << 2U) * 0x1p-128) *
              kHalfPi,
          quadrant};
}

// sin(x + quadrants * pi / 2)
inline double small_sine(double x, uint32_t quadrants) {
  const double size = x < 0 ? -x : x;
  if (!(size < std::numeric_limits<double>::infinity())) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  double r = x;
  if (size > 0.78) {
    const ReducedAngle angle = reduced(size);
    r = x < 0 ? -angle.rest : angle.rest;
    quadrants += x < 0 ? 0 - angle.quadrant : angle.quadrant;
  }
  // Taylor's series: each term is the previous one times -r^2 / (n (n + 1)).
  const bool is_cos = (quadrants & 1U) != 0;
  const double square = r * r;
  double sum = 0;
  for (double n = is_cos ? 17 : 18; n > 1; n -= 2) sum = -(1.0 + sum) * square / (n * (n + 1));
  const double value = is_cos ? 1.0 - (0.5 + 0.5 * sum) * square : r + r * sum;
  return (quadrants & 2U) != 0 ? -value : value;
}

inline double small_sin(double x) { return small_sine(x, 0); }
inline double small_cos(double x) { return small_sine(x, 1); }

}  // namespace multihead::bindings
