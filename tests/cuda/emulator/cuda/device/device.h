// The primitives of src/cuda/device/device.h on the CPU; block.h says how threads run. Device code
// includes "cuda/device/device.h" and finds this file, because this folder comes first in the
// include path.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "multihead/tensor.h"
#include "rules/element.h"

// CUDA's keywords for functions and parameters.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

namespace multihead::cuda {

inline constexpr int kWarpSize = 32;

int thread_index();
int thread_count();
inline int lane() { return thread_index() % kWarpSize; }
inline int warp() { return thread_index() / kWarpSize; }
int64_t block_number();

std::byte* shared_memory();

void sync_threads();
void sync_warp();
void barrier_sync(int id, int threads);
void barrier_arrive(int id, int threads);

// The emulator runs one kernel after the other.
inline void let_next_kernel_start() {}
void wait_for_previous_kernel();

uint64_t read_counter(const uint64_t* counter);
void replace_counter(uint64_t* counter, uint64_t found, uint64_t value);
uint64_t add_to_counter(uint64_t* counter);

namespace emulator {
// Returns the bits of lane `from`'s value.
uint64_t exchange(uint64_t bits, int from);
void copy_async(void* shared, const void* global, int bytes, int valid);
void wait_copies(int pending);
void load_matrix_x4(uint32_t* result, const void* shared_row, bool transposed);
void mma_m16n8k16(float* d, const uint32_t* a, uint32_t b0, uint32_t b1, DType type);

template <class T>
uint64_t bits_of(T value) {
  if constexpr (sizeof(T) == 8) {
    return std::bit_cast<uint64_t>(value);
  } else {
    static_assert(sizeof(T) == 4);
    return std::bit_cast<uint32_t>(value);
  }
}
template <class T>
T from_bits(uint64_t bits) {
  if constexpr (sizeof(T) == 8) {
    return std::bit_cast<T>(bits);
  } else {
    return std::bit_cast<T>(static_cast<uint32_t>(bits));
  }
}
}  // namespace emulator

template <class T>
T shuffle(T value, int from_lane) {
  return emulator::from_bits<T>(emulator::exchange(emulator::bits_of(value), from_lane));
}
template <class T>
T shuffle_xor(T value, int mask) {
  return shuffle(value, lane() ^ mask);
}
uint32_t ballot(bool value);

template <int kBytes>
void copy_async(void* shared, const void* global, int valid = kBytes) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  emulator::copy_async(shared, global, kBytes, valid);
}
void commit_copies();
template <int kPending>
void wait_copies() {
  emulator::wait_copies(kPending);
}

float exp2_approx(float x);
inline float reciprocal_approx(float x) { return 1.0F / x; }

using rules::from_float;
using rules::to_float;

template <class T>
uint32_t pack(float low, float high) {
  return from_float<T>(low).bits | (static_cast<uint32_t>(from_float<T>(high).bits) << 16U);
}

inline void load_matrix_x4(uint32_t (&result)[4], const void* shared_row) {
  emulator::load_matrix_x4(result, shared_row, false);
}
inline void load_matrix_x4_transposed(uint32_t (&result)[4], const void* shared_row) {
  emulator::load_matrix_x4(result, shared_row, true);
}
template <class T>
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulator::mma_m16n8k16(d, a, b0, b1, kDTypeOf<T>);
}

}  // namespace multihead::cuda
