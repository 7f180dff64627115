// The primitives of device code that only Hopper (sm_90a) has: mbarriers, the tensor memory
// accelerator (TMA), wgmma and the exchange of registers between warpgroups.
// tests/cuda/emulator/cuda/hopper_device.h has the same functions for a CPU.
//
// Definitions: PTX ISA 8.3, "mbarrier", "cp.async.bulk.tensor" and "wgmma". A warpgroup is four
// consecutive warps; the index of the first is a multiple of four.
//
// Shared memory has two ways of access: ordinary loads and stores of threads, and the asynchronous
// proxy of TMA and wgmma. TMA and wgmma see the stores of threads only after fence_proxy_async().
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cuda/device/device.h"
#include "cuda/device/tensor_map.h"

namespace multihead::cuda {

inline constexpr int kWarpgroupSize = 128;

__device__ __forceinline__ int warpgroup() {
  return static_cast<int>(threadIdx.x / kWarpgroupSize);
}

// lane(), by a division without sign: one instruction, which the compiler repeats rather than keep
// the result in a register.
__device__ __forceinline__ int hopper_lane() { return static_cast<int>(threadIdx.x % kWarpSize); }
// The index of a thread in its warpgroup. It is read anew each time, so that values computed from
// it occupy no registers in a long loop.
__device__ __forceinline__ int warpgroup_thread() {
  uint32_t index = 0;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return static_cast<int>(index % kWarpgroupSize);
}

// Returns the index of a warp or warpgroup so that the compiler knows it is the same in all lanes.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(0xFFFFFFFFU, value, 0); }

// --- mbarriers, 8 bytes of shared memory each ---
//
// A phase of a barrier ends when all its arrivals have come and all bytes that it expects have been
// copied. Phases alternate in parity: the first has parity 0.

__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}
// Call this after all mbarrier_init(), and before the sync_threads() after which other threads use
// the barriers.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
// Arrives, and adds `bytes` to the bytes that the phase expects from asynchronous copies.
__device__ __forceinline__ void mbarrier_arrive_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
// Waits until the phase with this parity has ended, that is until the current phase has the other
// parity. On a new barrier, a wait for parity 1 returns at once.
__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  uint32_t ended = 0;
  do {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(ended)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  } while (ended == 0);
}

// --- TMA: one thread copies a box of a tensor in device memory ---

