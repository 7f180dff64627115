// Products of bf16 tiles. Compares the model of the AMX instructions with results computed by hand,
// the loops over tiles with their definition, and, on a processor with AMX, the model with the
// instructions.
#include "cpu/amx/amx.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "support/random_case.h"
#include "support/tile_model.h"

namespace multihead::cpu {
namespace {

using testing::half_bits;
using testing::Random;
using testing::UseTileModel;

uint16_t bf16(float value) { return half_bits(value, DType::kBF16); }

// Matrices of whole tiles: A (rows, depth), B in pairs of rows, C (rows, columns).
struct Matrices {
  size_t rows, columns, depth;
  std::vector<uint16_t> a = std::vector<uint16_t>(rows * depth);
  std::vector<uint16_t> b = std::vector<uint16_t>(depth * columns);
  std::vector<float> c = std::vector<float>(rows * columns);

  uint16_t& a_at(size_t row, size_t k) { return a[row * depth + k]; }
  uint16_t& b_at(size_t k, size_t column) { return b[(k / 2 * columns + column) * 2 + k % 2]; }

  void multiply(const TileUnit& unit, bool accumulate) {
    const TileSession session(unit);
    unit.multiply({.a = a.data(),
                   .a_row = depth * 2,
                   .b = b.data(),
                   .b_row = columns * 4,
                   .c = c.data(),
                   .c_row = columns * 4,
                   .row_tiles = rows / kTileSide,
                   .column_tiles = columns / kTileSide,
                   .depth_tiles = depth / kTileDepth,
                   .accumulate = accumulate});
  }
};

// c + the products of row 0 and column 0 of one tile.
float tile_sum(const std::vector<float>& a, const std::vector<float>& b, float c) {
  const UseTileModel model;
  Matrices m{kTileSide, kTileSide, kTileDepth};
  for (size_t k = 0; k < a.size(); ++k) {
    m.a_at(0, k) = bf16(a[k]);
    m.b_at(k, 0) = bf16(b[k]);
  }
  m.c[0] = c;
  m.multiply(*tile_unit(), true);
  return m.c[0];
}

TEST(TileModel, RoundsAsTheInstruction) {
  constexpr float kLeast = std::numeric_limits<float>::min();
  EXPECT_EQ(tile_sum({1, 2, 3}, {4, 5, 6}, 0.5F), 32.5F);
  // The first and second numbers of pairs are summed separately: 2^24 + 1 would round the 1 away.
  EXPECT_EQ(tile_sum({0x1p24F, 1, 0, 1}, {1, 1, 0, 1}, 0), 0x1p24F + 2);
  EXPECT_EQ(tile_sum({0x1p24F, 0, 1, 0, 1}, {1, 0, 1, 0, 1}, 0), 0x1p24F);
  // Both sums are added before C is added.
  EXPECT_EQ(tile_sum({1, 1}, {1, 1}, 0x1p24F), 0x1p24F + 2);
  // A product is not rounded before it is added.
  EXPECT_EQ(tile_sum({0x1.02p0F, 0, 0x1.02p0F}, {0x1.02p0F, 0, -0x1.02p0F}, 0), 0.0F);
  EXPECT_EQ(tile_sum({-1, 0, 0x1.02p12F}, {0x1p24F, 0, 0x1.02p12F}, 0),
            0x1.02p12F * 0x1.02p12F - 0x1p24F);
  // Denormal operands and results are zero.
  EXPECT_EQ(tile_sum({kLeast / 2}, {0x1p100F}, 0), 0.0F);
  EXPECT_EQ(tile_sum({0x1p-70F}, {0x1p-70F}, 0), 0.0F);
  EXPECT_EQ(tile_sum({1}, {-kLeast}, 1.5F * kLeast), 0.0F);
  EXPECT_EQ(tile_sum({0}, {0}, kLeast / 2), 0.0F);
  EXPECT_EQ(tile_sum({1}, {kLeast}, 0), kLeast);
  EXPECT_TRUE(std::isnan(tile_sum({INFINITY}, {0}, 0)));
  EXPECT_EQ(tile_sum({INFINITY}, {1}, 0), INFINITY);
}

TEST(TileProduct, MultipliesMatricesOfAnyNumberOfTiles) {
  const UseTileModel model;
  for (uint64_t seed = 1; seed <= 15; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const auto tiles = [&](int64_t least) { return static_cast<size_t>(random.integer(least, 5)); };
    Matrices m{tiles(1) * kTileSide, tiles(1) * kTileSide, tiles(0) * kTileDepth};
    // Small whole numbers, whose sums are exact.
    const auto whole = [&] { return static_cast<float>(random.integer(-9, 9)); };
    for (uint16_t& x : m.a) x = bf16(whole());
    for (uint16_t& x : m.b) x = bf16(whole());
    for (float& x : m.c) x = whole();
    const bool accumulate = random.chance(0.5);
    std::vector<float> expected(m.c.size());
    for (size_t r = 0; r < m.rows; ++r) {
      for (size_t c = 0; c < m.columns; ++c) {
        float sum = accumulate ? m.c[r * m.columns + c] : 0.0F;
        for (size_t k = 0; k < m.depth; ++k) {
          sum += std::bit_cast<float>(uint32_t{m.a_at(r, k)} << 16) *
                 std::bit_cast<float>(uint32_t{m.b_at(k, c)} << 16);
        }
        expected[r * m.columns + c] = sum;
      }
    }
    m.multiply(*tile_unit(), accumulate);
    ASSERT_EQ(m.c, expected);
  }
}

// On a processor with AMX, the model gives the same bits as the instructions; on others AMX is not
// used.
TEST(TileModel, IsWhatThisProcessorComputes) {
  const TileUnit* const amx = tile_unit();
  ASSERT_EQ(amx != nullptr, amx_state() == AmxState::kReady);
  for (uint64_t seed = 1; amx != nullptr && seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Matrices by_amx{2 * kTileSide, 3 * kTileSide, 2 * kTileDepth};
    // Finite numbers of similar and of very different magnitude.
    const auto exponents = random.integer(0, 126);
    const auto number = [&] {
      return std::ldexp(random.uniform(-1.0F, 1.0F),
                        static_cast<int>(random.integer(-exponents, exponents / 2)));
    };
    for (uint16_t& x : by_amx.a) x = bf16(number());
    for (uint16_t& x : by_amx.b) x = bf16(number());
    for (float& x : by_amx.c) x = number();
    Matrices by_model = by_amx;
    by_amx.multiply(*amx, true);
    const UseTileModel model;
    by_model.multiply(*tile_unit(), true);
    for (size_t i = 0; i < by_amx.c.size(); ++i) {
      if (std::isnan(by_model.c[i]) && std::isnan(by_amx.c[i])) continue;
      ASSERT_EQ(std::bit_cast<uint32_t>(by_amx.c[i]), std::bit_cast<uint32_t>(by_model.c[i])) << i;
    }
  }
}

}  // namespace
}  // namespace multihead::cpu
