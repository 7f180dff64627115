// Matrix products in f32. A projection y = x W^T + b of many rows packs a block of W with its
// outputs in the vector lanes, and every row tile of x uses it; with few rows, W is read once, in
// place. For the products of the backward, b has its columns in the lanes already, so packing is
// copying.
#include "cpu/gemm/gemm.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gemm/gemm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/gemm/micro_kernel-inl.h"
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/stored_rows-inl.h"
#include "cpu/simd/tile_size.h"
#include "cpu/target.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "multihead/weights.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

using rules::StoredRows;

// ---- A matrix product of any size from panels of B: some columns of B are packed into strips,
// which every block of rows of A then uses, a part of the depth at a time. ----

// Most floats of a packed panel of B: three eighths of L2, so that the rows of A and C fit too, in
// WebAssembly as of 1 MB. With kColMajor, blocks of A are also packed, once for each panel, which
// pays for wide panels (2048x256x1024: 103 GFLOP/s instead of 92).
HWY_INLINE size_t most_panel_floats() {
#if HWY_ARCH_WASM
  return 98304;
#else
  constexpr size_t kUnit = 4096;  // depths are multiples of 16
  return static_cast<size_t>(l2_cache_bytes()) * 3 / 8 / sizeof(float) / kUnit * kUnit;
#endif
}
template <ALayout kLayout>
inline constexpr size_t kPanelColumns = kLayout == ALayout::kRowMajor ? 64 : 256;
template <ALayout kLayout>
HWY_INLINE size_t most_panel_depth() {
  return most_panel_floats() / kPanelColumns<kLayout>;
}

// A block of rows of C stays in L1 while the panel is used, kDepthBlock of its depth at a time: a
// strip's part, up to 32 kB, stays there too. Without blocks rounding errors are three times
// larger.
constexpr size_t kRowBlock = 48;
constexpr size_t kDepthBlock = HWY_MIN(256, 8192 / (TileSize::kMaxVecs * kSide<DF>));

HWY_INLINE size_t strip_width() { return TileSize::kMaxVecs * hn::Lanes(DF()); }

template <ALayout kLayout>
HWY_INLINE size_t panel_columns() {
  return round_up(kPanelColumns<kLayout>, strip_width());
}

// Length of equal parts of `depth`, at most `most`.
HWY_INLINE size_t part_of(size_t depth, size_t most) {
  const size_t parts = ceil_div(depth, most);
  return parts == 0 ? 0 : round_up(ceil_div(depth, parts), hn::Lanes(DF()));
}

// Memory that is needed next. Each tile prefetches a part: `each` bytes for an element of A.
struct Ahead {
  const std::byte* at;
  float each;
};

// C += A B for up to panel_columns() columns.
struct PanelProduct {
  const float* a;
  ptrdiff_t a_stride;
  float* c;
  ptrdiff_t c_stride;
  size_t rows, columns, depth;
  Ahead* ahead = nullptr;
};

// Scratch of multiply_panels(): a panel, and sums of columns that end within a vector.
template <ALayout kLayout>
HWY_INLINE size_t panel_floats(size_t depth) {
  return panel_columns<kLayout>() * part_of(depth, most_panel_depth<kLayout>()) +
         kRowBlock * strip_width();
}

// Copies rows of up to `columns` floats into strips of `width` columns that are `strip` floats
// apart, with zeros up to whole vectors.
inline HWY_NOINLINE void pack_copies(const float* HWY_RESTRICT from, ptrdiff_t stride, size_t rows,
                                     size_t columns, size_t width, size_t strip,
                                     float* HWY_RESTRICT to) {
  const DF d;
  for (size_t first = 0; first < columns; first += width, from += width, to += strip) {
    const size_t count = HWY_MIN(width, columns - first);
    for (size_t row = 0; row < rows; ++row) {
      const float* const source = from + static_cast<ptrdiff_t>(row) * stride;
      for (size_t c = 0; c < count; c += hn::Lanes(d)) {
        hn::Store(load_up_to(d, source + c, count - c), d, to + row * width + c);
      }
    }
  }
}

