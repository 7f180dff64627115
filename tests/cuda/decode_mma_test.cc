// Split-KV decoding through mma.sync in the emulator, compared with the oracle. decode_test.cc has
// the tests with caches.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <utility>
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
// Calls of launch_again() that split keys, by where the splits are merged.
int merged_in_place = 0, merged_apart = 0;

// A call whose keys are split. kMma: through mma.sync.
template <bool kMma>
SplitParams split_params(const ForwardParams& forward) {
  SplitParams params;
  params.forward = forward;
  params.mma = kMma;
  cut_keys(params, {.compute_capability = 80, .multiprocessors = multiprocessors});
  return params;
}

// Runs split-KV decoding as a kernel that computes out and lse.
template <bool kMma>
int launch_splits(const ForwardParams& forward, const Device&, StreamHandle stream) {
  SplitParams params = split_params<kMma>(forward);
  const SplitMemory memory(params);
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

// Launches twice with the same counters, which the first launch sets back.
template <bool kMma>
int launch_again(const ForwardParams& forward, const Device&, StreamHandle stream) {
  SplitParams params = split_params<kMma>(forward);
  const SplitMemory memory(params);
  (params.counts() ? merged_in_place : merged_apart) += params.splits > 1 ? 1 : 0;
  EXPECT_EQ(launch_decode(params, stream), 0);
  const rules::AttentionParams& call = forward.call;
  for (int64_t b = 0; b < call.batch; ++b) {
    for (int64_t h = 0; h < call.heads; ++h) {
      for (int64_t i = 0; i < call.queries; ++i) *call.lse.row(b, h, i) = 1234.0F;
    }
  }
  return launch_decode(params, stream);
}

TEST(CudaDecodeMma, GivesTheSameBitsInAnyOrderOfBlocks) {
  merged_in_place = merged_apart = 0;
  for (const uint64_t seed : random_seeds(60)) {
    const RandomCase c = half_case(seed, 15 * kDecodeMmaKeyStep, /*most_queries=*/3);
    SCOPED_TRACE(c.description);
    multiprocessors = 16;
    for (const auto& [once, twice] :
         {std::pair<Launch, Launch>{launch_splits<true>, launch_again<true>},
          {launch_splits<false>, launch_again<false>}}) {
      emulator::device().set_seed(seed);
      const ForwardResult first = run_forward(c, once);
      emulator::device().set_seed(seed + 1000);
      const ForwardResult again = run_forward(c, twice);
      const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
        return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
      };
      ASSERT_TRUE(same(first.out, again.out) && same(first.lse, again.lse));
    }
  }
  EXPECT_GE(merged_in_place, 20);
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
