// Linear projection y = x W^T + b, a panel of output columns at a time: the panel of W is
// transposed once, then every row tile of x runs over it.
#include <algorithm>

#include "cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/linear.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/micro_kernel-inl.h"
#include "cpu/tile_size.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;

size_t panel_width() { return TileSize::kMaxVecs * hn::Lanes(DF()); }

// Rows whose partial last panel is computed in scratch before it is copied out.
constexpr size_t kEdgeRows = TileSize::rows(TileSize::kMaxVecs) * 8;

LinearLayout linear_sizes(const LinearParams& p) {
  const uint64_t floats = panel_width() * (static_cast<uint64_t>(p.in) + kEdgeRows);
  return {.panel_columns = static_cast<int64_t>(panel_width()),
          .scratch_bytes = floats * sizeof(float)};
}

void linear(const LinearParams& p, int64_t first_column, void* scratch) {
  const DF d;
  const size_t width = panel_width();
  const auto depth = static_cast<size_t>(p.in);
  const size_t columns = std::min(width, static_cast<size_t>(p.out - first_column));
  auto* const packed = static_cast<float*>(scratch);  // [in][width]
  for (size_t column = 0; column < columns; ++column) {
    const float* row = p.weight + (first_column + static_cast<int64_t>(column)) * p.weight_stride;
    for (size_t k = 0; k < depth; ++k) packed[k * width + column] = row[k];
  }
  for (size_t column = columns; column < width; ++column) {
    for (size_t k = 0; k < depth; ++k) packed[k * width + column] = 0.0F;
  }

  const auto start_row = [&](float* row) {
    for (size_t column = 0; column < columns; ++column) {
      row[column] = p.bias == nullptr ? 0.0F : p.bias[first_column + static_cast<int64_t>(column)];
    }
  };
  const bool whole = columns == width;
  float* const edge = packed + depth * width;  // [kEdgeRows][width]
  const auto rows = static_cast<size_t>(p.rows);
  for (size_t row = 0; row < rows; row += kEdgeRows) {
    const size_t count = std::min(kEdgeRows, rows - row);
    float* const y = p.y + static_cast<int64_t>(row) * p.y_stride + first_column;
    float* const target = whole ? y : edge;
    const ptrdiff_t stride =
        whole ? static_cast<ptrdiff_t>(p.y_stride) : static_cast<ptrdiff_t>(width);
    for (size_t r = 0; r < count; ++r) start_row(target + static_cast<ptrdiff_t>(r) * stride);
    const Product tile{.a = p.x + static_cast<int64_t>(row) * p.x_stride,
                       .a_stride = static_cast<ptrdiff_t>(p.x_stride),
                       .b = packed,
                       .b_stride = static_cast<ptrdiff_t>(width),
                       .b_strip = 0,
                       .c = target,
                       .c_stride = stride,
                       .depth = depth,
                       .accumulate = true};
    product<ALayout::kRowMajor>(d, tile, count, width / hn::Lanes(d));
    if (whole) continue;
    for (size_t r = 0; r < count; ++r) {
      std::copy_n(edge + r * width, columns, y + static_cast<int64_t>(r) * p.y_stride);
    }
  }
}

}  // namespace
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

HWY_EXPORT(linear_sizes);
HWY_EXPORT(linear);

LinearLayout linear_layout(const LinearParams& params) {
  return HWY_DYNAMIC_DISPATCH(linear_sizes)(params);
}

void linear_panel(const LinearParams& params, int64_t first_column, void* scratch) {
  HWY_DYNAMIC_DISPATCH(linear)(params, first_column, scratch);
}

}  // namespace multihead::cpu
#endif  // HWY_ONCE