// Additional scratch of multiply_panels<kColMajor>() for a block of A. If A is read in place, rows
// that are 4 kB apart share few cache lines: 2048x256x1024 ran at 65 GFLOP/s.
constexpr size_t kTransposedFloats = kRowBlock * kDepthBlock;

// Not inlined, because in relaxed SIMD every copy would hold all tiles.
template <ALayout kLayout>
HWY_NOINLINE void multiply_panel(const Product<>& p, size_t rows, size_t vecs,
                                 Ahead* ahead = nullptr) {
  product<kLayout>(DF(), p, rows, vecs, [&](size_t, size_t count) HWY_ATTR {
    if (kPrefetches && ahead != nullptr) {
      const auto bytes = static_cast<size_t>(ahead->each * static_cast<float>(count * p.depth));
      for (size_t i = 0; i < bytes; i += 64) hwy::Prefetch(ahead->at + i);
      ahead->at += bytes;
    }
    return p.depth;
  });
}

// Computes a product whose columns end within a vector; `edge` holds whole vectors.
template <ALayout kLayout>
HWY_NOINLINE void multiply_narrow_panel(Product<> p, size_t rows, size_t columns, float* edge) {
  const DF d;
  const size_t lanes = hn::Lanes(d), vecs = ceil_div(columns, lanes);
  float* const c_begin = p.c;
  const ptrdiff_t c_stride = p.c_stride;
  const auto width = static_cast<ptrdiff_t>(vecs * lanes);
  p.c = edge;
  p.c_stride = width;
  p.accumulate = false;
  multiply_panel<kLayout>(p, rows, vecs);
  for (ptrdiff_t row = 0; row < static_cast<ptrdiff_t>(rows); ++row) {
    for (size_t column = 0; column < columns; column += lanes) {
      float* const at = c_begin + row * c_stride + column;
      const size_t rest = columns - column;
      const auto sum = hn::Add(hn::Load(d, edge + row * width + column), load_up_to(d, at, rest));
      store_up_to(d, sum, at, rest);
    }
  }
}

// Adds depth first .. first + depth - 1 to a block of up to kRowBlock rows of C.
template <ALayout kLayout>
HWY_NOINLINE void multiply_block(const PanelProduct& p, size_t row, size_t rows, size_t first,
                                 size_t depth, float* HWY_RESTRICT packed) {
  const size_t width = strip_width();
  const size_t most = part_of(p.depth, most_panel_depth<kLayout>());
  const size_t lanes = hn::Lanes(DF()), whole = p.columns / lanes * lanes;
  float* const edge = packed + panel_columns<kLayout>() * most;
  const auto at = static_cast<ptrdiff_t>(row);
  const ptrdiff_t a_row = kLayout == ALayout::kRowMajor ? p.a_stride : 1;
  const ptrdiff_t a_step = kLayout == ALayout::kRowMajor ? 1 : p.a_stride;
  const size_t step = part_of(depth, kDepthBlock);
  for (size_t k = 0; k < depth; k += step) {
    Product<> tile{.a = p.a + at * a_row + static_cast<ptrdiff_t>(first + k) * a_step,
                   .a_stride = p.a_stride,
                   .b = packed + k * width,
                   .b_stride = static_cast<ptrdiff_t>(width),
                   .b_strip = static_cast<ptrdiff_t>(most * width),
                   .c = p.c + at * p.c_stride,
                   .c_stride = p.c_stride,
                   .depth = HWY_MIN(step, depth - k),
                   .accumulate = true};
    if constexpr (kLayout == ALayout::kColMajor) {
      float* const transposed = packed + panel_floats<kLayout>(p.depth);
      pack_copies(tile.a, tile.a_stride, tile.depth, rows, kRowBlock, 0, transposed);
      tile.a = transposed;
      tile.a_stride = static_cast<ptrdiff_t>(kRowBlock);
    }
    multiply_panel<kLayout>(tile, rows, whole / lanes, p.ahead);
    if (whole == p.columns) continue;
    tile.b += whole / width * most * width + whole % width;
    tile.c += whole;
    multiply_narrow_panel<kLayout>(tile, rows, p.columns - whole, edge);
  }
}

