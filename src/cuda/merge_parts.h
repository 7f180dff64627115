// Device code that merges the results of a row over disjoint keys: of the warps of a block, and of
// the splits of a call. The parts are added in their order, whichever block adds them, so equal
// calls give equal bits.
#pragma once

#include <cmath>
#include <cstdint>

#include "cuda/device/device.h"
#include "cuda/rows.h"
#include "cuda/splits.h"
#include "rules/lse.h"

namespace multihead::cuda {

// A row's result over some keys, in a warp: lane l has columns l + 32 n. See SplitParams::partials.
template <int kColumns>
struct RowPart {
  float largest, sum;
  float values[kColumns] = {};
};

// Where parts are stored: the values of part i, then its largest score and its sum.
struct StoredParts {
  const float* values;
  const float* terms;
  int stride, terms_stride;  // between parts
  int count;                 // 1 or more
};

// Parts whose loads overlap: 64 numbers a lane.
template <int kColumns>
inline constexpr int kPartsAtOnce = kColumns > 2 ? 64 / kColumns : kWarpSize;

// Merges the parts of a row. sink_of_row(): a score that only the sum contains, or -inf. The first
// kAtOnce parts are loaded before all else.
template <int kColumns, int kAtOnce = kPartsAtOnce<kColumns>, class Sink>
__device__ __forceinline__ RowPart<kColumns> merge_parts(const StoredParts& parts, int width,
                                                         float factor, const Sink& sink_of_row) {
  float loaded[kAtOnce][kColumns];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      // Beyond the last part, that part is loaded again, so that no branch is needed.
      const int part = first + i < parts.count ? first + i : parts.count - 1;
      const float* const from = parts.values + part * parts.stride + lane();
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        loaded[i][n] = n * kWarpSize + lane() < width ? from[n * kWarpSize] : 0.0F;
      }
    }
  };
  load(0);
  const float sink = sink_of_row();
  RowPart<kColumns> row{.largest = sink, .sum = 0.0F};
  for (int part = lane(); part < parts.count; part += kWarpSize) {
    const float of_part = parts.terms[part * parts.terms_stride];
    if (of_part > row.largest || of_part != of_part) row.largest = of_part;
  }
  row.largest = warp_max(row.largest);
  // Subtract scores before multiplying by `factor`: scaled scores near the largest float would
  // overflow.
  const auto share_of = [&](float largest) { return exp2f((largest - row.largest) * factor); };
  for (int first = 0; first < parts.count; first += kAtOnce) {
    if (first > 0) load(first);
    constexpr float kNone = -1.0F;  // of a part without visible keys; NaN is a share
    float share = kNone;            // of part first + lane()
    if (lane() < kAtOnce && first + lane() < parts.count) {
      const float* const terms = parts.terms + (first + lane()) * parts.terms_stride;
      if (terms[0] != -INFINITY) {
        share = share_of(terms[0]);
        row.sum += share * terms[1];
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float of_part = shuffle(share, i);
      if (of_part < 0.0F) continue;
#pragma unroll
      for (int n = 0; n < kColumns; ++n) row.values[n] += of_part * loaded[i][n];
    }
  }
  row.sum = warp_sum(row.sum) + (sink == -INFINITY ? 0.0F : share_of(sink));
  return row;
}

__device__ __forceinline__ float factor_of(const rules::AttentionParams& call) {
  return call.scale.softmax * kLog2E;
}
__device__ __forceinline__ float sink_of(const rules::AttentionParams& call, int64_t head) {
  return call.sinks == nullptr ? -INFINITY : call.sinks[head] / call.scale.softmax;
}

