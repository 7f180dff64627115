// A ring of tiles in shared memory: TMA fills its slots, ahead of the consumer warps that empty
// them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/device/device.h"
#include "cuda/device/hopper_device.h"

namespace multihead::cuda {

// Step i uses slot i % kSlots. Each slot has a barrier for "full" and one for "empty", whose phases
// alternate.
template <int kSlots, int kSlotBytes>
struct Ring {
  static constexpr int kBytes = kSlots * kSlotBytes;
  static constexpr int kBarriers = 2 * kSlots;

  std::byte* slots;
  uint64_t *full, *empty;

  static __device__ __forceinline__ Ring of(std::byte* slots, uint64_t* barriers) {
    return {slots, barriers, barriers + kSlots};
  }
  // `filling`: number of arrivals that fill a slot, including the copying thread. `emptying`:
  // number of warps that release a slot.
  __device__ __forceinline__ void init_barriers(uint32_t filling, uint32_t emptying) const {
    for (int slot = 0; slot < kSlots; ++slot) {
      mbarrier_init(full + slot, filling);
      mbarrier_init(empty + slot, emptying);
    }
  }

  static __device__ __forceinline__ int slot_of(int step) {
    return static_cast<int>(static_cast<uint32_t>(step) % kSlots);
  }
  static __device__ __forceinline__ uint32_t parity_of(int step) {
    return static_cast<uint32_t>(step) / kSlots & 1U;
  }
  __device__ __forceinline__ std::byte* at(int step) const {
    return slots + slot_of(step) * kSlotBytes;
  }
  __device__ __forceinline__ uint64_t* full_of(int step) const { return full + slot_of(step); }

  __device__ __forceinline__ void wait_full(int step) const {
    mbarrier_wait(full_of(step), parity_of(step));
  }
  // Returns at once when the slot is used for the first time.
  __device__ __forceinline__ void wait_empty(int step) const {
    mbarrier_wait(empty + slot_of(step), parity_of(step) ^ 1U);
  }
  // Marks a slot as empty. Each consumer warp calls it after the products that read the slot.
  __device__ __forceinline__ void release(int step) const {
    sync_warp();
    if (hopper_lane() == 0) mbarrier_arrive(empty + slot_of(step));
  }
};

}  // namespace multihead::cuda
