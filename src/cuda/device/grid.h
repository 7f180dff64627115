// The grid of a launch with any number of blocks.
#pragma once

#include <cstdint>

namespace multihead::cuda {

struct Grid {
  uint32_t x = 1, y = 1;
};

// CUDA's limits of a grid.
inline constexpr int64_t kMostBlocksOfX = (int64_t{1} << 31) - 1;
inline constexpr int64_t kMostBlocksOfY = 65535;

// Sets a grid with at least `blocks` blocks. Returns false if a grid cannot have them. The grid may
// have up to y - 1 blocks more: a kernel returns at once in a block whose block_number() lies
// beyond its work.
constexpr bool grid_of(int64_t blocks, Grid& grid, int64_t most_of_x = kMostBlocksOfX) {
  const int64_t y = blocks / most_of_x + (blocks % most_of_x == 0 ? 0 : 1);
  if (blocks <= 0 || y > kMostBlocksOfY) return false;
  grid = {static_cast<uint32_t>(blocks / y + (blocks % y == 0 ? 0 : 1)), static_cast<uint32_t>(y)};
  return true;
}

}  // namespace multihead::cuda
