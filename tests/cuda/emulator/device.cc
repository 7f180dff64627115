#include "cuda/device/device.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cuda/emulator/block.h"
#include "cuda/emulator/memory.h"
#include "rules/element.h"

namespace multihead::cuda {

using emulator::Access;
using emulator::Block;
using emulator::block;
using emulator::InsideEmulator;

int thread_index() {
  const InsideEmulator inside;
  return block().thread();
}
int thread_count() {
  const InsideEmulator inside;
  return block().threads();
}
int64_t block_number() {
  const InsideEmulator inside;
  const auto& [at, size] = block().place();
  return int64_t{at[1]} * size[0] + at[0];
}
std::byte* shared_memory() {
  const InsideEmulator inside;
  return block().shared();
}

void sync_threads() {
  const InsideEmulator inside;
  block().barrier(0, block().threads(), true);
}
void sync_warp() {
  const InsideEmulator inside;
  block().sync_warp();
}
void barrier_sync(int id, int threads) {
  const InsideEmulator inside;
  block().barrier(id, threads, true);
}
void barrier_arrive(int id, int threads) {
  const InsideEmulator inside;
  block().barrier(id, threads, false);
}

void wait_for_previous_kernel() {
  const InsideEmulator inside;
  block().wait_for_previous_kernel();
}
uint64_t read_counter(const uint64_t* counter) {
  const InsideEmulator inside;
  return block().counter(counter);
}
void replace_counter(uint64_t* counter, uint64_t found, uint64_t value) {
  const InsideEmulator inside;
  uint64_t& now = block().counter(counter);
  if (now == found) now = value;
}
uint64_t add_to_counter(uint64_t* counter) {
  const InsideEmulator inside;
  block().meet_blocks(counter);
  return block().counter(counter)++;
}

uint32_t ballot(bool value) {
  const InsideEmulator inside;
  uint32_t bit = value ? 1U : 0U;
  block().with_warp("ballot", &bit, [](Block&, const Block::Lanes& lanes) {
    uint32_t all = 0;
    for (size_t i = 0; i < lanes.size(); ++i) all |= *static_cast<uint32_t*>(lanes[i]) << i;
    for (void* const lane : lanes) *static_cast<uint32_t*>(lane) = all;
  });
  return bit;
}

void commit_copies() {
  const InsideEmulator inside;
  block().commit_copies();
}

float exp2_approx(float x) {
  const InsideEmulator inside;
  return std::exp2(x);
}

namespace emulator {
namespace {

struct Exchange {
  uint64_t bits;
  int from;
};

struct MatrixLoad {
  uint32_t* result;
  const std::byte* row;
  bool transposed;
};

struct Product {
  float* d;
  const uint32_t* a;
  uint32_t b[2];
  DType type;
};

float half_at(uint32_t pair, size_t which, DType type) {
  const auto bits = static_cast<uint16_t>(pair >> (16 * which));
  return type == DType::kF16 ? rules::to_float(Float16{bits}) : rules::to_float(BFloat16{bits});
}

void load_together(Block& block, const Block::Lanes& lanes) {
  uint16_t matrix[4][8][8];
  const int first = block.thread() - block.thread() % 32;
  for (size_t i = 0; i < 32; ++i) {
    const auto& load = *static_cast<MatrixLoad*>(lanes[i]);
    if (reinterpret_cast<uintptr_t>(load.row) % 16 != 0) {
      return block.fail("loads a matrix row that is not aligned to 16 bytes");
    }
    block.access(load.row, 16, Access::kRead, first + static_cast<int>(i));
    std::memcpy(matrix[i / 8][i % 8], load.row, 16);
  }
  for (size_t i = 0; i < 32; ++i) {
    const auto& load = *static_cast<MatrixLoad*>(lanes[i]);
    const size_t row = i / 4, pair = 2 * (i % 4);
    for (size_t m = 0; m < 4; ++m) {
      const uint16_t low = load.transposed ? matrix[m][pair][row] : matrix[m][row][pair];
      const uint16_t high = load.transposed ? matrix[m][pair + 1][row] : matrix[m][row][pair + 1];
      load.result[m] = low | (static_cast<uint32_t>(high) << 16U);
    }
  }
}

void multiply_together(Block&, const Block::Lanes& lanes) {
  float a[16][16], b[16][8];
  for (size_t i = 0; i < 32; ++i) {
    const auto& lane = *static_cast<Product*>(lanes[i]);
    const size_t row = i / 4, pair = 2 * (i % 4);
    for (size_t half = 0; half < 2; ++half) {
      a[row][pair + half] = half_at(lane.a[0], half, lane.type);
      a[row + 8][pair + half] = half_at(lane.a[1], half, lane.type);
      a[row][pair + 8 + half] = half_at(lane.a[2], half, lane.type);
      a[row + 8][pair + 8 + half] = half_at(lane.a[3], half, lane.type);
      b[pair + half][row] = half_at(lane.b[0], half, lane.type);
      b[pair + 8 + half][row] = half_at(lane.b[1], half, lane.type);
    }
  }
  float sums[16][8] = {};
  for (size_t row = 0; row < 16; ++row) {
    for (size_t k = 0; k < 16; ++k) {
      for (size_t column = 0; column < 8; ++column) {
        sums[row][column] += a[row][k] * b[k][column];
      }
    }
  }
  for (size_t i = 0; i < 32; ++i) {
    float* const d = static_cast<Product*>(lanes[i])->d;
    const size_t row = i / 4, pair = 2 * (i % 4);
    for (size_t half = 0; half < 2; ++half) {
      d[half] += sums[row][pair + half];
      d[2 + half] += sums[row + 8][pair + half];
    }
  }
}

}  // namespace

uint64_t exchange(uint64_t bits, int from) {
  const InsideEmulator inside;
  Exchange mine{bits, from};
  block().with_warp("shuffle", &mine, [](Block&, const Block::Lanes& lanes) {
    std::array<uint64_t, 32> values{};
    for (size_t i = 0; i < 32; ++i) values[i] = static_cast<Exchange*>(lanes[i])->bits;
    for (void* const lane : lanes) {
      auto& one = *static_cast<Exchange*>(lane);
      one.bits = values[static_cast<size_t>(one.from) % 32];
    }
  });
  return mine.bits;
}

void copy_async(void* shared, const void* global, int bytes, int valid) {
  const InsideEmulator inside;
  block().copy_async(shared, global, bytes, valid);
}

void wait_copies(int pending) {
  const InsideEmulator inside;
  block().wait_copies(static_cast<size_t>(pending));
}

void load_matrix_x4(uint32_t* result, const void* shared_row, bool transposed) {
  const InsideEmulator inside;
  MatrixLoad mine{result, static_cast<const std::byte*>(shared_row), transposed};
  block().with_warp("load_matrix_x4", &mine, load_together);
}

void mma_m16n8k16(float* d, const uint32_t* a, uint32_t b0, uint32_t b1, DType type) {
  const InsideEmulator inside;
  Product mine{d, a, {b0, b1}, type};
  block().with_warp("mma_m16n8k16", &mine, multiply_together);
}

}  // namespace emulator
}  // namespace multihead::cuda
