// The checks of multihead-cuda-check. Each returns the number of its wrong results and prints them.
// It ends the program if a kernel fails.
#pragma once

#include <cstdint>

namespace multihead::testing {

// Check the primitives of device.h and hopper_device.h with the emulator's small test kernels.
int check_asynchronous_copies();
int check_barriers();
int check_mma();
int check_tma_and_wgmma();
int check_wgmma_shapes();
int check_register_exchange();

// A few small calls on one kernel.
struct KernelCheck {
  const char* kernel;  // beginning of the text of cuda::explain()
  bool backward;
  int64_t width;
  bool options = false;  // with ALiBi and softcap
  int64_t queries = 150;
};
int check_kernel(const KernelCheck& kernel);

// Check random calls.
int check_random_forward(uint64_t calls);
int check_random_backward(uint64_t calls);
int check_random_tensor_cores(uint64_t calls);

// Check random calls of what attention() alone does not reach: packed sequences in both directions,
// decode() over every cache, merges, captures with dropout masks, and NaN.
int check_packed(uint64_t calls);
int check_caches(uint64_t calls);
int check_merge(uint64_t calls);
int check_captures(uint64_t calls);
int check_nan(uint64_t calls);
// Check that calls have the same bits on a second stream, and as a graph.
int check_second_stream();
int check_graph();
// Check that prepared calls have the same bits.
int check_prepared();

}  // namespace multihead::testing
