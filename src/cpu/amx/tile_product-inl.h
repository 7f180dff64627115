// Loops of TileProduct over blocks of 2 x 2 tiles of C, for any implementation of the tile
// instructions: AMX (amx.cc), or the model in the tests. A block needs one tile load per product:
// two tiles of A and two of B for four products. The eight tile registers:
//
//   0 1    C         6 7    B
//   2 3         4
//               5    A
//
// `Tiles` has load<T>(from, row_step), zero<T>(), multiply<C, A, B>() and store<T>(to, row_step).
#pragma once

#include <cstddef>

#include "cpu/amx/amx.h"

namespace multihead::cpu {

template <size_t kRows, size_t kColumns, class Tiles>
void multiply_block(Tiles& tiles, const TileProduct& p, const char* a, const char* b, char* c) {
  const size_t a_tile = kTileSide * p.a_row, b_tile = kTileSide * p.b_row;
  char* const c_below = c + kTileSide * p.c_row;
  if (p.accumulate) {
    tiles.template load<0>(c, p.c_row);
    if constexpr (kColumns == 2) tiles.template load<1>(c + kTileRowBytes, p.c_row);
    if constexpr (kRows == 2) tiles.template load<2>(c_below, p.c_row);
    if constexpr (kRows == 2 && kColumns == 2) {
      tiles.template load<3>(c_below + kTileRowBytes, p.c_row);
    }
  } else {
    tiles.template zero<0>();
    if constexpr (kColumns == 2) tiles.template zero<1>();
    if constexpr (kRows == 2) tiles.template zero<2>();
    if constexpr (kRows == 2 && kColumns == 2) tiles.template zero<3>();
  }
  for (size_t depth = 0; depth < p.depth_tiles; ++depth, a += kTileRowBytes, b += b_tile) {
    tiles.template load<4>(a, p.a_row);
    tiles.template load<6>(b, p.b_row);
    tiles.template multiply<0, 4, 6>();
    if constexpr (kColumns == 2) {
      tiles.template load<7>(b + kTileRowBytes, p.b_row);
      tiles.template multiply<1, 4, 7>();
    }
    if constexpr (kRows == 2) {
      tiles.template load<5>(a + a_tile, p.a_row);
      tiles.template multiply<2, 5, 6>();
    }
    if constexpr (kRows == 2 && kColumns == 2) tiles.template multiply<3, 5, 7>();
  }
  tiles.template store<0>(c, p.c_row);
  if constexpr (kColumns == 2) tiles.template store<1>(c + kTileRowBytes, p.c_row);
  if constexpr (kRows == 2) tiles.template store<2>(c_below, p.c_row);
  if constexpr (kRows == 2 && kColumns == 2) {
    tiles.template store<3>(c_below + kTileRowBytes, p.c_row);
  }
}

// Computes one or two rows of tiles.
template <size_t kRows, class Tiles>
void multiply_rows(Tiles& tiles, const TileProduct& p, const char* a, char* c) {
  const char* b = static_cast<const char*>(p.b);
  size_t column = 0;
  for (; column + 2 <= p.column_tiles; column += 2) {
    multiply_block<kRows, 2>(tiles, p, a, b, c);
    b += 2 * kTileRowBytes;
    c += 2 * kTileRowBytes;
  }
  if (column < p.column_tiles) multiply_block<kRows, 1>(tiles, p, a, b, c);
}

template <class Tiles>
void multiply_tiles(Tiles& tiles, const TileProduct& p) {
  const char* a = static_cast<const char*>(p.a);
  char* c = reinterpret_cast<char*>(p.c);
  size_t row = 0;
  for (; row + 2 <= p.row_tiles; row += 2) {
    multiply_rows<2>(tiles, p, a, c);
    a += 2 * kTileSide * p.a_row;
    c += 2 * kTileSide * p.c_row;
  }
  if (row < p.row_tiles) multiply_rows<1>(tiles, p, a, c);
}

}  // namespace multihead::cpu
