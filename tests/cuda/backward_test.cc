// The backward kernels in the emulator, compared with the Eigen oracle on random calls.
#include <gtest/gtest.h>

#include <cstdint>

#include "cuda/backward.h"
#include "cuda/emulated_backward.h"
#include "cuda/emulator/memory.h"
#include "multihead/tensor.h"
#include "support/random_case.h"

namespace multihead::cuda::testing {
namespace {

using emulator::device;

TEST(CudaBackwardF32, EqualsOracleOnRandomCalls) {
  for (const uint64_t seed : multihead::testing::random_seeds(500)) {
    // Wide rows take the emulator longest.
    const int64_t width = seed % 100 == 0 ? 256 : seed % 50 == 0 ? 130 : 12;
    const BackwardCall call(seed, {.max_queries = 17, .max_keys = 40, .max_width = width});
    SCOPED_TRACE(call.c.description);
    device().set_seed(seed);
    const ConstTensor d_out(call.d_out.data(), call.c.out_shape);
    expect_equals_oracle(call, run_backward(call, d_out, launch_backward_f32), d_out, 0.0);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

}  // namespace
}  // namespace multihead::cuda::testing
