// The forward kernels in the emulator, compared with the Eigen oracle on random calls.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "cuda/emulated_forward.h"
#include "cuda/emulator/memory.h"
#include "cuda/kernels.h"
#include "multihead/attention.h"
#include "multihead/tensor.h"
#include "support/random_case.h"

namespace multihead::cuda::testing {
namespace {

using emulator::device;
using multihead::testing::Random;
using multihead::testing::random_case;
using multihead::testing::RandomCase;

// No captures, because separate kernels compute them.
RandomCase call_without_captures(uint64_t seed) {
  RandomCase c = random_case(seed, {.max_queries = 20, .max_keys = 70, .max_width = 40});
  c.captures.clear();
  return c;
}

TEST(CudaForwardF32, EqualsOracleOnRandomCalls) {
  for (const uint64_t seed : multihead::testing::random_seeds(500)) {
    const RandomCase c = call_without_captures(seed);
    SCOPED_TRACE(c.description);
    device().set_seed(seed);
    expect_equals_oracle(c, launch_forward_f32, 0.0);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

TEST(CudaForwardMma, EqualsOracleOnRandomCalls) {
  for (const uint64_t seed : multihead::testing::random_seeds(500)) {
    const RandomCase c = half_case(seed);
    SCOPED_TRACE(c.description);
    device().set_seed(seed);
    expect_equals_oracle(c, launch_forward_mma, rounding_of_weights(c));
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

// First key of a shard in the whole problem.
int64_t first_key = 0;

template <Launch kLaunch>
int launch_shard(const ForwardParams& params, const Device& on, StreamHandle stream) {
  ForwardParams shard = params;
  shard.call.first.key = first_key;
  return kLaunch(shard, on, stream);
}

// Lanes share the hash of four keys of the whole problem. Not every shard begins at such a key.
TEST(CudaForwardMma, DropsTheWeightsOfAShardAsTheF32KernelDoes) {
  for (const uint64_t seed : multihead::testing::random_seeds(24)) {
    RandomCase c = half_case(seed);
    c.options.dropout = {.probability = 0.4F, .seed = seed};
    c.out_type = DType::kF32;
    first_key = static_cast<int64_t>(seed % 8);
    SCOPED_TRACE(c.description);
    const ForwardResult expected = run_forward(c, launch_shard<launch_forward_f32>);
    const ForwardResult got = run_forward(c, launch_shard<launch_forward_mma>);
    for (size_t i = 0; i < got.out.size(); ++i) {
      ASSERT_FALSE(differ(got.out[i], static_cast<double>(expected.out[i]),
                          2 * (rounding_of_weights(c) + 1e-5)))
          << "out " << i << " is " << got.out[i] << ", not " << expected.out[i];
    }
  }
}

// Hidden NaN and infinities in V do not change a row; visible ones do.
TEST(CudaForward, HidesNaN) {
  for (const uint64_t seed : multihead::testing::random_seeds(60)) {
    RandomCase half = half_case(seed), f32 = call_without_captures(seed);
    Random random(seed);
    spoil(half.v, half, random);
    spoil(f32.v, f32, random);
    SCOPED_TRACE(half.description);
    SCOPED_TRACE(f32.description);
    expect_equals_oracle(half, launch_forward_mma, rounding_of_weights(half));
    expect_equals_oracle(f32, launch_forward_f32, 0.0);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

}  // namespace
}  // namespace multihead::cuda::testing
