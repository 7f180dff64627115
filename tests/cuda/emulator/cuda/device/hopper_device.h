// The primitives of src/cuda/device/hopper_device.h on the CPU.
//
// TMA copies arrive as late as possible: when no thread can continue. wgmma products read shared
// memory and the registers of a, and write d, in wgmma_wait(); until then d is NaN. A wait covers
// only its own warp, not the other three warps of the warpgroup.
//
// The emulator reports: use of uninitialized barriers; bytes that no barrier expects; reads of
// memory whose copy is under way; products of memory that threads wrote without
// fence_proxy_async(); products without wgmma_fence(); changes of d or a before the wait; and
// accesses by the asynchronous engine, or to its memory, that no barrier orders.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/device/device.h"
#include "cuda/device/tensor_map.h"
#include "multihead/tensor.h"

namespace multihead::cuda {

inline constexpr int kWarpgroupSize = 128;

inline int warpgroup() { return thread_index() / kWarpgroupSize; }
inline int hopper_lane() { return lane(); }
inline int warpgroup_thread() { return thread_index() % kWarpgroupSize; }
inline int uniform(int value) { return shuffle(value, 0); }

void mbarrier_init(uint64_t* barrier, uint32_t arrivals);
void mbarrier_init_fence();
void mbarrier_arrive(uint64_t* barrier);
void mbarrier_arrive_expect(uint64_t* barrier, uint32_t bytes);
void mbarrier_wait(uint64_t* barrier, uint32_t parity);

void tma_load_4d(void* shared, const TensorMap* map, uint64_t* barrier, int c0, int c1, int c2,
                 int c3);
void fence_proxy_async();

namespace emulator {
void set_max_registers(int registers);
struct Operand {
  const uint32_t* registers = nullptr;  // if null, the descriptor below is used
  uint64_t descriptor = 0;
};
void wgmma(float* d, int columns, DType type, const Operand& a, uint64_t b, bool transposed_b,
           bool add);
void wgmma_wait(int pending);
}  // namespace emulator

template <int kRegisters>
void set_max_registers_down() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  emulator::set_max_registers(kRegisters);
}
template <int kRegisters>
void set_max_registers_up() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  emulator::set_max_registers(kRegisters);
}

uint64_t matrix_descriptor(const void* address, uint32_t block_bytes, uint32_t group_bytes);
inline uint64_t moved_descriptor(uint64_t descriptor, int bytes) {
  return descriptor + static_cast<uint64_t>(bytes / 16);
}

void wgmma_fence();
void wgmma_commit();
template <int kPending>
void wgmma_wait() {
  emulator::wgmma_wait(kPending);
}
template <size_t kCount>
void wgmma_touch(float (&/*d*/)[kCount]) {}

template <class T, bool kTransposedB = false, size_t kCount>
void wgmma(float (&d)[kCount], uint64_t a, uint64_t b, bool add) {
  emulator::wgmma(d, static_cast<int>(2 * kCount), kDTypeOf<T>, {.descriptor = a}, b, kTransposedB,
                  add);
}
template <class T, bool kTransposedB = false, size_t kCount>
void wgmma(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b, bool add) {
  emulator::wgmma(d, static_cast<int>(2 * kCount), kDTypeOf<T>, {.registers = a}, b, kTransposedB,
                  add);
}

}  // namespace multihead::cuda
