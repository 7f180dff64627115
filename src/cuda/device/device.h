// The primitives of device code: every kernel uses these instead of CUDA's own names and inline
// PTX. tests/cuda/emulator/cuda/device.h has the same functions for a CPU, so that tests run the
// kernels without a GPU. For sm_80 and up; hopper_device.h has the primitives of Hopper.
//
// Kernels follow these rules, because the emulator relies on them: blocks are one-dimensional; all
// shared memory is dynamic, from shared_memory(); memory is read and written through plain
// pointers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "multihead/tensor.h"

namespace multihead::cuda {

// --- Indices ---

inline constexpr int kWarpSize = 32;

__device__ __forceinline__ int thread_index() { return static_cast<int>(threadIdx.x); }
__device__ __forceinline__ int thread_count() { return static_cast<int>(blockDim.x); }
__device__ __forceinline__ int lane() { return thread_index() % kWarpSize; }
__device__ __forceinline__ int warp() { return thread_index() / kWarpSize; }
// Number of the block in its launch. It may exceed the number of blocks asked for, see grid_of().
__device__ __forceinline__ int64_t block_number() {
  return static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
}

// --- Shared memory ---

// The block's shared memory, aligned to 1024 bytes; launch.h sets its size.
__device__ __forceinline__ std::byte* shared_memory() {
  extern __shared__ __align__(1024) std::byte multihead_shared[];
  return multihead_shared;
}

__device__ __forceinline__ uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// --- Barriers: earlier writes of each thread are visible to all threads afterwards ---

__device__ __forceinline__ void sync_threads() { __syncthreads(); }
__device__ __forceinline__ void sync_warp() { __syncwarp(); }
// Waits until `threads` threads (a multiple of 32) have called this function or barrier_arrive()
// for barrier `id` (1 to 15). All threads of a warp call it.
__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Counts as an arrival for barrier_sync() of other threads, and does not wait.
__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// --- Order of kernels in a stream; nothing happens below compute capability 9.0 ---

// Lets the next kernel of the stream start as soon as all blocks have called this or have ended, if
// its launch is `early` (LaunchShape).
__device__ __forceinline__ void let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits until the previous kernel of the stream has ended and its writes are visible. A kernel
// whose launch is not `early` does not wait.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// --- Counters in global memory, which blocks of a launch share ---

__device__ __forceinline__ uint64_t read_counter(const uint64_t* counter) {
  return *static_cast<const volatile uint64_t*>(counter);
}
// Sets a counter that still has the value `found`.
__device__ __forceinline__ void replace_counter(uint64_t* counter, uint64_t found, uint64_t value) {
  asm volatile("{.reg .b64 old; atom.relaxed.gpu.global.cas.b64 old, [%0], %1, %2;}" ::"l"(counter),
               "l"(found), "l"(value)
               : "memory");
}
// Adds 1, and returns what the counter was. What this thread wrote, or saw behind a barrier, is
// visible to threads whose later additions see this one, and behind their barriers.
__device__ __forceinline__ uint64_t add_to_counter(uint64_t* counter) {
  uint64_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], 1;"
               : "=l"(before)
               : "l"(counter)
               : "memory");
  return before;
}

// --- Exchanges within a warp: all 32 lanes take part. They do not order memory accesses. ---

template <class T>
__device__ __forceinline__ T shuffle(T value, int from_lane) {
  return __shfl_sync(0xFFFFFFFFU, value, from_lane);
}
template <class T>
__device__ __forceinline__ T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFU, value, mask);
}
// Bit i of the result is lane i's value.
__device__ __forceinline__ uint32_t ballot(bool value) { return __ballot_sync(0xFFFFFFFFU, value); }

// --- Asynchronous copies from global to shared memory (cp.async) ---

// Copies kBytes (4, 8 or 16; both addresses aligned to kBytes): the first `valid` bytes from
// memory, then zeros. The calling thread may read them after wait_copies(), other threads only
// after a barrier too.
template <int kBytes>
__device__ __forceinline__ void copy_async(void* shared, const void* global, int valid = kBytes) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(valid)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(shared)),
                 "l"(global), "n"(kBytes), "r"(valid)
                 : "memory");
  }
}
// Ends a group of copies.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most the newest kPending groups of this thread are still being copied.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// --- Numbers ---

// 2^x with a relative error of about 2^-22; 0 for -inf.
__device__ __forceinline__ float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// 1 / x with a relative error of about 2^-23, for x with 2^-126 <= |x| <= 2^126.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(BFloat16 value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16U);
}
__device__ __forceinline__ float to_float(Float16 value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}
__device__ __forceinline__ float to_float(int8_t value) { return static_cast<float>(value); }

// Rounds to nearest, ties to even.
template <class T>
__device__ __forceinline__ T from_float(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    T result;
    if constexpr (std::is_same_v<T, BFloat16>) {
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    } else {
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    }
    return result;
  }
}

// Two 16-bit numbers in one register, `low` in the low half.
template <class T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  static_assert(sizeof(T) == 2);
  uint32_t result;
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  }
  return result;
}

// --- Products of 16 x 8 x 16 tiles ---
//
// Fragments of a warp; each thread has these elements, with row = lane / 4, pair = 2 * (lane % 4):
//   A (16 x 16): a[0] = (row, pair), a[1] = (row + 8, pair), a[2] = (row, pair + 8), a[3] = (row +
//   8, pair + 8), each with the next column in its high half
//   B (16 x 8): b[0] = (pair, row), b[1] = (pair + 8, row), each with the next row of B in its high
//   half
//   D (16 x 8): d[0], d[1] = (row, pair), (row, pair + 1); d[2], d[3] = (row + 8, pair), (row + 8,
//   pair + 1)

// Loads four 8 x 8 matrices of 16-bit numbers: lane i gives the address (16-byte aligned) of row i
// % 8 of matrix i / 8, and gets elements (lane / 4, pair) and (lane / 4, pair + 1) of each matrix.
__device__ __forceinline__ void load_matrix_x4(uint32_t (&result)[4], const void* shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
               : "r"(shared_address(shared_row))
               : "memory");
}
// Loads the transposes: elements (pair, lane / 4) and (pair + 1, lane / 4) of each stored matrix.
__device__ __forceinline__ void load_matrix_x4_transposed(uint32_t (&result)[4],
                                                          const void* shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
               : "r"(shared_address(shared_row))
               : "memory");
}

// d += a b, with sums in f32. T: the type of a and b.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    static_assert(std::is_same_v<T, Float16>);
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

}  // namespace multihead::cuda
