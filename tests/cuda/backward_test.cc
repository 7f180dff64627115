// The backward kernels in the emulator, compared with the Eigen oracle on random calls.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cuda/backward_params.h"
#include "cuda/emulated_backward.h"
#include "cuda/emulator/memory.h"
#include "cuda/kernels.h"
#include "multihead/tensor.h"
#include "support/random_case.h"
#include "support/special_values.h"

namespace multihead::cuda::testing {
namespace {

using emulator::device;
using multihead::testing::Random;
using multihead::testing::RandomCase;

TEST(CudaBackwardF32, EqualsOracleOnRandomCalls) {
  for (const uint64_t seed : multihead::testing::random_seeds(500)) {
    // Only some calls have wide rows, because these are the slowest in the emulator.
    const int64_t width = seed % 100 == 0 ? 256 : seed % 50 == 0 ? 130 : 12;
    const BackwardCall call(seed, {.max_queries = 17, .max_keys = 40, .max_width = width});
    SCOPED_TRACE(call.c.description);
    device().set_seed(seed);
    const ConstTensor d_out(call.d_out.data(), call.c.out_shape);
    expect_equals_oracle(call, run_backward(call, d_out, launch_backward_f32), d_out, 0.0);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

// A call in which K and V hold NaN for keys that no query sees. All queries have the same mask.
RandomCase case_with_hidden_nan(uint64_t seed, std::vector<uint8_t>& mask) {
  Random random(seed);
  RandomCase c;
  const int64_t batch = random.integer(1, 2), kv_heads = random.integer(1, 2);
  const int64_t heads = kv_heads * random.integer(1, 2);
  const int64_t queries = random.integer(1, 20), keys = random.integer(2, 50), width = 6;
  c.out_shape = {batch, heads, queries, width};
  c.lse_shape = {batch, heads, queries};
  c.weights_shape = {batch, heads, queries, keys};
  const Dims of_keys{batch, kv_heads, keys, width};
  mask.resize(static_cast<size_t>(keys));
  for (uint8_t& seen : mask) seen = random.chance(0.7) ? 1 : 0;
  const auto rows = [&](const Dims& shape, bool hides) {
    std::vector<float> values = random.floats(shape.elements());
    for (size_t i = 0; hides && i < values.size(); ++i) {
      if (mask[i / static_cast<size_t>(width) % mask.size()] == 0) values[i] = kNaN;
    }
    return multihead::testing::stored(c, std::move(values), DType::kF32, shape,
                                      contiguous_strides(shape));
  };
  c.q = rows(c.out_shape, false);
  c.k = rows(of_keys, true);
  c.v = rows(of_keys, true);
  c.options.mask = {mask.data(), {1, keys}};
  if (random.chance(0.5)) c.options.dropout = {.probability = 0.4F, .seed = seed};
  return c;
}

TEST(CudaBackwardF32, HiddenNaNContributesNothing) {
  for (const uint64_t seed : multihead::testing::random_seeds(30)) {
    SCOPED_TRACE(seed);
    std::vector<uint8_t> mask;
    const BackwardCall call(case_with_hidden_nan(seed, mask), seed);
    device().set_seed(seed);
    const ConstTensor d_out(call.d_out.data(), call.c.out_shape);
    const Gradients got = run_backward(call, d_out, launch_backward_f32);
    for (const auto* const gradient : {&got.d_q, &got.d_k, &got.d_v}) {
      for (const float value : *gradient) EXPECT_FALSE(std::isnan(value));
    }
    expect_equals_oracle(call, got, d_out, 0.0);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

}  // namespace
}  // namespace multihead::cuda::testing
