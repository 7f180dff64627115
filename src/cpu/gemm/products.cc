// Products of a linear projection's backward, d_x = d_y W and d_weight = d_y^T x, from the panels
// and tiles of the projection. The packed operand has its columns in the lanes already, so packing
// is copying.
#include "cpu/gemm/products.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gemm/products.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/gemm/panels-inl.h"
#include "cpu/simd/columns-inl.h"
#include "cpu/simd/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Fewest rows of a job: each job packs its own panel. Packing costs as much as one row of the
// product.
constexpr int64_t kLeastJobRows = 32;
constexpr int64_t kJobsPerThread = 8;

template <ALayout kLayout>
LinearLayout sizes(const ProductParams& p, int threads) {
  const auto job_columns = static_cast<int64_t>(panel_columns<kLayout>());
  const int64_t column_jobs = std::max<int64_t>(1, (p.columns + job_columns - 1) / job_columns);
  const int64_t wanted = threads == 1 ? 1 : threads * kJobsPerThread;
  const int64_t row_jobs = std::clamp<int64_t>((wanted + column_jobs - 1) / column_jobs, 1,
                                               std::max<int64_t>(1, p.rows / kLeastJobRows));
  // Enough for smaller depths too: a smaller depth may have longer parts.
  const size_t depth = std::min(static_cast<size_t>(p.depth), kPanelDepth<kLayout>);
  const size_t transposed = kLayout == ALayout::kColMajor ? kTransposedFloats : 0;
  return {.job_rows = (p.rows + row_jobs - 1) / row_jobs,
          .job_columns = job_columns,
          .scratch_bytes = sizeof(float) * (panel_floats<kLayout>(depth) + transposed)};
}

LinearLayout product_sizes(const ProductParams& p, int threads) {
  return p.a_transposed ? sizes<ALayout::kColMajor>(p, threads)
                        : sizes<ALayout::kRowMajor>(p, threads);
}

void multiply(const ProductParams& p, const LinearLayout& layout, int64_t first_row,
              int64_t first_column, void* scratch) {
  auto* const packed = static_cast<float*>(scratch);
  const float* const b = p.b + first_column;
  const auto b_stride = static_cast<ptrdiff_t>(p.b_stride);
  const PanelProduct part{
      .a = p.a + first_row * (p.a_transposed ? 1 : p.a_stride),
      .a_stride = static_cast<ptrdiff_t>(p.a_stride),
      .c = p.c + first_row * p.c_stride + first_column,
      .c_stride = static_cast<ptrdiff_t>(p.c_stride),
      .rows = static_cast<size_t>(std::min(layout.job_rows, p.rows - first_row)),
      .columns = static_cast<size_t>(std::min(layout.job_columns, p.columns - first_column)),
      .depth = static_cast<size_t>(p.depth)};
  const auto pack = [&](size_t first, size_t depth, size_t strip) {
    pack_copies(b + static_cast<ptrdiff_t>(first) * b_stride, b_stride, depth, part.columns,
                strip_width(), strip, packed);
  };
  const auto start = [&](size_t row, size_t rows) {
    if (p.adds) return;
    float* c = part.c + static_cast<ptrdiff_t>(row) * part.c_stride;
    for (; rows > 0; --rows, c += part.c_stride) std::fill_n(c, part.columns, 0.0F);
  };
  if (p.a_transposed) {
    multiply_panels<ALayout::kColMajor>(part, packed, pack, start);
  } else {
    multiply_panels<ALayout::kRowMajor>(part, packed, pack, start);
  }
}

// Adds a vector of columns at a time. kRowsAtOnce rows are summed in a register before they are
// added to the total: with 16k rows in one sum, rounding errors would grow with the rows.
void add_columns(const float* x, int64_t stride, int64_t rows, int64_t width, float* sums) {
  constexpr int64_t kRowsAtOnce = 64;
  const DF d;
  const auto columns = static_cast<size_t>(width);
  for (int64_t first = 0; first < rows; first += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, rows - first);
    for (size_t c = 0; c < columns; c += hn::Lanes(d)) {
      const size_t rest = columns - c;
      const float* at = x + first * stride + c;
      auto sum = load_up_to(d, at, rest);
      for (int64_t row = 1; row < count; ++row) {
        at += stride;
        sum = hn::Add(sum, load_up_to(d, at, rest));
      }
      store_up_to(d, hn::Add(sum, load_up_to(d, sums + c, rest)), sums + c, rest);
    }
  }
}

}  // namespace
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

HWY_EXPORT(product_sizes);
HWY_EXPORT(multiply);
HWY_EXPORT(add_columns);

LinearLayout product_layout(const ProductParams& params, int threads) {
  return HWY_DYNAMIC_DISPATCH(product_sizes)(params, threads);
}

void product_block(const ProductParams& params, const LinearLayout& layout, int64_t first_row,
                   int64_t first_column, void* scratch) {
  HWY_DYNAMIC_DISPATCH(multiply)(params, layout, first_row, first_column, scratch);
}

void add_column_sums(const float* x, int64_t stride, int64_t rows, int64_t width, float* sums) {
  HWY_DYNAMIC_DISPATCH(add_columns)(x, stride, rows, width, sums);
}

}  // namespace multihead::cpu
#endif  // HWY_ONCE
