// The checks of multihead-cuda-check. Each returns how many of its results are wrong, and prints
// what is wrong with them; it ends the program if a kernel fails.
#pragma once

#include <cstdint>

namespace multihead::testing {

// Primitives of device.h and hopper_device.h, by the small kernels that test the emulator.
int check_asynchronous_copies();
int check_barriers();
int check_mma();
int check_tma_and_wgmma();
int check_wgmma_shapes();
int check_register_exchange();

// A few small calls that one kernel serves.
struct KernelCheck {
  const char* kernel;  // how cuda::explain() begins
  bool backward;
  int64_t width;
  bool options = false;  // of which no kernel of Hopper knows
  int64_t queries = 150;
};
int check_kernel(const KernelCheck& kernel);

// Random calls.
int check_random_forward(uint64_t calls);
int check_random_backward(uint64_t calls);
int check_random_tensor_cores(uint64_t calls);

}  // namespace multihead::testing
