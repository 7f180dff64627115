// Shared by the Hopper kernels: tiles of rows in shared memory, with their copies and products.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/device/device.h"
#include "cuda/device/hopper_device.h"

namespace multihead::cuda {

// True if the registers that a block gets at its launch are enough for a producer warpgroup and its
// consumers after they have exchanged some, so that no warpgroup waits for registers for ever. A
// thread gets as many registers as launch bounds of one block allow, in units of 8; setmaxnreg
// takes multiples of 8 from 24 to 256.
constexpr bool registers_suffice(int producer, int consumers, int consumer) {
  constexpr int kRegisters = 65536;  // of a multiprocessor
  const int launched = kRegisters / (kWarpgroupSize * (consumers + 1)) / 8 * 8;
  const auto valid = [](int count) { return count % 8 == 0 && count >= 24 && count <= 256; };
  return valid(producer) && valid(consumer) && producer <= launched && launched <= consumer &&
         producer + consumers * consumer <= launched * (consumers + 1);
}

// A tile of kCount rows of kWidth 16-bit numbers in shared memory. It consists of blocks of 64
// columns, whose rows are 128 bytes long and swizzled.
template <int kWidth_, int kCount_>
struct HopperRows {
  static constexpr int kWidth = kWidth_;
  static constexpr int kCount = kCount_;
  static constexpr int kBlocks = kWidth / 64;
  static constexpr int kBlockBytes = kCount * 128;
  static constexpr int kBytes = kBlocks * kBlockBytes;
  static_assert(kBlockBytes % 1024 == 0);
};

// Starts to load a tile. One thread calls it.
template <class Rows>
__device__ __forceinline__ void load_rows(std::byte* to, const TensorMap& map, uint64_t* full,
                                          int64_t row, int64_t head, int64_t batch) {
  mbarrier_arrive_expect(full, static_cast<uint32_t>(Rows::kBytes));
  for (int block = 0; block < Rows::kBlocks; ++block) {
    tma_load_4d(to + block * Rows::kBlockBytes, &map, full, 64 * block, static_cast<int>(row),
                static_cast<int>(head), static_cast<int>(batch));
  }
}

// Returns a matrix descriptor such that the compiler knows it is the same in all lanes.
__device__ __forceinline__ uint64_t uniform_descriptor(uint64_t descriptor) {
  const auto low = static_cast<uint32_t>(descriptor);
  return descriptor >> 32U << 32U | static_cast<uint32_t>(uniform(static_cast<int>(low)));
}
// Describe a tile to wgmma(): with describe_sums() the summed axis goes from row to row, with
// describe_rows() it lies within rows.
template <class Rows>
__device__ __forceinline__ uint64_t describe_sums(const std::byte* tile) {
  return matrix_descriptor(tile, Rows::kBlockBytes, 1024);
}
__device__ __forceinline__ uint64_t describe_rows(const std::byte* tile) {
  return matrix_descriptor(tile, 0, 1024);
}

// Enqueues s = a b^T for a warpgroup's 64 rows of a, as one group of products. a, b:
// describe_rows().
template <class T, class A, class B>
__device__ __forceinline__ void multiply_transposed(float (&s)[B::kCount / 2], uint64_t a,
                                                    uint64_t b) {
#pragma unroll
  for (int column = 0; column < A::kWidth; column += 16) {
    const int block = column / 64, in_block = column % 64 * 2;
    wgmma<T>(s, moved_descriptor(a, block * A::kBlockBytes + in_block),
             moved_descriptor(b, block * B::kBlockBytes + in_block), column > 0);
  }
  wgmma_commit();
}
template <class T, class A, class B>
__device__ __forceinline__ void multiply_transposed(float (&s)[B::kCount / 2], const std::byte* a,
                                                    const std::byte* b) {
  multiply_transposed<T, A, B>(s, describe_rows(a), describe_rows(b));
}

// Enqueues o += a b, as one group of products. b: describe_sums().
template <class T, class B>
__device__ __forceinline__ void add_product(float (&o)[B::kWidth / 2],
                                            const uint32_t (&a)[B::kCount / 16][4], uint64_t b) {
#pragma unroll
  for (int i = 0; i < B::kCount / 16; ++i) {
    wgmma<T, true>(o, a[i], moved_descriptor(b, i * 16 * 128), true);
  }
  wgmma_commit();
}
template <class T, class B>
__device__ __forceinline__ void add_product(float (&o)[B::kWidth / 2],
                                            const uint32_t (&a)[B::kCount / 16][4],
                                            const std::byte* b) {
  add_product<T, B>(o, a, describe_sums<B>(b));
}

// Clears the rows of a tile from row `first` on: rows beyond the sequence length, where memory may
// hold anything. Their weights are 0, but 0 times NaN is NaN, and recomputing all rows would be
// slow. All consumers call it, and then finish_clearing().
template <class Rows, int kConsumers>
__device__ __forceinline__ void clear_rows(std::byte* tile, int first) {
  struct alignas(16) Piece {
    uint32_t words[4];
  };
  if (first < 0) first = 0;
  const int pieces = (Rows::kCount - first) * 8;  // per block of 64 columns
  for (int i = thread_index() - kWarpgroupSize; i < Rows::kBlocks * pieces;
       i += kConsumers * kWarpgroupSize) {
    std::byte* const block = tile + i / pieces * Rows::kBlockBytes;
    reinterpret_cast<Piece*>(block + first * 128)[i % pieces] = {};
  }
}
template <int kConsumers>
__device__ __forceinline__ void finish_clearing() {
  fence_proxy_async();
  barrier_sync(kConsumers + 1, kConsumers * kWarpgroupSize);
}

}  // namespace multihead::cuda
