// Linear projection y = x W^T + b. Many rows: a block of W is turned to have its outputs in the
// lanes, then every row tile of x runs over it. Few rows: W is read once, where it lies.
#include <algorithm>

#include "cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/linear.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/linear_weights-inl.h"
#include "cpu/micro_kernel-inl.h"
#include "cpu/tile_size.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;

constexpr bool kManyRegisters = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64;

// Up to here W is read where it lies, beyond it is packed. Zen 4, 16 and 32 rows, GFLOP/s with and
// without packing: 83 and 103, 94 and 100 with 32 registers; 74 and 82, 83 and 83 with 16.
constexpr int64_t kFewRows = kManyRegisters ? 32 : 16;

// Of a packed panel of W: 384 kB stay in L2 beside what x and y need.
constexpr size_t kPanelColumns = 64;
constexpr size_t kPanelDepth = 1536;
// Rows of y that stay in L1 while the panel goes by, this much of its depth at a time. No
// blocking of depth at all is within 1 % on 512x768x768, but rounds three times as much.
constexpr size_t kRowBlock = 48;
constexpr size_t kDepthBlock = 256;

// A job packs its panel itself: that is paid by this many rows.
constexpr int64_t kLeastJobRows = 128;
constexpr int64_t kJobsPerThread = 4;

size_t strip_width() { return TileSize::kMaxVecs * hn::Lanes(DF()); }

size_t round_up(size_t value, size_t to) { return (value + to - 1) / to * to; }

size_t panel_columns() { return round_up(kPanelColumns, strip_width()); }

// Equal parts, so that none is much shorter than the others.
size_t part_of(size_t depth, size_t most) {
  const size_t parts = (depth + most - 1) / most;
  return parts == 0 ? 0 : round_up((depth + parts - 1) / parts, hn::Lanes(DF()));
}

LinearLayout linear_sizes(const LinearParams& p, int threads) {
  LinearLayout layout{
      .job_rows = p.rows, .job_columns = static_cast<int64_t>(panel_columns()), .scratch_bytes = 0};
  if (p.rows <= kFewRows) return layout;
  const int64_t column_jobs = (p.out + layout.job_columns - 1) / layout.job_columns;
  const int64_t wanted = threads == 1 ? 1 : threads * kJobsPerThread;
  const int64_t row_jobs = std::clamp<int64_t>((wanted + column_jobs - 1) / column_jobs, 1,
                                               std::max<int64_t>(1, p.rows / kLeastJobRows));
  layout.job_rows = (p.rows + row_jobs - 1) / row_jobs;
  const size_t depth = part_of(static_cast<size_t>(p.in), kPanelDepth);
  layout.scratch_bytes = sizeof(float) * (panel_columns() * depth + kRowBlock * strip_width());
  return layout;
}

struct Job {
  const float* x;
  float* y;
  const float* bias;  // may be null
  size_t rows, columns;
  ptrdiff_t x_stride, y_stride;
};

void start_rows(const Job& job, size_t first, size_t rows) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  for (size_t row = first; row < first + rows; ++row) {
    float* const y = job.y + static_cast<ptrdiff_t>(row) * job.y_stride;
    for (size_t c = 0; c < job.columns; c += lanes) {
      const size_t rest = job.columns - c;
      const auto start =
          job.bias == nullptr ? hn::Zero(d) : load_floats_up_to(d, job.bias + c, rest);
      store_up_to(d, start, y + c, rest);
    }
  }
}

// A product into fewer columns than whole vectors, by way of `edge`.
void narrow_product(Product tile, size_t rows, size_t columns, float* edge) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const size_t vecs = (columns + lanes - 1) / lanes;
  float* const y = tile.c;
  const ptrdiff_t y_stride = tile.c_stride;
  const auto width = static_cast<ptrdiff_t>(vecs * lanes);
  tile.c = edge;
  tile.c_stride = width;
  tile.accumulate = false;
  product<ALayout::kRowMajor>(d, tile, rows, vecs);
  for (ptrdiff_t row = 0; row < static_cast<ptrdiff_t>(rows); ++row) {
    for (size_t c = 0; c < columns; c += lanes) {
      float* const at = y + row * y_stride + c;
      const size_t rest = columns - c;
      const auto sum = hn::Add(hn::Load(d, edge + row * width + c), load_floats_up_to(d, at, rest));
      store_up_to(d, sum, at, rest);
    }
  }
}