// Copies a box of the tensor to `shared` (aligned to 1024 bytes), and counts its bytes on the
// barrier. c0 to c3: element coordinates, the contiguous axis first. Elements outside the tensor
// arrive as zeros and are counted.
__device__ __forceinline__ void tma_load_4d(void* shared, const TensorMap* map, uint64_t* barrier,
                                            int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// --- Registers: all warps of a warpgroup release or acquire registers ---

template <int kRegisters>
__device__ __forceinline__ void set_max_registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
// Waits until the block has enough free registers.
template <int kRegisters>
__device__ __forceinline__ void set_max_registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// --- wgmma: d (64 x N) = a (64 x 16) b (16 x N) [+ d], sums in f32, by one warpgroup ---
//
// d: thread t of the warpgroup has parts of two rows, 16 (t / 32) + t % 32 / 4 and the row 8 below
// it. For all j, d[4 j] and d[4 j + 1] are columns 8 j + 2 (t % 4) and the next column of the first
// row, d[4 j + 2] and d[4 j + 3] are the same columns of the second row. So four warps have 16 rows
// each, in the layout of mma_m16n8k16().
//
// The products run concurrently with the warpgroup's other instructions. Between a product and the
// wgmma_wait() after it, do not access d or the registers of a, and do not write the shared memory
// of a and b.

// Describes a tile in shared memory that TMA wrote with a swizzle of 128 bytes: rows of 64 elements
// (128 bytes), with the 16-byte chunk p of row r stored at p ^ (r % 8). The tile is aligned to 1024
// bytes.
//
// A product reads 16 elements along the summed axis.
// - If the summed axis lies within rows: `address` is the first row's first element, and advances
// by
//   32 bytes for the next product; group_bytes is the distance of 8 rows; block_bytes is not used.
// - If the summed axis goes from row to row (b transposed): `address` advances by 16 rows;
//   group_bytes is the distance of 8 rows; block_bytes is the distance of two tiles of 64 columns.
__device__ __forceinline__ uint64_t matrix_descriptor(const void* address, uint32_t block_bytes,
                                                      uint32_t group_bytes) {
  constexpr uint64_t kSwizzle128 = 1;
  const auto field = [](uint32_t bytes) { return static_cast<uint64_t>((bytes & 0x3FFFFU) >> 4U); };
  return field(shared_address(address)) | field(block_bytes) << 16U | field(group_bytes) << 32U |
         kSwizzle128 << 62U;
}

// Describes the tile `bytes` (a multiple of 16) behind another one. The sum of both addresses stays
// below 2^18, so one addition does; matrix_descriptor() costs ten instructions.
__device__ __forceinline__ uint64_t moved_descriptor(uint64_t descriptor, int bytes) {
  return descriptor + static_cast<uint64_t>(bytes / 16);
}

// Call this before the first product, and before a product whose d or a other instructions have
// touched.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Ends a group of products.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most the newest kPending groups are still running.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving reads or writes of these registers across this point: the compiler
// does not know that a product writes them until its wait.
template <size_t kCount>
__device__ __forceinline__ void wgmma_touch(float (&d)[kCount]) {
#pragma unroll
  for (size_t i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Inline PTX cannot compute its operand lists, so these macros list the registers %0, %1, ... and
// the variables bound to them.
// clang-format off
#define MULTIHEAD_R8(a, b, c, d, e, f, g, h) \
  "%" #a ", %" #b ", %" #c ", %" #d ", %" #e ", %" #f ", %" #g ", %" #h
#define MULTIHEAD_R32 \
  MULTIHEAD_R8(0, 1, 2, 3, 4, 5, 6, 7) ", " \
  MULTIHEAD_R8(8, 9, 10, 11, 12, 13, 14, 15) ", " \
  MULTIHEAD_R8(16, 17, 18, 19, 20, 21, 22, 23) ", " \
  MULTIHEAD_R8(24, 25, 26, 27, 28, 29, 30, 31)
#define MULTIHEAD_R40 \
  MULTIHEAD_R32 ", " \
  MULTIHEAD_R8(32, 33, 34, 35, 36, 37, 38, 39)
#define MULTIHEAD_R56 \
  MULTIHEAD_R40 ", " \
  MULTIHEAD_R8(40, 41, 42, 43, 44, 45, 46, 47) ", " \
  MULTIHEAD_R8(48, 49, 50, 51, 52, 53, 54, 55)
#define MULTIHEAD_R64 \
  MULTIHEAD_R56 ", " \
  MULTIHEAD_R8(56, 57, 58, 59, 60, 61, 62, 63)
#define MULTIHEAD_R88 \
  MULTIHEAD_R64 ", " \
  MULTIHEAD_R8(64, 65, 66, 67, 68, 69, 70, 71) ", " \
  MULTIHEAD_R8(72, 73, 74, 75, 76, 77, 78, 79) ", " \
  MULTIHEAD_R8(80, 81, 82, 83, 84, 85, 86, 87)
#define MULTIHEAD_R128 \
  MULTIHEAD_R88 ", " \
  MULTIHEAD_R8(88, 89, 90, 91, 92, 93, 94, 95) ", " \
  MULTIHEAD_R8(96, 97, 98, 99, 100, 101, 102, 103) ", " \
  MULTIHEAD_R8(104, 105, 106, 107, 108, 109, 110, 111) ", " \
  MULTIHEAD_R8(112, 113, 114, 115, 116, 117, 118, 119) ", " \
  MULTIHEAD_R8(120, 121, 122, 123, 124, 125, 126, 127)
#define MULTIHEAD_D8(i) \
  "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), \
  "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define MULTIHEAD_D32 \
  MULTIHEAD_D8(0), MULTIHEAD_D8(8), MULTIHEAD_D8(16), MULTIHEAD_D8(24)
#define MULTIHEAD_D40 \
  MULTIHEAD_D32, MULTIHEAD_D8(32)
#define MULTIHEAD_D56 \
  MULTIHEAD_D40, MULTIHEAD_D8(40), MULTIHEAD_D8(48)
#define MULTIHEAD_D64 \
  MULTIHEAD_D56, MULTIHEAD_D8(56)
#define MULTIHEAD_D88 \
  MULTIHEAD_D64, MULTIHEAD_D8(64), MULTIHEAD_D8(72), MULTIHEAD_D8(80)
#define MULTIHEAD_D128 \
  MULTIHEAD_D88, MULTIHEAD_D8(88), MULTIHEAD_D8(96), MULTIHEAD_D8(104), \
  MULTIHEAD_D8(112), MULTIHEAD_D8(120)
// clang-format on

// The wgmma instruction for one N, with `count` = N / 2 registers of d. r0, r1, ... are the numbers
// of the operands after d.
#define MULTIHEAD_WGMMA(n, count, types, r0, r1, r2, r3)                                       \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #r2                                        \
               ", 0;\n"                                                                        \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." types " {" MULTIHEAD_R##count \
               "}, %" #r0 ", %" #r1 ", p, 1, 1, 0, %" #r3 ";\n}\n"                             \
               : MULTIHEAD_D##count                                                            \
               : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kTransposedB ? 1 : 0)         \
               : "memory")
#define MULTIHEAD_WGMMA_A(n, count, types, r0, r1, r2, r3, r4, r5, r6)                           \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #r5                                          \
               ", 0;\n"                                                                          \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." types " {" MULTIHEAD_R##count   \
               "}, {%" #r0 ", %" #r1 ", %" #r2 ", %" #r3 "}, %" #r4 ", p, 1, 1, %" #r6 ";\n}\n"  \
               : MULTIHEAD_D##count                                                              \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)), \
                 "n"(kTransposedB ? 1 : 0)                                                       \
               : "memory")
#define MULTIHEAD_WGMMA_FUNCTIONS(n, count, r0, r1, r2, r3, r4, r5, r6)                       \
  template <class T, bool kTransposedB = false>                                               \
  __device__ __forceinline__ void wgmma(float(&d)[count], uint64_t a, uint64_t b, bool add) { \
    if constexpr (std::is_same_v<T, BFloat16>) {                                              \
      MULTIHEAD_WGMMA(n, count, "bf16.bf16", r0, r1, r2, r3);                                 \
    } else {                                                                                  \
      MULTIHEAD_WGMMA(n, count, "f16.f16", r0, r1, r2, r3);                                   \
    }                                                                                         \
  }                                                                                           \
  template <class T, bool kTransposedB = false>                                               \
  __device__ __forceinline__ void wgmma(float(&d)[count], const uint32_t(&a)[4], uint64_t b,  \
                                        bool add) {                                           \
    if constexpr (std::is_same_v<T, BFloat16>) {                                              \
      MULTIHEAD_WGMMA_A(n, count, "bf16.bf16", r0, r1, r2, r3, r4, r5, r6);                   \
    } else {                                                                                  \
      MULTIHEAD_WGMMA_A(n, count, "f16.f16", r0, r1, r2, r3, r4, r5, r6);                     \
    }                                                                                         \
  }

// wgmma<T, kTransposedB>(d, a, b, add): T is BFloat16 or Float16; a is a matrix_descriptor() or
// four registers in the layout of mma_m16n8k16(); b is a matrix_descriptor(); without `add`, d's
// previous value is not read.
MULTIHEAD_WGMMA_FUNCTIONS(64, 32, 32, 33, 34, 35, 36, 37, 38)
MULTIHEAD_WGMMA_FUNCTIONS(80, 40, 40, 41, 42, 43, 44, 45, 46)
MULTIHEAD_WGMMA_FUNCTIONS(112, 56, 56, 57, 58, 59, 60, 61, 62)
MULTIHEAD_WGMMA_FUNCTIONS(128, 64, 64, 65, 66, 67, 68, 69, 70)
MULTIHEAD_WGMMA_FUNCTIONS(176, 88, 88, 89, 90, 91, 92, 93, 94)
MULTIHEAD_WGMMA_FUNCTIONS(256, 128, 128, 129, 130, 131, 132, 133, 134)

#undef MULTIHEAD_WGMMA_FUNCTIONS
#undef MULTIHEAD_WGMMA_A
#undef MULTIHEAD_WGMMA
#undef MULTIHEAD_D128
#undef MULTIHEAD_R128
#undef MULTIHEAD_D88
#undef MULTIHEAD_R88
#undef MULTIHEAD_D64
#undef MULTIHEAD_R64
#undef MULTIHEAD_D56
#undef MULTIHEAD_R56
#undef MULTIHEAD_D40
#undef MULTIHEAD_R40
#undef MULTIHEAD_D32
#undef MULTIHEAD_R32
#undef MULTIHEAD_D8
#undef MULTIHEAD_R8

}  // namespace multihead::cuda
