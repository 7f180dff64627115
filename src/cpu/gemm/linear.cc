// Linear projection y = x W^T + b. With many rows, a block of W is packed with its outputs in the
// vector lanes, and every row tile of x uses it. With few rows, W is read once, in place.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gemm/linear.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/gemm/linear_weights-inl.h"
#include "cpu/gemm/panels-inl.h"
#include "cpu/simd/columns-inl.h"
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/stored_rows-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr bool kManyRegisters = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64;

// Most rows without packing W. GFLOP/s packed and not packed on Zen 4: with 32 registers 83 and 103
// (16 rows), 94 and 100 (32 rows); with 16 registers 74 and 82, 83 and 83.
constexpr int64_t kFewRows = kManyRegisters ? 32 : 16;

// Fewest rows of a job: each job packs its own panel, which pays only from this many rows on.
constexpr int64_t kLeastJobRows = 128;
constexpr int64_t kJobsPerThread = 4;

// Number of floats of scratch for one vector of outputs' weights, if these are half precision.
size_t widened_floats(const LinearParams& p, size_t depth) {
  return p.weight.type == DType::kF32 ? 0 : hn::Lanes(DF()) * depth;
}

LinearLayout linear_sizes(const LinearParams& p, int threads) {
  const auto in = static_cast<size_t>(p.in);
  if (p.rows <= kFewRows) {
    return {.job_rows = p.rows,
            .job_columns = static_cast<int64_t>(panel_columns<ALayout::kRowMajor>()),
            .scratch_bytes = sizeof(float) * widened_floats(p, in)};
  }
  const auto job_columns = static_cast<int64_t>(panel_columns<ALayout::kRowMajor>());
  const int64_t column_jobs = (p.out + job_columns - 1) / job_columns;
  const int64_t wanted = threads == 1 ? 1 : threads * kJobsPerThread;
  const int64_t row_jobs = std::clamp<int64_t>((wanted + column_jobs - 1) / column_jobs, 1,
                                               std::max<int64_t>(1, p.rows / kLeastJobRows));
  const size_t depth = part_of(in, kPanelDepth<ALayout::kRowMajor>);
  const size_t floats = panel_floats<ALayout::kRowMajor>(in) + widened_floats(p, depth);
  return {.job_rows = (p.rows + row_jobs - 1) / row_jobs,
          .job_columns = job_columns,
          .scratch_bytes = sizeof(float) * floats};
}

struct Job {
  const float* x;
  StoredRows weight;  // from the job's first column on
  float* y;
  const float* bias;  // may be null
  size_t rows, columns, depth;
  ptrdiff_t x_stride, y_stride;
};

// Returns elements first .. first + depth - 1 of the weights of one vector of outputs.
WeightRows<DF> weights_of(const Job& job, size_t column, size_t first, size_t depth,
                          float* HWY_RESTRICT scratch) {
  const size_t given = HWY_MIN(hn::Lanes(DF()), job.columns - column);
  StoredRows rows = job.weight;
  const auto row = static_cast<int64_t>(column);
  // Read dense floats without read_rows(): its call for every vector of outputs took 3 % of
  // 1x768x2304.
  if (HWY_LIKELY(rows.type == DType::kF32)) {
    const float* data = static_cast<const float*>(rows.data) + row * rows.stride[2] + first;
    return {{data, static_cast<ptrdiff_t>(rows.stride[2])}, given};
  }
  rows.data =
      static_cast<const std::byte*>(rows.data) + static_cast<int64_t>(first) * bytes_of(rows.type);
  return {read_rows(DF(), rows, 0, 0, row, given, depth, depth, scratch), given};
}

void start_rows(const Job& job, size_t first, size_t rows) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  for (size_t row = first; row < first + rows; ++row) {
    float* const y = job.y + static_cast<ptrdiff_t>(row) * job.y_stride;
    for (size_t c = 0; c < job.columns; c += lanes) {
      const size_t rest = job.columns - c;
      const auto start = job.bias == nullptr ? hn::Zero(d) : load_up_to(d, job.bias + c, rest);
      store_up_to(d, start, y + c, rest);
    }
  }
}

