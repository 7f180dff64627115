// Split-KV decoding through mma.sync in the emulator, compared with the oracle. decode_test.cc has
// the tests with caches.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "cuda/emulated_forward.h"
#include "cuda/kernels.h"
#include "cuda/mapped_case.h"
#include "cuda/splits.h"

namespace multihead::cuda::testing {
namespace {

using multihead::testing::random_seeds;

// Number of multiprocessors for which the keys are split.
int multiprocessors = 1;

// Runs split-KV decoding as a kernel that computes out and lse. kMma: through mma.sync.
template <bool kMma>
int launch_splits(const ForwardParams& forward, const Device&, StreamHandle stream) {
  SplitParams params;
  params.forward = forward;
  params.mma = kMma;
  cut_keys(params, {.compute_capability = 80, .multiprocessors = multiprocessors});
  std::vector<float> partials(partial_bytes(params) / sizeof(float));
  params.partials = partials.data();
  Mapping mapping;
  mapping.add(partials, emulator::Use::kWorkspace, "partials");
  return launch_decode(params, stream);
}

// Up to 5 steps of all warps of a block.
constexpr int64_t kMostKeys = 5 * kDecodeMmaKeyStep;

TEST(CudaDecodeMma, EqualsOracleOnRandomCalls) {
  for (const uint64_t seed : random_seeds(500)) {
    const RandomCase c = half_case(seed, kMostKeys);
    SCOPED_TRACE(c.description);
    multiprocessors = static_cast<int>(seed % 16 + 1);
    emulator::device().set_seed(seed);
    expect_equals_oracle(c, launch_splits<true>, rounding_of_weights(c));
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

// Hidden NaN and infinities in V do not change a row; visible ones do.
TEST(CudaDecodeMma, HidesNaNAsTheF32KernelDoes) {
  for (const uint64_t seed : random_seeds(40)) {
    RandomCase c = half_case(seed, kMostKeys);
    Random random(seed);
    spoil(c.v, c, random);
    SCOPED_TRACE(c.description);
    multiprocessors = static_cast<int>(seed % 16 + 1);
    expect_equals_oracle(c, launch_splits<true>, rounding_of_weights(c));
    expect_equals_oracle(c, launch_splits<false>, 0.0);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

}  // namespace
}  // namespace multihead::cuda::testing
