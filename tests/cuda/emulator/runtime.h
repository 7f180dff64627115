// The answers of the emulated CUDA runtime. Tests change them.
#pragma once

#include "cuda/kernels.h"

namespace multihead::cuda::emulator {

struct RuntimeState {
  cuda::Device device{.compute_capability = 80, .multiprocessors = 4, .shared_bytes = 163 << 10};
  int stream_error = 0;  // result for every stream
};

RuntimeState& runtime_state();

}  // namespace multihead::cuda::emulator