// `pack(first, depth, strip)` packs rows first .. first + depth - 1 of B into `packed`, in strips
// of strip_width() columns that are `strip` floats apart. `start(row, rows)` initializes these rows
// of C.
template <ALayout kLayout, class Pack, class Start>
HWY_INLINE void multiply_panels(const PanelProduct& p, float* HWY_RESTRICT packed, const Pack& pack,
                                const Start& start) {
  const size_t most = part_of(p.depth, most_panel_depth<kLayout>());
  if (p.depth == 0) start(0, p.rows);
  for (size_t first = 0; first < p.depth; first += most) {
    const size_t depth = HWY_MIN(most, p.depth - first);
    pack(first, depth, most * strip_width());
    for (size_t row = 0; row < p.rows; row += kRowBlock) {
      const size_t rows = HWY_MIN(kRowBlock, p.rows - row);
      if (first == 0) start(row, rows);
      multiply_block<kLayout>(p, row, rows, first, depth, packed);
    }
  }
}

// ---- Packing, and products of few rows. ----

// One row of weights per lane. Lanes without a row repeat the last row.
template <class D>
struct WeightRows {
  const float* row[kSide<D>];

  WeightRows(const FloatRows& rows, size_t given) {
    for (size_t i = 0; i < kSide<D>; ++i) {
      row[i] = rows.data + static_cast<ptrdiff_t>(HWY_MIN(i, given - 1)) * rows.stride;
    }
  }
};

// to[k * stride + i] = rows.row[i][k] for k < depth, and zeros up to whole vectors of k.
template <class D>
HWY_NOINLINE void pack_rows(D d, const WeightRows<D>& rows, size_t depth, float* HWY_RESTRICT to,
                            size_t stride) {
  constexpr size_t kLanes = kSide<D>;
  for (size_t k = 0; k < depth; k += kLanes) {
    Square<D> square;
    for (size_t i = 0; i < kLanes; ++i) {
      hwy::Prefetch(rows.row[i] + k + 64);  // the processor alone takes 1.05 times as long
      square.row[i] = load_up_to(d, rows.row[i] + k, depth - k);
    }
    transpose(d, square);
    for (size_t i = 0; i < kLanes; ++i) hn::Store(square.row[i], d, to + (k + i) * stride);
  }
}

// Computes sums.row[o], the product of x with rows.row[o], lane by lane, one row after the other: a
// GPT-2-small step then reads weights at 25 GB/s, with two rows at a time at 14, with eight at 20.
template <class D>
HWY_NOINLINE void dot_products_in_order(D d, const float* HWY_RESTRICT x, const WeightRows<D>& rows,
                                        size_t depth, Square<D>& sums) {
  const size_t lanes = hn::Lanes(d), whole = depth / lanes * lanes;
  const FloatReader<float, D> read(d);
  for (size_t o = 0; o < kSide<D>; ++o) {
    auto sum = dot(d, read, x, lanes, rows.row[o], depth);
    if (whole < depth) {
      sum = mul_add(load_up_to(d, x + whole, depth - whole),
                    load_up_to(d, rows.row[o] + whole, depth - whole), sum);
    }
    sums.row[o] = sum;
  }
}

// Computes sums[r].row[first + o], the product of row r of x with weights[o], lane by lane.
template <size_t kRows, size_t kOuts, class D>
HWY_NOINLINE void dot_products(D d, const float* HWY_RESTRICT x, ptrdiff_t x_stride,
                               const float* const* weights, size_t depth,
                               Square<D>* HWY_RESTRICT sums, size_t first) {
  using V = hn::Vec<D>;
  const size_t lanes = hn::Lanes(d);
  const float* row[kOuts];
  for (size_t o = 0; o < kOuts; ++o) row[o] = weights[o];
  V sum[kRows][kOuts];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t o = 0; o < kOuts; ++o) sum[r][o] = hn::Zero(d);
  }
  const auto add = [&](size_t k, const auto& load) HWY_ATTR MULTIHEAD_INLINED {
    V w[kOuts];
    for (size_t o = 0; o < kOuts; ++o) w[o] = load(row[o] + k);
    for (size_t r = 0; r < kRows; ++r) {
      const V factor = load(x + static_cast<ptrdiff_t>(r) * x_stride + k);
      for (size_t o = 0; o < kOuts; ++o) sum[r][o] = mul_add(factor, w[o], sum[r][o]);
    }
  };
  const size_t whole = depth / lanes * lanes, rest = depth - whole;
  const auto load = [&](const float* at) HWY_ATTR { return hn::LoadU(d, at); };
  for (size_t k = 0; k < whole; k += lanes) add(k, load);
  if (rest > 0) add(whole, [&](const float* at) HWY_ATTR { return load_up_to(d, at, rest); });
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t o = 0; o < kOuts; ++o) sums[r].row[first + o] = sum[r][o];
  }
}

