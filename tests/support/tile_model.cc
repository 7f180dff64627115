#include "support/tile_model.h"

#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cpu/amx/amx.h"
#include "cpu/amx/tile_product-inl.h"

namespace multihead::testing {
namespace {

constexpr float kLeastNormal = std::numeric_limits<float>::min();

std::atomic<int64_t> products_of_model = 0;

// Flushes denormal numbers to zero.
float flushed(float x) { return std::abs(x) < kLeastNormal ? std::copysign(0.0F, x) : x; }

// Returns a * b + c, rounded once to nearest even; results below the least normal number become
// zero. The processor decides this on the result rounded to 24 bits with unlimited exponent. Near
// the limit, the model computes that result scaled by 2^64.
float multiply_add_flushed(float a, float b, float c) {
  const float result = std::fma(a, b, c);
  if (std::abs(result) > kLeastNormal || std::isnan(result)) return result;
  const float larger = std::fma(a * 0x1p64F, b, c * 0x1p64F);
  return std::abs(larger) < kLeastNormal * 0x1p64F ? std::copysign(0.0F, result) : result;
}

// The two bf16 numbers of a pair; the first is in the lower half.
float first_of(uint32_t pair) { return flushed(std::bit_cast<float>(pair << 16)); }
float second_of(uint32_t pair) { return flushed(std::bit_cast<float>(pair & 0xFFFF0000U)); }

void multiply(const cpu::TileProduct& product) {
  ++products_of_model;
  TileModel tiles;
  cpu::multiply_tiles(tiles, product);
}

constexpr cpu::TileUnit kModel = {.begin = [] {}, .multiply = multiply, .end = [] {}};

}  // namespace

void TileModel::load_rows(Tile& tile, const void* from, size_t row_step) {
  for (size_t row = 0; row < tile.size(); ++row) {
    std::memcpy(tile[row].data(), static_cast<const char*>(from) + row * row_step, 64);
  }
}

void TileModel::store_rows(const Tile& tile, void* to, size_t row_step) {
  for (size_t row = 0; row < tile.size(); ++row) {
    std::memcpy(static_cast<char*>(to) + row * row_step, tile[row].data(), 64);
  }
}

// TDPBF16PS, Intel's Software Developer's Manual, volume 2: sums the products of the first numbers
// of all pairs in order, sums the products of the second numbers in order, adds the two sums, and
// adds the result to C. Every step rounds to nearest even; denormal operands and results are zero.
void TileModel::multiply_add(Tile& c, const Tile& a, const Tile& b) {
  for (size_t m = 0; m < 16; ++m) {
    for (size_t n = 0; n < 16; ++n) {
      float first = 0.0F, second = 0.0F;
      for (size_t k = 0; k < 16; ++k) {
        first = multiply_add_flushed(first_of(a[m][k]), first_of(b[k][n]), first);
        second = multiply_add_flushed(second_of(a[m][k]), second_of(b[k][n]), second);
      }
      const float sum = flushed(first + second);
      c[m][n] = std::bit_cast<uint32_t>(flushed(flushed(std::bit_cast<float>(c[m][n])) + sum));
    }
  }
}

UseTileModel::UseTileModel() : before_(products_of_model) { cpu::replace_tile_unit(&kModel); }
UseTileModel::~UseTileModel() { cpu::replace_tile_unit(nullptr); }

int64_t UseTileModel::products() const { return products_of_model - before_; }

}  // namespace multihead::testing