void many_rows(const Job& job, float* HWY_RESTRICT packed) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const size_t width = strip_width();
  float* const widened = packed + panel_floats<ALayout::kRowMajor>(job.depth);
  const auto pack = [&](size_t first, size_t panel, size_t strip) {
    for (size_t c = 0; c < job.columns; c += lanes) {
      pack_rows(d, weights_of(job, c, first, panel, widened), panel,
                packed + c / width * strip + c % width, width);
    }
  };
  multiply_panels<ALayout::kRowMajor>({.a = job.x,
                                       .a_stride = job.x_stride,
                                       .c = job.y,
                                       .c_stride = job.y_stride,
                                       .rows = job.rows,
                                       .columns = job.columns,
                                       .depth = job.depth},
                                      packed, pack,
                                      [&](size_t row, size_t rows) { start_rows(job, row, rows); });
}

// Computes one vector of outputs of kRows rows.
template <size_t kRows>
void few_dots(const Job& job, const WeightRows<DF>& weights, size_t row, size_t column) {
  const DF d;
  const float* const x = job.x + static_cast<ptrdiff_t>(row) * job.x_stride;
  Square<DF> sums[kRows];
  if constexpr (kRows == 1) {
    dot_products_in_order(d, x, weights, job.depth, sums[0]);
  } else {
    constexpr size_t kOuts = kRows == 2 || kManyRegisters ? 4 : 2;
    for (size_t o = 0; o < kSide<DF>; o += kOuts) {
      dot_products<kRows, kOuts>(d, x, job.x_stride, weights.row + o, job.depth, sums, o);
    }
  }
  const size_t rest = job.columns - column;
  for (size_t r = 0; r < kRows; ++r) {
    auto sum = sum_of_lanes(d, sums[r]);
    if (job.bias != nullptr) sum = hn::Add(sum, load_up_to(d, job.bias + column, rest));
    store_up_to(d, sum, job.y + static_cast<ptrdiff_t>(row + r) * job.y_stride + column, rest);
  }
}

// The inner loop is over rows: the weights of a vector of outputs stay in L1 or L2 for all rows.
void few_rows(const Job& job, float* HWY_RESTRICT widened) {
  for (size_t column = 0; column < job.columns; column += hn::Lanes(DF())) {
    const WeightRows<DF> weights = weights_of(job, column, 0, job.depth, widened);
    size_t row = 0;
    for (; row + 4 <= job.rows; row += 4) few_dots<4>(job, weights, row, column);
    if (row + 2 <= job.rows) {
      few_dots<2>(job, weights, row, column);
      row += 2;
    }
    if (row < job.rows) few_dots<1>(job, weights, row, column);
  }
}

void linear(const LinearParams& p, const LinearLayout& layout, int64_t first_row,
            int64_t first_column, void* scratch) {
  Job job{.x = p.x + first_row * p.x_stride,
          .weight = p.weight,
          .y = p.y + first_row * p.y_stride + first_column,
          .bias = p.bias == nullptr ? nullptr : p.bias + first_column,
          .rows = static_cast<size_t>(std::min(layout.job_rows, p.rows - first_row)),
          .columns = static_cast<size_t>(std::min(layout.job_columns, p.out - first_column)),
          .depth = static_cast<size_t>(p.in),
          .x_stride = static_cast<ptrdiff_t>(p.x_stride),
          .y_stride = static_cast<ptrdiff_t>(p.y_stride)};
  job.weight.data = static_cast<const std::byte*>(p.weight.data) +
                    first_column * p.weight.stride[2] * bytes_of(p.weight.type);
  if (p.rows <= kFewRows) {
    few_rows(job, static_cast<float*>(scratch));
  } else {
    many_rows(job, static_cast<float*>(scratch));
  }
}

}  // namespace
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

HWY_EXPORT(linear_sizes);
HWY_EXPORT(linear);

LinearLayout linear_layout(const LinearParams& params, int threads) {
  return HWY_DYNAMIC_DISPATCH(linear_sizes)(params, threads);
}

void linear_block(const LinearParams& params, const LinearLayout& layout, int64_t first_row,
                  int64_t first_column, void* scratch) {
  HWY_DYNAMIC_DISPATCH(linear)(params, layout, first_row, first_column, scratch);
}

}  // namespace multihead::cpu
#endif  // HWY_ONCE