constexpr bool kManyRegisters = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64;

// Most rows without packing W if they do not fill vectors; measured on Zen 4.
constexpr int64_t kFewRows = kManyRegisters ? 32 : 16;

// True if rows_in_lanes() is used: the rows fill vectors, and less is transposed, x (in each job)
// and y instead of W. For few rows jobs do not count, because few_rows() adds in another order.
bool puts_rows_in_lanes(const GemmParams& p, int64_t jobs) {
  const auto padded = round_up(p.rows, static_cast<int64_t>(hn::Lanes(DF())));
  return (kManyRegisters ? kFewWeightRows : 2) < p.rows && p.rows <= 128 &&
         (p.rows <= kFewRows ? 3 : 5) * (padded - p.rows) <= p.rows && p.b.type == DType::kF32 &&
         p.b.data != nullptr && p.b.stride[2] == p.depth &&
         p.depth <= static_cast<int64_t>(most_panel_depth<ALayout::kRowMajor>()) &&
         (p.rows <= kFewRows ? p.depth >= 128
                             : jobs * p.rows * (p.depth + p.columns) <= p.depth * p.columns);
}

// Number of floats of scratch for one vector of outputs' weights, if these are half precision.
size_t widened_floats(const GemmParams& p, size_t depth) {
  return p.b.type == DType::kF32 ? 0 : hn::Lanes(DF()) * depth;
}

struct Job {
  const float* x;
  StoredRows weight;      // from the job's first column on
  ptrdiff_t next_column;  // of the thread's next job, from there on; 0: none
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
  const size_t lanes = hn::Lanes(d), width = strip_width();
  float* const widened = packed + panel_floats<ALayout::kRowMajor>(job.depth);
  const auto pack = [&](size_t first, size_t panel, size_t strip) {
    for (size_t c = 0; c < job.columns; c += lanes) {
      pack_rows(d, weights_of(job, c, first, panel, widened), panel,
                packed + c / width * strip + c % width, width);
    }
  };
  const int64_t bytes = bytes_of(job.weight.type);
  const auto uses = static_cast<float>(ceil_div(job.columns, width) * job.rows);
  Ahead ahead{static_cast<const std::byte*>(job.weight.data) +
                  job.next_column * job.weight.stride[2] * bytes,
              static_cast<float>(job.columns) * static_cast<float>(bytes) / uses};
  multiply_panels<ALayout::kRowMajor>(
      {.a = job.x,
       .a_stride = job.x_stride,
       .c = job.y,
       .c_stride = job.y_stride,
       .rows = job.rows,
       .columns = job.columns,
       .depth = job.depth,
       .ahead = kPrefetches && job.next_column > 0 ? &ahead : nullptr},
      packed, pack, [&](size_t row, size_t rows) { start_rows(job, row, rows); });
}

