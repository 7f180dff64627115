// merge_attention() and rotate() of multihead/cuda.h in the emulator, compared with the same
// functions on the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "cuda/mapped_case.h"
#include "multihead/attention.h"
#include "multihead/context.h"
#include "multihead/cuda.h"
#include "multihead/rope.h"
#include "support/random_case.h"

namespace multihead::cuda::testing {
namespace {

using multihead::testing::Random;
using multihead::testing::random_seeds;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Equal infinities are close, NaN never is.
void expect_close(const std::vector<float>& got, const std::vector<float>& expected,
                  float allowed) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i]) continue;
    ASSERT_LE(std::abs(got[i] - expected[i]), allowed) << "element " << i;
  }
}

TEST(CudaMerge, EqualsThatOfTheCpuOnRandomCalls) {
  for (const uint64_t seed : random_seeds(500)) {
    Random random(seed);
    SCOPED_TRACE(seed);
    const Dims shape{random.integer(0, 3), random.integer(1, 4), random.integer(0, 9),
                     random.integer(1, 70)};
    const Dims rows{shape[0], shape[1], shape[2]};
    std::vector<float> out_a = random.floats(shape.elements());
    std::vector<float> lse_a = random.floats(rows.elements(), -20.0F, 20.0F);
    const std::vector<float> out_b = random.floats(shape.elements());
    std::vector<float> lse_b = random.floats(rows.elements(), -20.0F, 20.0F);
    // Some rows have no visible key in one part: their LSE is -inf.
    for (std::vector<float>* const lse : {&lse_a, &lse_b}) {
      for (float& value : *lse) {
        if (random.chance(0.2)) value = -kInfinity;
      }
    }
    std::vector<float> expected_out = out_a, expected_lse = lse_a;
    ASSERT_TRUE(multihead::merge_attention({expected_out.data(), shape},
                                           {expected_lse.data(), rows}, {out_b.data(), shape},
                                           {lse_b.data(), rows})
                    .ok());
    Mapping mapping;
    mapping.add(out_a, emulator::Use::kInPlace, "out_a");
    mapping.add(lse_a, emulator::Use::kInPlace, "lse_a");
    mapping.add(out_b, emulator::Use::kInput, "out_b");
    mapping.add(lse_b, emulator::Use::kInput, "lse_b");
    emulator::device().set_seed(seed);
    const Status status = merge_attention({out_a.data(), shape}, {lse_a.data(), rows},
                                          {out_b.data(), shape}, {lse_b.data(), rows}, nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    expect_no_findings();
    expect_close(out_a, expected_out, 2e-6F);
    expect_close(lse_a, expected_lse, 4e-6F);
  }
}

TEST(CudaRotate, EqualsThatOfTheCpuOnRandomCalls) {
  Context context(1);
  for (const uint64_t seed : random_seeds(500)) {
    Random random(seed);
    SCOPED_TRACE(seed);
    // Some rows have more pairs than a warp keeps angles of.
    const int64_t width =
        2 * (random.chance(0.1) ? random.integer(128, 280) : random.integer(1, 40));
    // From 8 rows on, several heads share their angles.
    const Dims shape{random.integer(1, 3), random.integer(1, 10),
                     random.chance(0.2) ? random.integer(10, 40) : random.integer(0, 9), width};
    const Rope rope{.style = random.pick({Rope::Style::kInterleaved, Rope::Style::kHalf}),
                    .base = random.pick({10000.0, 500000.0, 2.5}),
                    .rotary_dim = random.chance(0.5) ? 0 : 2 * random.integer(1, width / 2)};
    std::vector<int32_t> positions;
    const int64_t count = random.chance(0.5) ? shape[2] : shape[0] * shape[2];
    for (int64_t i = 0; i < count; ++i) {
      positions.push_back(static_cast<int32_t>(random.integer(0, 5000)));
    }
    const std::vector<float> x = random.floats(shape.elements());
    std::vector<float> y(x.size()), expected(x.size());
    ASSERT_TRUE(
        multihead::rotate({x.data(), shape}, positions, rope, {expected.data(), shape}, context)
            .ok());
    Mapping mapping;
    mapping.add(x, emulator::Use::kInput, "x");
    mapping.add(positions, emulator::Use::kInput, "positions");
    mapping.add(y, emulator::Use::kOutput, "y");
    emulator::device().set_seed(seed);
    const Status status = rotate({x.data(), shape}, positions, rope, {y.data(), shape}, nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    expect_no_findings();
    expect_close(y, expected, 4e-6F);
  }
}

}  // namespace
}  // namespace multihead::cuda::testing
