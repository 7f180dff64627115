// convert_rows() compared with a loop over single numbers, bit by bit, on every SIMD target.
#include "cpu/elementwise/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rules/element.h"
#include "support/random_case.h"
#include "support/simd_targets.h"

namespace multihead::cpu {
namespace {

using testing::Random;
using Bytes = std::vector<uint8_t>;

constexpr DType kSources[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr DType kTargets[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8};

void quantize(const std::vector<float>& row, int8_t* to, float& scale) {
  float largest = 0.0F;
  for (const float value : row) {
    const float magnitude = std::abs(value);
    if (!std::isnan(largest) && !(magnitude <= largest)) largest = magnitude;
  }
  scale = largest / 127.0F;
  const bool finite = std::isfinite(largest);
  const float enlarge = largest < 0x1p-64F ? 0x1p64F : 1.0F;
  const float inverse = largest > 0.0F && finite ? 127.0F / (largest * enlarge) : 0.0F;
  for (size_t c = 0; c < row.size(); ++c) {
    const float scaled = std::clamp(row[c] * enlarge * inverse, -127.0F, 127.0F);
    to[c] = finite ? static_cast<int8_t>(std::nearbyint(scaled)) : int8_t{1};
  }
}

void convert_plainly(const ConvertRows& p) {
  std::vector<float> row(static_cast<size_t>(p.width));
  for (int64_t r = 0; r < p.rows; ++r) {
    rules::read_floats(p.from, p.from_type, r * p.from_stride, p.width, row.data());
    if (p.to_type == DType::kInt8) {
      quantize(row, static_cast<int8_t*>(p.to) + r * p.to_stride, p.scales[r * p.scale_stride]);
    } else {
      rules::write_floats(row.data(), p.width, p.to, p.to_type, r * p.to_stride);
    }
  }
}

size_t size_of(DType type, int64_t elements) {
  return static_cast<size_t>(elements * bytes_of(type));
}

// A target in memory of its own, with other bytes before, between and after its rows.
struct Target {
  Bytes bytes;
  std::vector<float> scales;

  explicit Target(const ConvertRows& p, size_t offset)
      : bytes(offset + size_of(p.to_type, p.rows * p.to_stride) + 64, 0xAB),
        scales(static_cast<size_t>(p.rows * std::max<int64_t>(p.scale_stride, 1)), -7.0F) {}
};

template <class Convert>
Target converted(ConvertRows p, size_t offset, const Convert& convert) {
  Target target(p, offset);
  p.to = target.bytes.data() + offset;
  p.scales = p.to_type == DType::kInt8 ? target.scales.data() : nullptr;
  convert(p);
  return target;
}

void expect_equal(const ConvertRows& p, size_t offset) {
  const Target expected = converted(p, offset, convert_plainly);
  testing::on_every_target([&] {
    const Target got = converted(p, offset, convert_rows);
    const std::string what = std::string(name_of(p.from_type)) + " to " + name_of(p.to_type) +
                             ", width " + std::to_string(p.width);
    ASSERT_EQ(got.bytes, expected.bytes) << what;
    // Compared as bits: a scale may be a NaN.
    for (size_t i = 0; i < got.scales.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(got.scales[i]), std::bit_cast<uint32_t>(expected.scales[i]))
          << what << ", row " << i;
    }
  });
}

void put(DType type, float value, int64_t at, Bytes& bytes, size_t offset) {
  rules::write_floats(&value, 1, bytes.data() + offset, type, at);
}

TEST(ConvertRows, AnyWidthStrideAndAlignment) {
  for (const uint64_t seed : testing::random_seeds(150)) {
    Random random(seed);
    for (const DType from : kSources) {
      for (const DType to : kTargets) {
        ConvertRows p{.from = nullptr,
                      .from_type = from,
                      .from_stride = 0,
                      .to = nullptr,
                      .to_type = to,
                      .to_stride = 0,
                      .scales = nullptr,
                      .scale_stride = random.integer(1, 3),
                      .rows = random.integer(1, 5),
                      .width = random.chance(0.3) ? random.integer(1, 600) : random.integer(1, 70)};
        const bool dense = random.chance(0.3);
        p.from_stride = p.width + (dense ? 0 : random.integer(0, 9));
        p.to_stride = p.width + (dense ? 0 : random.integer(0, 9));
        // The elements are aligned as their type needs, the rows not as a vector.
        const auto from_offset = size_of(from, random.integer(0, 15));
        Bytes source(from_offset + size_of(from, p.rows * p.from_stride) + 64);
        // Ordinary numbers of a size of their own for each row, or any bits at all.
        const bool any_bits = random.chance(0.2);
        for (int64_t r = 0; r < p.rows; ++r) {
          const float size = std::ldexp(1.0F, static_cast<int>(random.integer(-140, 127)));
          for (int64_t c = 0; c < p.width; ++c) {
            put(from, random.uniform(-size, size), r * p.from_stride + c, source, from_offset);
          }
          if (random.chance(0.1)) {
            put(from, random.pick({INFINITY, -INFINITY, NAN, 0.0F, -0.0F}),
                r * p.from_stride + random.integer(0, p.width - 1), source, from_offset);
          }
        }
        if (any_bits) {
          for (uint8_t& byte : source) byte = static_cast<uint8_t>(random.integer(0, 255));
        }
        p.from = source.data() + from_offset;
        expect_equal(p, size_of(to, random.integer(0, 15)));
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Every half, and floats around every tie and limit of rounding.
TEST(ConvertRows, EveryHalfAndEveryTie) {
  std::vector<uint16_t> halves(1 << 16);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> floats;
  for (const uint32_t half : halves) {
    for (const float middle : {rules::to_float(Float16{static_cast<uint16_t>(half)}),
                               rules::to_float(BFloat16{static_cast<uint16_t>(half)})}) {
      const auto bits = std::bit_cast<uint32_t>(middle);
      for (const uint32_t step : {0U, 1U, 0xFFFU, 0x1000U, 0x1001U, 0x7FFFU, 0x8000U, 0x8001U}) {
        floats.push_back(std::bit_cast<float>(bits + step));
      }
    }
  }
  for (const DType from : kSources) {
    for (const DType to : {DType::kF32, DType::kF16, DType::kBF16}) {
      const void* const data = from == DType::kF32 ? static_cast<const void*>(floats.data())
                                                   : static_cast<const void*>(halves.data());
      const auto width = static_cast<int64_t>(from == DType::kF32 ? floats.size() : halves.size());
      expect_equal({.from = data,
                    .from_type = from,
                    .from_stride = width,
                    .to = nullptr,
                    .to_type = to,
                    .to_stride = width,
                    .scales = nullptr,
                    .scale_stride = 1,
                    .rows = 1,
                    .width = width},
                   0);
    }
  }
}

// The first NaN of a row is its scale, wherever infinities are.
TEST(ConvertRows, ScaleOfRowsThatAreNotFinite) {
  constexpr int64_t kWidth = 300;
  std::vector<float> rows(4 * kWidth, 0.5F);
  const float first = std::bit_cast<float>(0x7FC01234U), second = std::bit_cast<float>(0xFF805678U);
  rows[3] = rows[kWidth + 3] = INFINITY;
  rows[kWidth + 270] = second;
  rows[kWidth + 290] = first;
  rows[2 * kWidth + 17] = first;
  rows[2 * kWidth + 299] = second;
  rows[3 * kWidth + 299] = -INFINITY;
  expect_equal({.from = rows.data(),
                .from_type = DType::kF32,
                .from_stride = kWidth,
                .to = nullptr,
                .to_type = DType::kInt8,
                .to_stride = kWidth,
                .scales = nullptr,
                .scale_stride = 1,
                .rows = 4,
                .width = kWidth},
               0);
}

}  // namespace
}  // namespace multihead::cpu
