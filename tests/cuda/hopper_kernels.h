// A kernel that tests the emulator's TMA, mbarriers and wgmma.
#pragma once

#include <cstdint>

#include "multihead/tensor.h"

namespace multihead::cuda::testing {

// What is wrong with a kernel.
enum class HopperFault : uint8_t {
  kNone,
  kNoWaitForCopy,    // multiplies what a copy has not been waited for
  kNoWaitForSlot,    // copies to a slot that may be in use
  kEarlyRelease,     // releases a slot before the product that reads it is waited for
  kEarlyUse,         // changes the sums before the product is waited for
  kNoLastWait,       // ends while a product is under way
  kNoFence,          // starts a product without wgmma_fence()
  kNoProxyFence,     // multiplies what threads stored without fence_proxy_async()
  kTooFewBytes,      // a barrier expects fewer bytes than are copied
  kNotInitialised,   // uses a barrier before its initialisation
  kTooManyArrivals,  // arrives more often than a barrier expects
};

// d (64, 64) = the sum over i of a b_i^T, or of a b_i; a (64, 64), b (steps, 64, 64) of `type`.
struct HopperProducts {
  const void *a, *b;
  float* d;
  int steps;
  DType type;
  bool transposed;
};

int launch_hopper_products(const HopperProducts& products, HopperFault fault);

}  // namespace multihead::cuda::testing
