// The forward kernels in the emulator, compared with the Eigen oracle on random calls.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "cuda/emulated_forward.h"
#include "cuda/emulator/memory.h"
#include "cuda/kernels.h"
#include "multihead/attention.h"
#include "support/random_case.h"

namespace multihead::cuda::testing {
namespace {

using emulator::device;
using multihead::testing::Random;
using multihead::testing::random_case;
using multihead::testing::RandomCase;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Captures have kernels of their own.
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

RandomCase half_case(uint64_t seed) {
  const int64_t width = seed % 25 == 0 ? 256 : seed % 10 == 0 ? 130 : 40;
  const int64_t most = width > 40 ? 20 : 150;
  RandomCase c = random_case(seed, {.max_queries = 30, .max_keys = most, .max_width = width});
  Random random(seed);
  const DType type = random.pick({DType::kF16, DType::kBF16});
  c.q = aligned_rows(c, random, c.q.shape, type);
  c.k = aligned_rows(c, random, c.k.shape, type);
  c.v = aligned_rows(c, random, c.v.shape, type);
  if (random.chance(0.7)) c.out_type = type;
  // Rotated and normalised rows are f32.
  c.options.rope = {};
  c.options.qk_norm = {};
  c.captures.clear();
  return c;
}

TEST(CudaForwardHalf, EqualsOracleOnRandomCalls) {
  for (const uint64_t seed : multihead::testing::random_seeds(500)) {
    const RandomCase c = half_case(seed);
    SCOPED_TRACE(c.description);
    device().set_seed(seed);
    expect_equals_oracle(c, launch_forward_half, rounding_of_weights(c));
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

// Sets a part of the elements of rows to NaN or an infinity.
void spoil(const ConstAnyTensor& rows, RandomCase& c, Random& random) {
  const float values[] = {kNaN, std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()};
  for (std::vector<uint16_t>& halves : c.halves) {
    if (halves.data() != rows.data) continue;
    for (uint16_t& half : halves) {
      if (!random.chance(0.002)) continue;
      half = multihead::testing::half_bits(values[random.integer(0, 2)], rows.dtype);
    }
  }
  for (std::vector<float>& floats : c.storage) {
    if (floats.data() != rows.data) continue;
    for (float& value : floats) {
      if (random.chance(0.002)) value = values[random.integer(0, 2)];
    }
  }
}

// Values that a row does not see do not change it, whatever they are; values that it sees do.
TEST(CudaForward, HidesNaN) {
  for (const uint64_t seed : multihead::testing::random_seeds(60)) {
    RandomCase half = half_case(seed), f32 = call_without_captures(seed);
    Random random(seed);
    spoil(half.v, half, random);
    spoil(f32.v, f32, random);
    SCOPED_TRACE(half.description);
    SCOPED_TRACE(f32.description);
    expect_equals_oracle(half, launch_forward_half, rounding_of_weights(half));
    expect_equals_oracle(f32, launch_forward_f32, 0.0);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

}  // namespace
}  // namespace multihead::cuda::testing
