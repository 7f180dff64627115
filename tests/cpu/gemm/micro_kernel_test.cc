// Compares the micro-kernel's tiles and their epilogues with plain loops, on every SIMD target.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/random_case.h"
#include "support/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gemm/micro_kernel_test.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/gemm/micro_kernel-inl.h"
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/tile_size.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

using testing::Random;

// Operands of a (rows, vecs vectors) product in strips of kStrip vectors, with gaps between rows.
template <ALayout kLayout, size_t kStrip>
struct Operands {
  size_t rows, vecs, depth, lanes, columns, strips;
  size_t a_stride, c_stride;
  std::vector<float> a, b, c;

  Operands(Random& random, size_t rows_, size_t vecs_)
      : rows(rows_),
        vecs(vecs_),
        depth(static_cast<size_t>(random.integer(0, 40))),
        lanes(hn::Lanes(DF())),
        columns(vecs * lanes),
        strips((vecs + kStrip - 1) / kStrip) {
    const auto gap = [&] { return static_cast<size_t>(random.integer(0, 3)); };
    a_stride = (kLayout == ALayout::kRowMajor ? depth : rows) + gap();
    c_stride = columns + gap();
    a = random.floats(static_cast<int64_t>(std::max(rows, depth) * a_stride + 1));
    b = random.floats(static_cast<int64_t>(strips * depth * kStrip * lanes + 1));
    c = random.floats(static_cast<int64_t>(rows * c_stride));
  }

  Product<> product() {
    return {.a = a.data(),
            .a_stride = static_cast<ptrdiff_t>(a_stride),
            .b = b.data(),
            .b_stride = static_cast<ptrdiff_t>(kStrip * lanes),
            .b_strip = static_cast<ptrdiff_t>(depth * kStrip * lanes),
            .c = c.data(),
            .c_stride = static_cast<ptrdiff_t>(c_stride),
            .depth = depth};
  }

  double sum(size_t row, size_t column, size_t of_depth) const {
    double result = 0.0;
    const size_t strip = column / (kStrip * lanes);
    for (size_t k = 0; k < of_depth; ++k) {
      const float of_a =
          kLayout == ALayout::kRowMajor ? a[row * a_stride + k] : a[k * a_stride + row];
      const float of_b = b[(strip * depth + k) * kStrip * lanes + column % (kStrip * lanes)];
      result += static_cast<double>(of_a) * static_cast<double>(of_b);
    }
    return result;
  }
};

constexpr double kAllowed = 1e-5;  // error of 40 products of numbers up to 1

void check_products() {
  Random random(1);
  constexpr size_t kStrip = TileSize::kMaxVecs;
  for (size_t rows = 1; rows <= 20; ++rows) {
    for (size_t vecs = 1; vecs <= 2 * kStrip + 1; ++vecs) {
      Operands<ALayout::kColMajor, kStrip> o(random, rows, vecs);
      const std::vector<float> before = o.c;
      Product<> p = o.product();
      p.accumulate = random.chance(0.5);
      // A tile's depth is the depth of its last row.
      const auto depth_of = [&](size_t row) { return std::min(o.depth, 2 * row + 1); };
      // [strip][row]: the height of tiles depends on the width of the strip.
      std::vector<std::vector<size_t>> depths;
      product<ALayout::kColMajor>(DF(), p, rows, vecs, [&](size_t row, size_t count) {
        const size_t of_tile = depth_of(row + count - 1);
        if (row == 0) depths.emplace_back(rows);
        std::fill_n(depths.back().begin() + static_cast<ptrdiff_t>(row), count, of_tile);
        return of_tile;
      });
      ASSERT_EQ(depths.size(), o.strips);
      for (size_t r = 0; r < rows; ++r) {
        for (size_t c = 0; c < o.c_stride; ++c) {
          const auto was = static_cast<double>(before[r * o.c_stride + c]);
          double expected = was;
          if (c < o.columns) {
            const size_t depth = depths[c / (kStrip * o.lanes)][r];
            ASSERT_GE(depth, depth_of(r));
            expected = o.sum(r, c, depth) + (p.accumulate ? was : 0.0);
          }
          ASSERT_NEAR(static_cast<double>(o.c[r * o.c_stride + c]), expected, kAllowed)
              << rows << " x " << vecs << ", row " << r << ", column " << c;
        }
      }
    }
  }
}

