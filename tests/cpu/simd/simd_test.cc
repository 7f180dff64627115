// Compares 2^x, the score cap and the transposes with plain computations, on every SIMD target.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/random_case.h"
#include "support/simd_targets.h"
#include "support/special_values.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd/simd_test.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/simd/math-inl.h"
#include "cpu/simd/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

using testing::Random;

// Applies f to every number, one vector at a time.
template <class F>
std::vector<float> mapped(const std::vector<float>& x, const F& f) {
  const DF d;
  std::vector<float> padded = x;
  padded.resize(round_up(x.size(), hn::Lanes(d)));
  for (size_t i = 0; i < padded.size(); i += hn::Lanes(d)) {
    hn::StoreU(f(d, hn::LoadU(d, padded.data() + i)), d, padded.data() + i);
  }
  padded.resize(x.size());
  return padded;
}

void check_exp2() {
  Random random(1);
  std::vector<float> x{0.0F, -0.0F, 1.0F, -1.0F, 126.0F, 126.999F, -126.0F, -0.5F, 0.5F};
  for (int i = 0; i < 20000; ++i) x.push_back(random.uniform(-126.0F, 126.9F));
  const auto exp2 = [](DF d, hn::Vec<DF> v) HWY_ATTR { return exp2_clamped(d, exp2_table(), v); };
  const std::vector<float> y = mapped(x, exp2);
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = std::exp2(static_cast<double>(x[i]));
    ASSERT_NEAR(static_cast<double>(y[i]) / expected, 1.0, 2.5e-7) << "2^" << x[i];
  }
  const std::vector<float> ends = mapped({-200.0F, -1e30F, -kInf, kNaN}, exp2);
  EXPECT_EQ(ends[0], 0.0F);
  EXPECT_EQ(ends[1], 0.0F);
  EXPECT_EQ(ends[2], 0.0F);
  EXPECT_TRUE(std::isnan(ends[3]));
  if (!kExp2Overflows) return;
  for (const float large : mapped({128.01F, 129.0F, 200.0F, 385.0F, 1e6F, 1e30F, kInf}, exp2)) {
    EXPECT_EQ(large, kInf);
  }
}

void check_at_least() {
  const auto at_least_two = [](DF d, hn::Vec<DF> v)
                                HWY_ATTR { return at_least(hn::Set(d, 2.0F), v); };
  const std::vector<float> got = mapped({1.0F, 2.0F, 3.0F, -kInf, kInf, kNaN, -kNaN}, at_least_two);
  const std::vector<float> expected{2.0F, 2.0F, 3.0F, 2.0F, kInf};
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(got[i], expected[i]);
  for (size_t i = expected.size(); i < got.size(); ++i) EXPECT_TRUE(std::isnan(got[i]));
}

void check_score_cap() {
  Random random(2);
  for (const float cap : {1.0F, 0.001F, 30.0F, 50.0F, 3e20F}) {
    std::vector<float> x{0.0F, -0.0F, cap, -cap, 100.0F * cap, kInf, -kInf};
    for (int i = 0; i < 5000; ++i) x.push_back(cap * random.uniform(-8.0F, 8.0F));
    const ScoreCap of(cap);
    const std::vector<float> y =
        mapped(x, [&](DF d, hn::Vec<DF> v) HWY_ATTR { return cap_score(d, of, v); });
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = static_cast<double>(cap) *
                           std::tanh(static_cast<double>(x[i]) / static_cast<double>(cap));
      const double size = std::max(std::abs(exact), 1e-30);
      ASSERT_NEAR(static_cast<double>(y[i]) / size, exact / size, 6e-7) << x[i] << ", cap " << cap;
    }
    EXPECT_TRUE(std::isnan(
        mapped({kNaN}, [&](DF d, hn::Vec<DF> v) HWY_ATTR { return cap_score(d, of, v); })[0]));
  }
  // A subnormal cap bounds every score without giving NaN.
  const float least = std::numeric_limits<float>::denorm_min();
  for (const float cap : {least, 1e-41F, 1e-38F}) {
    const ScoreCap of(cap);
    const std::vector<float> y =
        mapped({0.0F, -0.0F, 1.0F, -8.0F, kInf, -kInf, cap},
               [&](DF d, hn::Vec<DF> v) HWY_ATTR { return cap_score(d, of, v); });
    EXPECT_EQ(y[0], 0.0F);
    EXPECT_EQ(y[1], 0.0F);
    for (const float value : y) EXPECT_LE(std::abs(value), cap);
    EXPECT_GE(y[2], 0.0F);
    EXPECT_LE(y[3], 0.0F);
  }
}

