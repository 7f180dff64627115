// The queries that entry points make to the CUDA runtime. The tests' emulator and no_cuda.cc
// (builds without CUDA) replace this implementation.
#pragma once

#include "cuda/kernels.h"
#include "multihead/cuda.h"
#include "multihead/status.h"

namespace multihead::cuda {

// Gets the current device. Returns kDevice if there is none, if its compute capability is
// below 8.0, or if the build has no code for it.
Status current_device(Device& device);

// Returns kDevice if the stream cannot take work.
Status validate_stream(Stream stream);

// Returns kDevice if kernels of the current device cannot use the memory at `address`.
Status validate_memory(const char* argument, const void* address);

// Returns kDevice with CUDA's name, number and text of an error; ok for 0.
Status status_of(int error);

}  // namespace multihead::cuda