void check_column_maxima() {
  Random random(2);
  constexpr size_t kStrip = TileSize::kScoreVecs;
  for (size_t rows = 1; rows <= 20; ++rows) {
    Operands<ALayout::kRowMajor, kStrip> o(random, rows, kStrip);
    std::vector<float> largest(o.columns, -0.25F);
    Product<> p = o.product();
    p.column_max = largest.data();
    product<ALayout::kRowMajor, F32Arithmetic, kStrip>(DF(), p, rows, kStrip,
                                                       [&](size_t, size_t) { return o.depth; });
    for (size_t c = 0; c < o.columns; ++c) {
      float expected = -0.25F;
      for (size_t r = 0; r < rows; ++r) expected = std::max(expected, o.c[r * o.c_stride + c]);
      ASSERT_EQ(largest[c], expected);
      ASSERT_NEAR(static_cast<double>(o.c[c]), o.sum(0, c, o.depth), kAllowed);
    }
  }
}

void check_fused_exp() {
  Random random(3);
  constexpr size_t kStrip = TileSize::kScoreVecs;
  for (size_t rows = 1; rows <= 20; ++rows) {
    Operands<ALayout::kRowMajor, kStrip> o(random, rows, kStrip);
    const std::vector<float> reference = random.floats(static_cast<int64_t>(o.columns));
    std::vector<float> sum(o.columns, 0.5F);
    Product<> p = o.product();
    p.fused_exp = {.to_log2 = 1.5F, .reference = reference.data(), .sum = sum.data()};
    product<ALayout::kRowMajor, F32Arithmetic, kStrip, Result::kWeights>(
        DF(), p, rows, kStrip, [&](size_t, size_t) { return o.depth; });
    for (size_t c = 0; c < o.columns; ++c) {
      double total = 0.5;
      for (size_t r = 0; r < rows; ++r) {
        const double expected =
            std::exp2(1.5 * (o.sum(r, c, o.depth) - static_cast<double>(reference[c])));
        total += expected;
        ASSERT_NEAR(static_cast<double>(o.c[r * o.c_stride + c]) / expected, 1.0, 1e-4);
      }
      ASSERT_NEAR(static_cast<double>(sum[c]) / total, 1.0, 1e-4);
    }
  }
}

void check_normalized_rows() {
  Random random(4);
  constexpr size_t kStrip = TileSize::kMaxVecs;
  for (size_t rows = 1; rows <= 20; ++rows) {
    Operands<ALayout::kColMajor, kStrip> o(random, rows, kStrip);
    const std::vector<float> before = o.c;
    const std::vector<float> factor = random.floats(static_cast<int64_t>(rows));
    std::vector<float> out(rows * o.columns), nan(o.lanes, 0.0F);
    Product<> p = o.product();
    p.accumulate = true;
    p.normalized = {.to = out.data(),
                    .stride = static_cast<ptrdiff_t>(o.columns),
                    .factor = factor.data(),
                    .nan = nan.data()};
    product<ALayout::kColMajor>(DF(), p, rows, kStrip);
    ASSERT_EQ(o.c, before);
    ASSERT_EQ(nan, std::vector<float>(o.lanes, 0.0F));
    for (size_t r = 0; r < rows; ++r) {
      for (size_t c = 0; c < o.columns; ++c) {
        const double sum = o.sum(r, c, o.depth) + static_cast<double>(before[r * o.c_stride + c]);
        ASSERT_NEAR(static_cast<double>(out[r * o.columns + c]),
                    sum * static_cast<double>(factor[r]), kAllowed);
      }
    }
    o.c[(rows - 1) * o.c_stride + 1] = std::numeric_limits<float>::quiet_NaN();
    product<ALayout::kColMajor>(DF(), p, rows, kStrip);
    ASSERT_TRUE(std::any_of(nan.begin(), nan.end(), [](float flag) { return flag != 0.0F; }));
  }
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {
namespace {

HWY_EXPORT(check_products);
HWY_EXPORT(check_column_maxima);
HWY_EXPORT(check_fused_exp);
HWY_EXPORT(check_normalized_rows);

class MicroKernelOnTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  testing::UseSimdTarget use_{GetParam()};
};

TEST_P(MicroKernelOnTarget, Products) { HWY_DYNAMIC_DISPATCH(check_products)(); }
TEST_P(MicroKernelOnTarget, ColumnMaxima) { HWY_DYNAMIC_DISPATCH(check_column_maxima)(); }
TEST_P(MicroKernelOnTarget, FusedExp) { HWY_DYNAMIC_DISPATCH(check_fused_exp)(); }
TEST_P(MicroKernelOnTarget, NormalisedRows) { HWY_DYNAMIC_DISPATCH(check_normalized_rows)(); }

INSTANTIATE_TEST_SUITE_P(EveryTarget, MicroKernelOnTarget,
                         ::testing::ValuesIn(testing::simd_targets()),
                         [](const ::testing::TestParamInfo<int64_t>& target) {
                           return testing::simd_target_name(target.param);
                         });

}  // namespace
}  // namespace multihead::cpu
#endif  // HWY_ONCE
