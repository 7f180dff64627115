// Rows of a block: the query and head of each row, and the keys that it sees.
#if defined(MULTIHEAD_CPU_ATTENTION_BLOCK_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_ATTENTION_BLOCK_ROWS_INL_H_
#undef MULTIHEAD_CPU_ATTENTION_BLOCK_ROWS_INL_H_
#else
#define MULTIHEAD_CPU_ATTENTION_BLOCK_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/attention/block/query_block-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Sets the values that all heads of a job share.
template <class Products>
void load_rows(QueryBlock<Products>& b) {
  const rules::EntryVisibility visibility = b.p.visibility.entry(b.batch);
  const int64_t group = b.p.group();
  int64_t query = b.first_row / group;
  int64_t head_in_group = b.first_row % group;
  for (size_t row = 0; row < b.lanes; ++row) {
    b.s.place[row] = {static_cast<int32_t>(head_in_group), static_cast<int32_t>(query)};
    // Padding lanes repeat the last row.
    if (row + 1 < b.rows && ++head_in_group == group) {
      head_in_group = 0;
      ++query;
    }
  }
  int32_t* const first_key = b.s.first_key;
  int32_t* const last_key = b.s.last_key;
  const auto set_range = [&](size_t row) {
    const rules::KeyRange range = visibility.seen_by(b.s.place[row].query);
    first_key[row] = static_cast<int32_t>(std::min(range.first, b.p.keys));
    last_key[row] = static_cast<int32_t>(range.last);
  };
  const size_t last_lane = b.lanes - 1;
  set_range(0);
  set_range(last_lane);
  // Both ends rise with the query: if the first and last rows have equal ranges, so do all rows
  // between. Setting each row separately took 1 % of bert.
  if (first_key[0] == first_key[last_lane] && last_key[0] == last_key[last_lane]) {
    std::fill_n(first_key, b.lanes, first_key[0]);
    std::fill_n(last_key, b.lanes, last_key[0]);
  } else {
    for (size_t row = 1; row < last_lane; ++row) set_range(row);
  }
  b.seen = {first_key[0], last_key[b.rows - 1]};
  for (size_t lane = 0; lane < b.lanes; lane += panel_lanes()) {
    const size_t rows = std::min(panel_lanes(), b.rows - lane);
    const size_t last = lane + rows - 1;
    b.all_panels[b.panel_count++] = {.lane = lane,
                                     .lanes = std::min(panel_lanes(), b.lanes - lane),
                                     .rows = rows,
                                     .keys = {first_key[lane], last_key[last]},
                                     .unmasked = {first_key[last], last_key[lane]},
                                     .transposed = false,
                                     .started = false};
  }
}

// Initializes the state of one head, before its first key.
template <class Products>
void start_head(QueryBlock<Products>& b) {
  std::fill_n(b.s.row_max, b.lanes, kNegInf);
  std::fill_n(b.s.reference, b.lanes, kNegInf);
  std::fill_n(b.s.row_sum, b.lanes, 0.0F);
  for (Panel& panel : b.panels()) panel.transposed = panel.started = false;
  hn::StoreU(hn::Zero(b.d), b.d, b.s.nan);
  if (b.p.mask.given()) {
    for (size_t row = 0; row < b.lanes; ++row) {
      b.s.mask[row] = b.p.mask.row(b.batch, b.head_of(row), b.s.place[row].query);
    }
  }
  if (b.p.bias.given()) {
    for (size_t row = 0; row < b.lanes; ++row) {
      b.s.bias[row] = b.p.bias.row(b.batch, b.head_of(row), b.s.place[row].query);
    }
  }
  if (b.p.alibi_slopes != nullptr) {
    const int64_t shift = b.p.visibility.alibi_shift(b.batch);
    for (size_t row = 0; row < b.lanes; ++row) {
      b.s.alibi_slope[row] = b.p.alibi_slopes[b.head_of(row)];
      b.s.alibi_position[row] = static_cast<int32_t>(b.s.place[row].query + shift);
    }
  }
}

template <class Products>
bool sees_key(const QueryBlock<Products>& b, size_t row, int64_t key) {
  return key >= b.s.first_key[row] && key < b.s.last_key[row] &&
         (!b.p.mask.given() || b.s.mask[row][key * b.p.mask.stride[3]] != 0) &&
         (!b.p.bias.given() || b.s.bias[row][key * b.p.bias.stride[3]] != kNegInf);
}

template <class Products>
bool sees_a_key(const QueryBlock<Products>& b, size_t row) {
  for (int64_t key = b.s.first_key[row]; key < b.s.last_key[row]; ++key) {
    if (sees_key(b, row, key)) return true;
  }
  return false;
}

}  // namespace
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_ATTENTION_BLOCK_ROWS_INL_H_
