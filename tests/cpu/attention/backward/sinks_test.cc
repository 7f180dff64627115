// sink_gradient() compared with a loop in double, on every SIMD target.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "cpu/kernels.h"
#include "engine/attention/backward.h"
#include "multihead/context.h"
#include "support/random_case.h"
#include "support/simd_targets.h"

namespace multihead::cpu {
namespace {

using testing::Random;

// (B, H, N) with gaps between heads and between batch entries.
struct Numbers {
  rules::RowStrides stride;
  std::vector<float> data;

  Numbers(Random& random, int64_t batch, int64_t heads, int64_t queries, float low, float high) {
    stride[2] = 1;
    stride[1] = queries + random.integer(0, 3);
    stride[0] = heads * stride[1] + random.integer(0, 3);
    data = random.floats(batch * stride[0], low, high);
  }
  rules::Rows<const float> rows() const { return {data.data(), stride}; }
};

TEST(SinkGradient, EqualsASumInDouble) {
  for (const uint64_t seed : testing::random_seeds(200)) {
    Random random(seed);
    const int64_t batch = random.integer(1, 3), heads = random.integer(1, 3);
    const int64_t queries = random.chance(0.1) ? 5000 : random.integer(0, 70);
    // An LSE is at least as large as the sink.
    const float center = random.uniform(-100.0F, 100.0F), width = random.pick({0.0F, 5.0F, 200.0F});
    const Numbers lse(random, batch, heads, queries, center, center + width);
    const Numbers delta(random, batch, heads, queries, random.pick({-1.0F, 0.5F}), 1.0F);
    const std::vector<float> sinks = random.floats(heads, center - 3.0F, center);
    const SinkParams p{.sinks = sinks.data(),
                       .lse = lse.rows(),
                       .delta = delta.rows(),
                       .batch = batch,
                       .queries = queries};
    for (int64_t head = 0; head < heads; ++head) {
      double expected = 0, magnitude = 0;
      for (int64_t b = 0; b < batch; ++b) {
        for (int64_t n = 0; n < queries; ++n) {
          const auto sink = static_cast<double>(sinks[static_cast<size_t>(head)]);
          const double weight = std::exp(sink - static_cast<double>(*p.lse.row(b, head, n)));
          const auto of_row = static_cast<double>(*p.delta.row(b, head, n));
          expected -= weight * of_row;
          magnitude += std::abs(of_row);
        }
      }
      testing::on_every_target([&] {
        ASSERT_NEAR(static_cast<double>(sink_gradient(p, head)), expected, 0x1p-21 * magnitude)
            << "seed " << seed;
      });
    }
  }
}

TEST(SinkGradient, NaNsStay) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t queries : {1, 40}) {
    for (const bool in_lse : {false, true}) {
      std::vector<float> lse(static_cast<size_t>(queries), 1.0F), delta(lse);
      (in_lse ? lse : delta).back() = kNaN;
      const float sink = 0.5F;
      const SinkParams p{.sinks = &sink,
                         .lse = {lse.data(), {0, 0, 1}},
                         .delta = {delta.data(), {0, 0, 1}},
                         .batch = 1,
                         .queries = queries};
      testing::on_every_target([&] { EXPECT_TRUE(std::isnan(sink_gradient(p, 0))); });
    }
  }
}

// Every head is summed by one thread.
TEST(SinkGradient, SameBitsOnAnyNumberOfThreads) {
  constexpr int64_t kBatch = 2, kHeads = 7, kQueries = 20000;
  Random random(1);
  const std::vector<float> lse = random.floats(kBatch * kHeads * kQueries, 1.0F, 9.0F);
  std::vector<float> delta = random.floats(kBatch * kHeads * kQueries);
  const std::vector<float> sinks = random.floats(kHeads);
  rules::BackwardParams params{};
  params.forward.batch = kBatch;
  params.forward.heads = kHeads;
  params.forward.queries = kQueries;
  params.forward.sinks = sinks.data();
  params.lse = {lse.data(), {kHeads * kQueries, kQueries, 1}};
  params.delta = delta.data();
  std::vector<float> expected(kHeads);
  engine::differentiate_sinks(params, expected, nullptr);
  for (const int threads : {2, 5, 16}) {
    std::vector<float> got(kHeads);
    const Context context(threads);
    engine::differentiate_sinks(params, got, &context);
    EXPECT_EQ(got, expected) << threads << " threads";
  }
}

// Rows that see no more than the sink have its weight 1; rows far above it do not count.
TEST(SinkGradient, EndsOfTheRange) {
  const std::vector<float> lse{0.5F, 1e30F, std::numeric_limits<float>::infinity(), 150.0F};
  const std::vector<float> delta{2.0F, 3.0F, 4.0F, 5.0F};
  const float sink = 0.5F;
  const SinkParams p{.sinks = &sink,
                     .lse = {lse.data(), {0, 0, 1}},
                     .delta = {delta.data(), {0, 0, 1}},
                     .batch = 1,
                     .queries = 4};
  testing::on_every_target([&] { EXPECT_FLOAT_EQ(sink_gradient(p, 0), -2.0F); });
}

}  // namespace
}  // namespace multihead::cpu