// Computes y^T = W x^T with the rows of x in the lanes: x is packed once, W is read in place.
void rows_in_lanes(const Job& job, float* HWY_RESTRICT packed) {
  const DF d;
  const size_t lanes = hn::Lanes(d), width = strip_width(), padded = round_up(job.rows, lanes);
  for (size_t row = 0; row < job.rows; row += lanes) {
    const FloatRows x{job.x + static_cast<ptrdiff_t>(row) * job.x_stride, job.x_stride};
    pack_rows(d, WeightRows<DF>(x, HWY_MIN(lanes, job.rows - row)), job.depth,
              packed + row / width * width * round_up(job.depth, lanes) + row % width, width);
  }
  float* const turned = packed + round_up(job.rows, width) * round_up(job.depth, lanes);
  // Outputs at a time: many share a strip's part in L1; short rows or jobs read W in order.
  const bool is_short = kPrefetches && (padded <= 2 * lanes || job.columns < 8 * kRowBlock);
  const size_t tile = TileSize::rows(HWY_MIN(padded / lanes, TileSize::kMaxVecs));
  const size_t most = is_short ? tile : kRowBlock;
  const auto* const weight = static_cast<const float*>(job.weight.data);
  Ahead ahead{.at = reinterpret_cast<const std::byte*>(weight + most * job.depth),
              .each = sizeof(float) / static_cast<float>(ceil_div(padded, width))};
  PanelProduct p{.a = weight,
                 .a_stride = static_cast<ptrdiff_t>(job.depth),
                 .c = turned,
                 .c_stride = static_cast<ptrdiff_t>(padded),
                 .rows = kRowBlock,
                 .columns = padded,
                 .depth = job.depth,
                 .ahead = &ahead};
  for (size_t column = 0; column < job.columns; column += kRowBlock) {
    const size_t outputs = HWY_MIN(kRowBlock, job.columns - column);
    for (size_t o = 0; o < outputs; ++o) {
      std::fill_n(turned + o * padded, padded, job.bias == nullptr ? 0.0F : job.bias[column + o]);
    }
    for (size_t o = 0; o < outputs; o += most) {
      const size_t count = HWY_MIN(most, outputs - o);
      // Where no instruction prefetches, reads a number of each cache line, in order.
      const volatile float* const lines = p.a + o * job.depth;
      for (size_t i = 0; !kPrefetches && i < count * job.depth; i += 16)
        static_cast<void>(lines[i]);
      multiply_block<ALayout::kRowMajor>(p, o, count, 0, job.depth, packed);
    }
    p.a += kRowBlock * job.depth;
    for (size_t row = 0; row < job.rows; row += lanes) {
      float* y[kSide<DF>] = {};
      for (size_t r = 0; r < HWY_MIN(lanes, job.rows - row); ++r) {
        y[r] = job.y + static_cast<ptrdiff_t>(row + r) * job.y_stride + column;
      }
      transpose_back(d, turned + row, padded, outputs, y, [](auto sums) HWY_ATTR { return sums; });
    }
  }
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
    cut_rows<4>(job.rows, [&](auto count) HWY_ATTR {
      few_dots<decltype(count)::value>(job, weights, row, column);
      row += decltype(count)::value;
    });
  }
}

template <auto kRun>
void project(const GemmParams& p, const GemmLayout& layout, int64_t first_row, int64_t first_column,
             void* scratch) {
  Job job{.x = p.a + first_row * p.a_stride,
          .weight = p.b,
          .next_column = static_cast<ptrdiff_t>(layout.next_column),
          .y = p.c + first_row * p.c_stride + first_column,
          .bias = p.bias == nullptr ? nullptr : p.bias + first_column,
          .rows = static_cast<size_t>(std::min(layout.job_rows, p.rows - first_row)),
          .columns = static_cast<size_t>(std::min(layout.job_columns, p.columns - first_column)),
          .depth = static_cast<size_t>(p.depth),
          .x_stride = static_cast<ptrdiff_t>(p.a_stride),
          .y_stride = static_cast<ptrdiff_t>(p.c_stride)};
  job.weight.data =
      static_cast<const std::byte*>(p.b.data) + first_column * p.b.stride[2] * bytes_of(p.b.type);
  kRun(job, static_cast<float*>(scratch));
}

