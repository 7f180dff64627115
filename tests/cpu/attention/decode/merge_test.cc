// merge_attention() of many rows: compared with a loop in double on every SIMD target, and with
// itself on other numbers of threads, bit by bit.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "multihead/attention.h"
#include "support/random_case.h"
#include "support/simd_targets.h"
#include "support/special_values.h"

namespace multihead {
namespace {

using testing::Random;

// Outputs (B, H, N, width) and LSEs (B, H, N), in memory with gaps between rows.
struct Part {
  Dims shape, strides, lse_strides;
  std::vector<float> out, lse;

  Part(Random& random, const Dims& shape_) : shape(shape_) {
    const bool tokens_first = random.chance(0.5);
    const int64_t heads = shape[1], tokens = shape[2], width = shape[3] + random.integer(0, 3);
    strides = tokens_first ? Dims{heads * tokens * width, width, heads * width, 1}
                           : Dims{heads * tokens * width, tokens * width, width, 1};
    const int64_t step = tokens + random.integer(0, 3);
    lse_strides = {heads * step, step, 1};
    out = random.floats(shape[0] * heads * tokens * width);
    lse = random.floats(shape[0] * heads * step, -20.0F, 20.0F);
    for (float& value : lse) {
      if (random.chance(0.05)) value = -kInf;
    }
  }

  Dims rows() const { return {shape[0], shape[1], shape[2]}; }
  Tensor out_view() { return {out.data(), shape, strides}; }
  Tensor lse_view() { return {lse.data(), rows(), lse_strides}; }
  float lse_at(int64_t b, int64_t h, int64_t n) const {
    return lse[static_cast<size_t>(b * lse_strides[0] + h * lse_strides[1] + n * lse_strides[2])];
  }
  float out_at(int64_t b, int64_t h, int64_t n, int64_t c) const {
    return out[static_cast<size_t>(b * strides[0] + h * strides[1] + n * strides[2] + c)];
  }
};

Part merged(const Part& a, Part b, Context* context) {
  Part result = a;
  const Status status =
      merge_attention(result.out_view(), result.lse_view(), b.out_view(), b.lse_view(), context);
  EXPECT_TRUE(status.ok()) << status.message();
  return result;
}

void expect_merged(const Part& got, const Part& a, const Part& b) {
  for (int64_t batch = 0; batch < a.shape[0]; ++batch) {
    for (int64_t h = 0; h < a.shape[1]; ++h) {
      for (int64_t n = 0; n < a.shape[2]; ++n) {
        const auto of_a = std::exp(static_cast<double>(a.lse_at(batch, h, n)));
        const auto of_b = std::exp(static_cast<double>(b.lse_at(batch, h, n)));
        const double sum = of_a + of_b;
        const float lse = got.lse_at(batch, h, n);
        if (sum == 0) {
          ASSERT_EQ(lse, -kInf);
        } else {
          ASSERT_NEAR(static_cast<double>(lse), std::log(sum), 1e-5);
        }
        for (int64_t c = 0; c < a.shape[3]; ++c) {
          const double expected = sum == 0
                                      ? 0.0
                                      : (of_a * static_cast<double>(a.out_at(batch, h, n, c)) +
                                         of_b * static_cast<double>(b.out_at(batch, h, n, c))) /
                                            sum;
          ASSERT_NEAR(static_cast<double>(got.out_at(batch, h, n, c)), expected, 5e-7);
        }
      }
    }
  }
}

std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  bits.reserve(values.size());
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

TEST(MergeAttention, AnyShapeAndNumberOfThreads) {
  Context one(1), two(2), five(5);
  for (const uint64_t seed : testing::random_seeds(60)) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, "seed " + std::to_string(seed));
    Random random(seed);
    // A tenth of the calls is large enough for several threads.
    const int64_t tokens = random.integer(0, 9) == 0 ? 1200 : random.integer(1, 9);
    const Dims shape{random.integer(1, 3), random.integer(1, 4), tokens, random.integer(0, 70)};
    const Part a(random, shape), b(random, shape);
    testing::on_every_target([&] {
      const Part expected = merged(a, b, nullptr);
      expect_merged(expected, a, b);
      for (Context* const context : {&one, &two, &five}) {
        const Part got = merged(a, b, context);
        ASSERT_EQ(bits_of(got.out), bits_of(expected.out)) << context->threads() << " threads";
        ASSERT_EQ(bits_of(got.lse), bits_of(expected.lse)) << context->threads() << " threads";
      }
    });
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace multihead
