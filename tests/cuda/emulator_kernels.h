// Kernels that test the emulator.
#pragma once

#include <cstdint>

#include "multihead/tensor.h"

namespace multihead::cuda::testing {

// The fault planted in a kernel.
enum class Fault : uint8_t {
  kNone,
  kNoWait,            // reads a copy's destination without waiting
  kNoBarrier,         // reads another thread's writes without a barrier
  kSharedBounds,      // reads beyond shared memory
  kGlobalBounds,      // writes beyond the output
  kUnwritten,         // reads shared memory that nothing has written
  kDivergentBarrier,  // not every thread reaches a barrier
  kTwoWriters,        // two threads write the same output
  kNoCounter,         // reads what another block wrote without having met it
  kEarly,             // uses memory before the previous kernel has ended
};

struct ReverseParams {
  const float* in;
  float* out;
  int blocks;
  uint64_t* counter = nullptr;  // 0
};

struct MultiplyParams {
  const float *a, *b;
  float* d;
};

int launch_reverse(const ReverseParams& p, Fault fault);
int launch_sum(const ReverseParams& p, Fault fault);
int launch_hand_over(const ReverseParams& p, Fault fault);
int launch_total(const ReverseParams& p, Fault fault);
int launch_multiply(const MultiplyParams& p, DType type);

}  // namespace multihead::cuda::testing