// Writes columns `first` and up of a row to out, and, if first is 0, the row's LSE.
template <int kColumns>
__device__ __forceinline__ void write_row(const rules::AttentionParams& call, int64_t batch,
                                          int64_t head, int64_t query, int first,
                                          const RowPart<kColumns>& row) {
  if (call.out.data != nullptr) {
    const int64_t at = rules::row_offset(call.out.stride, batch, head, query);
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int c = first + n * kWarpSize + lane();
      if (c >= call.value_dim) continue;
      set_element(call.out.data, call.out.type, at + c,
                  row.sum == 0.0F ? 0.0F : row.values[n] / row.sum);
    }
  }
  if (first == 0 && call.lse.data != nullptr && lane() == 0) {
    *call.lse.row(batch, head, query) =
        rules::lse_of(row.largest, call.scale.softmax, static_cast<double>(row.sum));
  }
}

// The partial result of a row in a split. `index`: of the row along the first three axes.
__device__ __forceinline__ float* partial_of(const SplitParams& p, int64_t index, int64_t split) {
  return p.partials + (index * p.splits + split) * (p.forward.call.value_dim + 2);
}

template <int kColumns>
__device__ __forceinline__ void store_part(const SplitParams& p, int64_t index, int64_t split,
                                           const RowPart<kColumns>& part) {
  const int width = static_cast<int>(p.forward.call.value_dim);
  float* const to = partial_of(p, index, split);
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    const int c = n * kWarpSize + lane();
    if (c < width) to[c] = part.values[n];
  }
  if (lane() == 0) {
    to[width] = part.largest;
    to[width + 1] = part.sum;
  }
}

// Merges the splits of a row, of the columns `first` and up. `index`: as of partial_of().
template <int kColumns, class HeadOf, class QueryOf>
__device__ __forceinline__ void merge_splits(const SplitParams& p, int64_t index, int64_t batch,
                                             const HeadOf& head, const QueryOf& query, int first) {
  const rules::AttentionParams& call = p.forward.call;
  const int width = static_cast<int>(call.value_dim), stride = width + 2;
  const float* const parts = partial_of(p, index, 0);
  const StoredParts stored{parts + first, parts + width, stride, stride,
                           static_cast<int>(p.splits)};
  const auto row = merge_parts<kColumns>(stored, width - first, factor_of(call),
                                         [&] { return sink_of(call, head()); });
  write_row(call, batch, head(), query(), first, row);
}

// The high 48 bits of a counter in use. Zeros and numbers that a kernel computes do not have them
// (a NaN of arithmetic has other bits), and random bits nearly never. So nobody needs to set
// counters.
inline constexpr uint64_t kCounting = 0xFFA53C965AC30000U;

// Counts the blocks of a tile that have ended. The last one merges the splits, and sets the counter
// back to 0 for the next call.
struct TileCounter {
  uint64_t* counter;
  uint64_t found;  // arrives while the block ends

  __device__ __forceinline__ TileCounter(const SplitParams& p, int64_t tile)
      : counter(p.counts() ? p.ended + tile : nullptr),
        found(counter == nullptr ? 0 : read_counter(counter)) {}

  // Called by all threads when the block's partial results are written and its shared memory is no
  // longer used. `index`: of the tile's first row, as for merge_splits().
  template <int kColumns, class HeadOf, class QueryOf>
  __device__ __forceinline__ void merge_if_last(const SplitParams& p, int64_t index, int rows,
                                                int64_t batch, const HeadOf& head_of,
                                                const QueryOf& query_of) const {
    if (counter == nullptr) return;
    auto& before = *reinterpret_cast<uint64_t*>(shared_memory());
    sync_threads();
    if (thread_index() == 0) {
      if ((found & ~uint64_t{0xFFFF}) != kCounting) replace_counter(counter, found, kCounting);
      before = add_to_counter(counter);
    }
    sync_threads();
    if (before + 1 != kCounting + static_cast<uint64_t>(p.splits)) return;
    if (thread_index() == 0) *counter = kCounting;
    for (int row = warp(); row < rows; row += thread_count() / kWarpSize) {
      merge_splits<kColumns>(
          p, index + row, batch, [&] { return head_of(row); }, [&] { return query_of(row); }, 0);
    }
  }
};

}  // namespace multihead::cuda
