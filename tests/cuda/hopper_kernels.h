// Kernels that test TMA, mbarriers, wgmma and the exchange of registers, in the emulator and on a
// GPU (device_check.cc).
#pragma once

#include <cstdint>

#include "multihead/tensor.h"

namespace multihead::cuda::testing {

// The fault planted in a kernel.
enum class HopperFault : uint8_t {
  kNone,
  kNoWaitForCopy,    // multiplies before its copy has arrived
  kNoWaitForSlot,    // copies to a slot that may be in use
  kEarlyRelease,     // releases a slot before the product that reads it is waited for
  kEarlyUse,         // changes the sums before the product is waited for
  kNoLastWait,       // ends while a product is under way
  kNoFence,          // starts a product without wgmma_fence()
  kNoProxyFence,     // multiplies what threads stored without fence_proxy_async()
  kTooFewBytes,      // a barrier expects fewer bytes than are copied
  kNotInitialized,   // uses a barrier before its initialization
  kTooManyArrivals,  // arrives more often than a barrier expects
};

// d (64, 64) = sum over i of a b_i^T, or of a b_i. a: (64, 64), b: (steps, 64, 64), both of `type`.
struct HopperProducts {
  const void *a, *b;
  float* d;
  int steps;
  DType type;
  bool transposed;
};

int launch_hopper_products(const HopperProducts& products, HopperFault fault);

// The two products of the attention kernels, by the functions of hopper/rows.h, with rows of
// `width` elements and `count` rows of b:
//   s (rows, count) = a b^T    a and b from shared memory
//   o (rows, width) = s b      s from registers, rounded to `type`
// a is (rows, width), b is (count, width). Each warpgroup that multiplies has 64 rows.
struct HopperRowProducts {
  const void *a, *b;
  float *s, *o;
  DType type;
  int width, count;
  int consumers;  // 1, or 2, which take registers of the warpgroup that copies
};

// Pairs of width and count that the attention kernels use. Other pairs give an error.
inline constexpr struct {
  int width, count;
} kHopperRowShapes[] = {{64, 112},  {64, 128},  {128, 64}, {128, 112},
                        {128, 128}, {128, 176}, {256, 64}, {256, 80}};

int launch_hopper_row_products(const HopperRowProducts& products);

}  // namespace multihead::cuda::testing