GemmLayout layout_projection(const GemmParams& p, int threads) {
  const auto depth = static_cast<size_t>(p.depth);
  const auto job_columns = static_cast<int64_t>(panel_columns<ALayout::kRowMajor>());
  const int64_t jobs = threads == 1 ? 1 : 2 * threads;
  if (puts_rows_in_lanes(p, jobs)) {
    return {.job_rows = p.rows,
            .job_columns =
                round_up(std::clamp<int64_t>(ceil_div(p.columns, jobs), 64, 4096), kSide<DF>),
            .scratch_bytes = (round_up(depth, kSide<DF>) + kRowBlock) * sizeof(float) *
                             round_up(static_cast<size_t>(p.rows), strip_width()),
            .block = project<rows_in_lanes>};
  }
  if (p.rows <= kFewRows) {
    const bool reads_alone = p.rows <= kFewWeightRows && threads > 1;
    return {.job_rows = p.rows,
            .job_columns = reads_alone ? outputs_of_job(bytes_of(p.b.type) * p.depth, p.columns,
                                                        threads, kSide<DF>)
                                       : job_columns,
            .scratch_bytes = sizeof(float) * widened_floats(p, depth),
            .block = project<few_rows>};
  }
  // Packing a panel pays only from 128 rows on.
  GemmLayout layout = divide_gemm(p, threads, job_columns, 128, 4);
  layout.block = project<many_rows>;
  // The weights of multiply_widened() follow none.
  if (p.b.data == nullptr || p.b.stride[2] != p.depth) layout.next_column = 0;
  layout.scratch_bytes =
      sizeof(float) * (panel_floats<ALayout::kRowMajor>(depth) +
                       widened_floats(p, part_of(depth, most_panel_depth<ALayout::kRowMajor>())));
  return layout;
}

template <ALayout kLayout>
void multiply(const GemmParams& p, const GemmLayout& layout, int64_t first_row,
              int64_t first_column, void* scratch) {
  auto* const packed = static_cast<float*>(scratch);
  const float* const b = static_cast<const float*>(p.b.data) + first_column;
  const auto b_stride = static_cast<ptrdiff_t>(p.b.stride[2]);
  const PanelProduct part{
      .a = p.a + first_row * (kLayout == ALayout::kColMajor ? 1 : p.a_stride),
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
  multiply_panels<kLayout>(part, packed, pack, start);
}

template <ALayout kLayout>
GemmLayout layout_panels(const GemmParams& p, int threads) {
  // Packing costs as much as one row of the product.
  GemmLayout layout =
      divide_gemm(p, threads, static_cast<int64_t>(panel_columns<kLayout>()), 32, 8);
  // Enough for smaller depths too: a smaller depth may have longer parts.
  const size_t depth = std::min(static_cast<size_t>(p.depth), most_panel_depth<kLayout>());
  const size_t transposed = kLayout == ALayout::kColMajor ? kTransposedFloats : 0;
  layout.scratch_bytes = sizeof(float) * (panel_floats<kLayout>(depth) + transposed);
  layout.block = multiply<kLayout>;
  return layout;
}

GemmLayout layout_product(const GemmParams& p, int threads) {
  return p.a_transposed ? layout_panels<ALayout::kColMajor>(p, threads)
                        : layout_panels<ALayout::kRowMajor>(p, threads);
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

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

HWY_EXPORT(layout_projection);
HWY_EXPORT(layout_product);
HWY_EXPORT(add_columns);

GemmLayout projection_layout(const GemmParams& params, int threads, bool tiles) {
  HWY_DASSERT(params.b_transposed && !params.a_transposed && !params.adds);
  if (tiles) return tile_gemm_layout(params, threads);
  return HWY_DYNAMIC_DISPATCH(layout_projection)(params, threads);
}

GemmLayout product_layout(const GemmParams& params, int threads, bool tiles) {
  HWY_DASSERT(!params.b_transposed && params.bias == nullptr);
  if (tiles) return tile_gemm_layout(params, threads);
  return HWY_DYNAMIC_DISPATCH(layout_product)(params, threads);
}

void gemm_block(const GemmParams& params, const GemmLayout& layout, int64_t first_row,
                int64_t first_column, void* scratch) {
  HWY_DASSERT(0 <= first_row && first_row < params.rows && first_row % layout.job_rows == 0);
  HWY_DASSERT(0 <= first_column && first_column % layout.job_columns == 0);
  layout.block(params, layout, first_row, first_column, scratch);
}

void add_column_sums(const float* x, int64_t stride, int64_t rows, int64_t width, float* sums) {
  HWY_DYNAMIC_DISPATCH(add_columns)(x, stride, rows, width, sums);
}

}  // namespace multihead::cpu
#endif  // HWY_ONCE
