// exp, log and powers without tables. The C library's take 11 kB of numbers, which do not compress:
// a tenth of the module. Within 2 units in the last place, pow() as its comment says.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace multihead::bindings {

// ln 2 in two parts: the product of the high one with an exponent is exact.
inline constexpr double kLn2High = 0x1.62e42fee00000p-1, kLn2Low = 0x1.a39ef35793c76p-33;

// For exponents of normal numbers.
inline double power_of_two(int64_t exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52U);
}

// x * 2^exponent, for exponents of exp(); in two steps, the last of which may be subnormal.
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

// Adding it rounds to an integer, which then stands in the low bits.
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

// For x > 0; the relative error is that of x^y = e^(y ln x), 1e-16 times the exponent.
inline double small_pow(double x, double y) { return y == 0 ? 1.0 : small_exp(y * small_log(x)); }

}  // namespace multihead::bindings
