// Sizes of caches, and products whose panels are sized by them, compared with a plain loop.
#include "cpu/target.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/gemm/gemm.h"
#include "support/simd_targets.h"

namespace multihead::cpu {
namespace {

constexpr int64_t kKilobyte = 1024;

// While this object exists, blocks are made for an L2 of this size.
class UseL2 {
 public:
  explicit UseL2(int64_t bytes) { replace_l2_cache_bytes(bytes); }
  ~UseL2() { replace_l2_cache_bytes(0); }
  UseL2(const UseL2&) = delete;
  UseL2& operator=(const UseL2&) = delete;
};

TEST(CacheSizes, ReadsTheSizesThatLinuxWrites) {
  EXPECT_EQ(bytes_of_size("512K"), 512 * kKilobyte);
  EXPECT_EQ(bytes_of_size("2M"), 2048 * kKilobyte);
  EXPECT_EQ(bytes_of_size("4096"), 4096);
  for (const char* const wrong :
       {"", "K", "-1K", "512k", "512 K", "512KB", "x", "99999999999999999999K", "9999999999999K"}) {
    EXPECT_EQ(bytes_of_size(wrong), 0) << wrong;
  }
}

TEST(CacheSizes, AreBounded) {
  EXPECT_GE(l2_cache_bytes(), 64 * kKilobyte);
  EXPECT_LE(l2_cache_bytes(), kLargestL2);
  const int64_t own = l2_cache_bytes();
  {
    const UseL2 small(1);
    EXPECT_EQ(l2_cache_bytes(), 64 * kKilobyte);
  }
  {
    const UseL2 large(64 * kLargestL2);
    EXPECT_EQ(l2_cache_bytes(), kLargestL2);
  }
  EXPECT_EQ(l2_cache_bytes(), own);
}

// a and b as their flags say; c = a b.
struct PanelFactors {
  int64_t rows, columns, depth;
  bool a_transposed, b_transposed;
  std::vector<float> a = {}, b = {};

  float& a_at(int64_t row, int64_t k) {
    return a[static_cast<size_t>(a_transposed ? k * rows + row : row * depth + k)];
  }
  float& b_at(int64_t k, int64_t column) {
    return b[static_cast<size_t>(b_transposed ? column * depth + k : k * columns + column)];
  }
};

PanelFactors make_factors(int64_t rows, int64_t columns, int64_t depth, bool a_transposed,
                          bool b_transposed) {
  PanelFactors m{rows, columns, depth, a_transposed, b_transposed};
  m.a.resize(static_cast<size_t>(rows * depth));
  m.b.resize(static_cast<size_t>(depth * columns));
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t row = 0; row < rows; ++row) {
      m.a_at(row, k) = static_cast<float>((row * 7 + k * 3) % 11 - 5);
    }
    for (int64_t column = 0; column < columns; ++column) {
      m.b_at(k, column) = static_cast<float>((column * 5 + k * 2) % 13 - 6);
    }
  }
  return m;
}

std::vector<float> product_of_factors(const PanelFactors& m) {
  std::vector<float> c(static_cast<size_t>(m.rows * m.columns));
  GemmParams p;
  p.a = m.a.data();
  p.a_stride = m.a_transposed ? m.rows : m.depth;
  p.a_transposed = m.a_transposed;
  p.b.data = m.b.data();
  p.b.type = DType::kF32;
  p.b.stride = {0, 0, m.b_transposed ? m.depth : m.columns};
  p.b_transposed = m.b_transposed;
  p.c = c.data();
  p.c_stride = m.columns;
  p.rows = m.rows;
  p.columns = m.columns;
  p.depth = m.depth;
  const auto layout_of = m.b_transposed ? projection_layout : product_layout;
  const GemmLayout layout = layout_of(p, 1, /*tiles=*/false);
  std::vector<float> scratch(layout.scratch_bytes / sizeof(float) + 64);
  float* aligned = scratch.data();
  while (reinterpret_cast<uintptr_t>(aligned) % 128 != 0) ++aligned;
  for (int64_t row = 0; row < m.rows; row += layout.job_rows) {
    for (int64_t column = 0; column < m.columns; column += layout.job_columns) {
      gemm_block(p, layout, row, column, aligned);
    }
  }
  return c;
}

// Sums of integers below 2^24 are exact in every order.
void expect_exact_product(PanelFactors& m) {
  std::vector<float> right;
  for (int64_t row = 0; row < m.rows; ++row) {
    for (int64_t column = 0; column < m.columns; ++column) {
      double sum = 0;
      for (int64_t k = 0; k < m.depth; ++k) {
        sum += static_cast<double>(m.a_at(row, k)) * static_cast<double>(m.b_at(k, column));
      }
      right.push_back(static_cast<float>(sum));
    }
  }
  for (const int64_t size : {64, 256, 512, 1024}) {
    const UseL2 use(size * kKilobyte);
    testing::on_every_target([&] { EXPECT_EQ(product_of_factors(m), right) << size << " kB"; });
  }
}

TEST(CacheSizes, ProductsAreExactWithEverySize) {
  // Panels of these depths have several parts in the smaller caches.
  PanelFactors projection = make_factors(130, 70, 1601, false, true);
  expect_exact_product(projection);
  PanelFactors inputs = make_factors(50, 67, 1601, false, false);
  expect_exact_product(inputs);
  PanelFactors weights = make_factors(50, 67, 413, true, false);
  expect_exact_product(weights);
}

}  // namespace
}  // namespace multihead::cpu