template <class T>
void many_rows(const Job& job, const T* weight, ptrdiff_t weight_stride, size_t depth,
               float* HWY_RESTRICT packed) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const size_t width = strip_width();
  const size_t most = part_of(depth, kPanelDepth);
  const size_t strip = most * width;
  const size_t whole = job.columns / width * width;
  float* const edge = packed + panel_columns() * most;
  if (depth == 0) start_rows(job, 0, job.rows);
  for (size_t first = 0; first < depth; first += most) {
    const size_t panel = HWY_MIN(most, depth - first);
    for (size_t c = 0; c < job.columns; c += lanes) {
      const WeightRows<DF, T> rows(
          weight + static_cast<ptrdiff_t>(c) * weight_stride + static_cast<ptrdiff_t>(first),
          weight_stride, HWY_MIN(lanes, job.columns - c));
      pack_rows(d, rows, panel, packed + c / width * strip + c % width, width);
    }
    const size_t step = part_of(panel, kDepthBlock);
    for (size_t row = 0; row < job.rows; row += kRowBlock) {
      const size_t rows = HWY_MIN(kRowBlock, job.rows - row);
      const auto at = static_cast<ptrdiff_t>(row);
      if (first == 0) start_rows(job, row, rows);
      for (size_t k = 0; k < panel; k += step) {
        Product tile{.a = job.x + at * job.x_stride + first + k,
                     .a_stride = job.x_stride,
                     .b = packed + k * width,
                     .b_stride = static_cast<ptrdiff_t>(width),
                     .b_strip = static_cast<ptrdiff_t>(strip),
                     .c = job.y + at * job.y_stride,
                     .c_stride = job.y_stride,
                     .depth = HWY_MIN(step, panel - k),
                     .accumulate = true};
        product<ALayout::kRowMajor>(d, tile, rows, whole / lanes);
        if (whole == job.columns) continue;
        tile.b += whole / width * strip;
        tile.c += whole;
        narrow_product(tile, rows, job.columns - whole, edge);
      }
    }
  }
}

// As many outputs as lanes, of kRows rows.
template <size_t kRows, class T>
void few_dots(const Job& job, const WeightRows<DF, T>& weights, size_t depth, size_t row,
              size_t column) {
  const DF d;
  constexpr size_t kOuts = HWY_MIN(kSide<DF>, kRows == 1                     ? 8
                                              : kRows == 2 || kManyRegisters ? 4
                                                                             : 2);
  const float* const x = job.x + static_cast<ptrdiff_t>(row) * job.x_stride;
  Square<DF> sums[kRows];
  for (size_t o = 0; o < kSide<DF>; o += kOuts) {
    dot_products<kRows, kOuts>(d, x, job.x_stride, weights.row + o, depth, sums, o);
  }
  const size_t rest = job.columns - column;
  for (size_t r = 0; r < kRows; ++r) {
    auto sum = sum_of_lanes(d, sums[r]);
    if (job.bias != nullptr) sum = hn::Add(sum, load_floats_up_to(d, job.bias + column, rest));
    store_up_to(d, sum, job.y + static_cast<ptrdiff_t>(row + r) * job.y_stride + column, rest);
  }
}

template <class T>
void few_rows(const Job& job, const T* weight, ptrdiff_t weight_stride, size_t depth) {
  const size_t lanes = hn::Lanes(DF());
  for (size_t column = 0; column < job.columns; column += lanes) {
    const WeightRows<DF, T> weights(weight + static_cast<ptrdiff_t>(column) * weight_stride,
                                    weight_stride, HWY_MIN(lanes, job.columns - column));
    size_t row = 0;
    for (; row + 4 <= job.rows; row += 4) few_dots<4>(job, weights, depth, row, column);
    if (row + 2 <= job.rows) {
      few_dots<2>(job, weights, depth, row, column);
      row += 2;
    }
    if (row < job.rows) few_dots<1>(job, weights, depth, row, column);
  }
}

template <class T>
void linear_of(const LinearParams& p, const Job& job, int64_t first_column, void* scratch) {
  const auto depth = static_cast<size_t>(p.in);
  const T* const weight = static_cast<const T*>(p.weight) + first_column * p.weight_stride;
  if (p.rows <= kFewRows) {
    few_rows(job, weight, p.weight_stride, depth);
  } else {
    many_rows(job, weight, p.weight_stride, depth, static_cast<float*>(scratch));
  }
}

void linear(const LinearParams& p, const LinearLayout& layout, int64_t first_row,
            int64_t first_column, void* scratch) {
  const Job job{.x = p.x + first_row * p.x_stride,
                .y = p.y + first_row * p.y_stride + first_column,
                .bias = p.bias == nullptr ? nullptr : p.bias + first_column,
                .rows = static_cast<size_t>(std::min(layout.job_rows, p.rows - first_row)),
                .columns = static_cast<size_t>(std::min(layout.job_columns, p.out - first_column)),
                .x_stride = static_cast<ptrdiff_t>(p.x_stride),
                .y_stride = static_cast<ptrdiff_t>(p.y_stride)};
  switch (p.element) {
    case Element::kF16:
      return linear_of<hwy::float16_t>(p, job, first_column, scratch);
    case Element::kBF16:
      return linear_of<hwy::bfloat16_t>(p, job, first_column, scratch);
    default:
      return linear_of<float>(p, job, first_column, scratch);
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
