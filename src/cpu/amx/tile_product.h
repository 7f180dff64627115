// Products of bf16 matrices in tiles, with sums in f32, in the layout of the AMX instructions.
#pragma once

#include <cstddef>

namespace multihead::cpu {

// A tile of A is kTileSide rows of kTileDepth numbers, a tile of B kTileSide rows of pairs: row k
// of column c holds the numbers 2k and 2k + 1 of that column. Both are 16 rows of 64 bytes, and so
// is a tile of C, whose elements are floats.
inline constexpr size_t kTileSide = 16;
inline constexpr size_t kTileDepth = 32;
inline constexpr size_t kTileRowBytes = 64;

// C = A B, or C += A B, in whole tiles. All steps are in bytes.
struct TileProduct {
  const void* a;
  size_t a_row;  // from one row of A to the next; elements of a row are adjacent
  const void* b;
  size_t b_row;  // from one row of pairs to the next; tiles of columns are adjacent
  float* c;
  size_t c_row;
  size_t row_tiles, column_tiles, depth_tiles;
  bool accumulate = false;
};

}  // namespace multihead::cpu
