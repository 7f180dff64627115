// Marsaglia's polar method: "A convenient method for generating normal variables", SIAM Review 6
// (1964). Uses only additions, multiplications, divisions and square roots in double, which IEEE
// 754 rounds alike on every machine. This file is compiled without fused multiply-add, and calls no
// other functions of a C library, because their results differ.
#include "rules/random_normal.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "rules/dropout_mask.h"

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

namespace multihead::rules {
namespace {

// Returns a uniform number in [-1, 1) from the upper 53 of 64 bits.
double uniform(uint32_t high, uint32_t low) {
  const uint64_t bits = uint64_t{high} << 32U | low;
  return static_cast<double>(static_cast<int64_t>(bits) >> 11U) * 0x1p-52;
}

// Natural logarithm of positive normal numbers. x = m 2^e with m in [sqrt(1/2), sqrt(2)); with t =
// (m - 1) / (m + 1), ln m = 2 (t + t^3 / 3 + t^5 / 5 + ...). The terms from t^23 on are below
// 2^-53.
double natural_log(double x) {
  constexpr uint64_t kMantissa = (uint64_t{1} << 52U) - 1;
  const auto bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52U) - 1023;
  double m = std::bit_cast<double>((bits & kMantissa) | (uint64_t{1023} << 52U));
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double t = (m - 1.0) / (m + 1.0);
  const double square = t * t;
  double series = 0.0;
  for (int k = 21; k >= 1; k -= 2) series = series * square + 1.0 / k;
  return exponent * 0.69314718055994531 + 2.0 * t * series;
}

}  // namespace

NormalStream::NormalStream(uint64_t seed, uint64_t stream)
    // The constant makes the key differ from the key of dropout with the same seed.
    : key_(seed ^ uint64_t{0x6e6f726d616c0001U}), stream_(stream) {}

double NormalStream::next_point() {
  const auto low = [](uint64_t word) { return static_cast<uint32_t>(word); };
  const auto high = [](uint64_t word) { return static_cast<uint32_t>(word >> 32U); };
  while (true) {
    const std::array<uint32_t, 4> words = philox4x32(
        {low(index_), high(index_), low(stream_), high(stream_)}, {low(key_), high(key_)});
    ++index_;
    u_ = uniform(words[0], words[1]);
    v_ = uniform(words[2], words[3]);
    const double square = u_ * u_ + v_ * v_;
    if (square < 1.0 && square != 0.0) return square;
  }
}

void NormalStream::fill(double standard_deviation, float* to, int64_t count) {
  const auto factor = [&](double square) {
    return standard_deviation * std::sqrt(-2.0 * natural_log(square) / square);
  };
  int64_t i = 0;
  if (square_ > 0.0 && count > 0) {
    to[i++] = static_cast<float>(v_ * factor(square_));
    square_ = 0.0;
  }
  while (i < count) {
    const double square = next_point(), scale = factor(square);
    to[i++] = static_cast<float>(u_ * scale);
    if (i < count) {
      to[i++] = static_cast<float>(v_ * scale);
    } else {
      square_ = square;
    }
  }
}

void NormalStream::skip(int64_t count) {
  if (square_ > 0.0 && count > 0) {
    square_ = 0.0;
    --count;
  }
  for (; count > 0; count -= 2) {
    const double square = next_point();
    if (count == 1) square_ = square;
  }
}

}  // namespace multihead::rules