template <class D>
void check_square(D d) {
  constexpr size_t kLanes = kSide<D>;
  HWY_ALIGN float from[kLanes * kLanes];
  HWY_ALIGN float to[kLanes * kLanes];
  for (size_t i = 0; i < kLanes * kLanes; ++i) from[i] = static_cast<float>(i);
  Square<D> square;
  for (size_t i = 0; i < kLanes; ++i) square.row[i] = hn::Load(d, from + i * kLanes);
  transpose(d, square);
  store_square(d, square, to);
  for (size_t r = 0; r < kLanes; ++r) {
    for (size_t c = 0; c < kLanes; ++c) ASSERT_EQ(to[r * kLanes + c], from[c * kLanes + r]);
  }
}

void check_transposes() {
  check_square(DF());
  check_square(hn::CappedTag<float, 1>());
  check_square(hn::CappedTag<float, 2>());
  check_square(hn::CappedTag<float, 4>());

  const DF d;
  const size_t lanes = hn::Lanes(d);
  Random random(3);
  for (size_t width = 0; width < 3 * lanes + 2; ++width) {
    const size_t stride = lanes + static_cast<size_t>(random.integer(0, 5));
    std::vector<std::vector<float>> rows(lanes);
    std::vector<const float*> pointers;
    for (std::vector<float>& row : rows) {
      row = random.floats(static_cast<int64_t>(width) + 1);
      pointers.push_back(row.data());
    }
    std::vector<float> columns((width + 1) * stride, kNaN);
    transpose_rows(d, pointers.data(), width, 2.0F, columns.data(), stride);
    for (size_t r = 0; r < lanes; ++r) {
      for (size_t c = 0; c < width; ++c) {
        ASSERT_EQ(columns[c * stride + r], 2.0F * rows[r][c]) << "width " << width;
      }
    }
    if (width == 0) continue;
    // Transpose back without one of the rows; nothing beyond the ends is written.
    std::vector<std::vector<float>> back(lanes, std::vector<float>(width + 1, kNaN));
    std::vector<float*> targets;
    for (std::vector<float>& row : back) targets.push_back(row.data());
    const auto absent = static_cast<size_t>(random.integer(0, static_cast<int64_t>(lanes) - 1));
    targets[absent] = nullptr;
    transpose_back(d, columns.data(), stride, width, targets.data(),
                   [&](auto v) HWY_ATTR { return hn::Mul(v, hn::Set(d, 0.5F)); });
    for (size_t r = 0; r < lanes; ++r) {
      ASSERT_TRUE(std::isnan(back[r][width]));
      for (size_t c = 0; c < width; ++c) {
        if (r == absent) {
          ASSERT_TRUE(std::isnan(back[r][c]));
        } else {
          ASSERT_EQ(back[r][c], rows[r][c]);
        }
      }
    }
  }
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {
namespace {

HWY_EXPORT(check_exp2);
HWY_EXPORT(check_at_least);
HWY_EXPORT(check_score_cap);
HWY_EXPORT(check_transposes);

class SimdOnTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  testing::UseSimdTarget use_{GetParam()};
};

TEST_P(SimdOnTarget, Exp2) { HWY_DYNAMIC_DISPATCH(check_exp2)(); }
TEST_P(SimdOnTarget, AtLeast) { HWY_DYNAMIC_DISPATCH(check_at_least)(); }
TEST_P(SimdOnTarget, ScoreCap) { HWY_DYNAMIC_DISPATCH(check_score_cap)(); }
TEST_P(SimdOnTarget, Transposes) { HWY_DYNAMIC_DISPATCH(check_transposes)(); }

INSTANTIATE_TEST_SUITE_P(EveryTarget, SimdOnTarget, ::testing::ValuesIn(testing::simd_targets()),
                         [](const ::testing::TestParamInfo<int64_t>& target) {
                           return testing::simd_target_name(target.param);
                         });

}  // namespace
}  // namespace multihead::cpu
#endif  // HWY_ONCE
