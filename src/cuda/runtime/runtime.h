// What the entry points ask of CUDA. The emulator of the tests answers in its place, and no_cuda.cc
// in builds without CUDA.
#pragma once

#include "cuda/kernels.h"
#include "multihead/cuda.h"
#include "multihead/status.h"

namespace multihead::cuda {

// The current device. kDevice if there is none, or it is older than compute capability 8.0.
Status current_device(Device& device);

// kDevice if the stream cannot take work.
Status validate_stream(Stream stream);

// kDevice if the address is not memory that kernels of the current device may use.
Status validate_memory(const char* argument, const void* address);

// kDevice with CUDA's name, number and text of an error; ok for 0.
Status status_of(int error);

}  // namespace multihead::cuda
