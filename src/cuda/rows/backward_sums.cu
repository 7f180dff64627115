// Sums over rows that the backward needs in addition to its products: delta of each query row, and
// the gradients of the sinks.
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cuda/backward_params.h"
#include "cuda/device/device.h"
#include "cuda/device/launch.h"
#include "cuda/divide.h"
#include "cuda/kernels.h"
#include "cuda/params.h"
#include "cuda/rows.h"
#include "cuda/tile_axis.h"
#include "cuda/warp_rows.h"
#include "rules/attention_params.h"

namespace multihead::cuda {
namespace {

// One query row of all batch entries and heads, or of the packed sequences.
struct RowPlace {
  int64_t batch, head, row;

  static __device__ __forceinline__ RowPlace of(const BackwardParams& p, int64_t index) {
    const auto [of_rows, row] = divide(index, extents_of(p.forward).queries);
    const auto [batch, head] = divide(of_rows, p.forward.call.heads);
    return {batch, head, row};
  }
  // Moves `count` rows on.
  __device__ __forceinline__ void advance(const BackwardParams& p, int count) {
    const int64_t rows = extents_of(p.forward).queries;
    row += count;
    while (row >= rows) {
      row -= rows;
      if (++head == p.forward.call.heads) {
        head = 0;
        ++batch;
      }
    }
  }
};

constexpr int64_t all_rows(const BackwardParams& p) {
  const Extents stored = extents_of(p.forward);
  return stored.batch * p.forward.call.heads * stored.queries;
}

__device__ __forceinline__ void store_sums(const BackwardParams& p, const RowPlace& at,
                                           float delta) {
  *p.delta.row(at.batch, at.head, at.row) = delta;
  *p.reference.row(at.batch, at.head, at.row) =
      *p.lse.row(at.batch, at.head, at.row) / p.forward.call.scale.softmax;
}

// Rows of any type: one warp per row.
__global__ void __launch_bounds__(kWarpRowThreads, 1)
    sum_rows(const __grid_constant__ BackwardParams p) {
  const rules::AttentionParams& call = p.forward.call;
  const int64_t index = row_of_warp();
  if (index >= all_rows(p)) return;
  const auto at = RowPlace::of(p, index);
  const auto& [batch, head, row] = at;
  const int64_t of_out = rules::row_offset(p.out.stride, batch, head, row);
  const int64_t of_d_out = rules::row_offset(p.d_out.stride, batch, head, row);
  float sum = 0.0F;
  for (int64_t c = lane(); c < call.value_dim; c += kWarpSize) {
    sum += element(p.out.data, p.out.type, of_out + c) *
           element(p.d_out.data, p.d_out.type, of_d_out + c);
  }
  sum = warp_sum(sum);
  if (lane() == 0) store_sums(p, at, sum);
}

// BackwardParams::wide_rows: kLanes threads per row read 16 bytes each, and a thread has parts of
// kRowsOfThread rows, whose loads overlap. One warp per row, with loads of 2 bytes, took 6 times as
// long as reading from memory takes (H200, d 128).
constexpr int kRowsOfThread = 4;

template <class T, int kLanes>
__global__ void __launch_bounds__(kWarpRowThreads, 1)
    sum_wide_rows(const __grid_constant__ BackwardParams p) {
  struct alignas(16) Piece {
    T values[8];
  };
  constexpr int kRowsOfWarp = kWarpSize / kLanes;
  const int64_t first = row_of_warp() * kRowsOfWarp * kRowsOfThread + lane() / kLanes;
  const int64_t end = all_rows(p);
  const int column = lane() % kLanes * 8;
  const bool has_columns = column < p.forward.call.value_dim;
  const auto begin = RowPlace::of(p, first);
  Piece out[kRowsOfThread]{}, d_out[kRowsOfThread]{};
  auto at = begin;
#pragma unroll
  for (int i = 0; i < kRowsOfThread; ++i) {
    if (has_columns && first + i * kRowsOfWarp < end) {
      const auto piece_of = [&](const void* data, const rules::RowStrides& stride) {
        return *reinterpret_cast<const Piece*>(
            static_cast<const T*>(data) + rules::row_offset(stride, at.batch, at.head, at.row) +
            column);
      };
      out[i] = piece_of(p.out.data, p.out.stride);
      d_out[i] = piece_of(p.d_out.data, p.d_out.stride);
    }
    at.advance(p, kRowsOfWarp);
  }
  at = begin;
#pragma unroll
  for (int i = 0; i < kRowsOfThread; ++i) {
    float sum = 0.0F;
#pragma unroll
    for (int n = 0; n < 8; ++n) sum += to_float(out[i].values[n]) * to_float(d_out[i].values[n]);
#pragma unroll
    for (int mask = kLanes / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
    if (lane() % kLanes == 0 && first + i * kRowsOfWarp < end) store_sums(p, at, sum);
    at.advance(p, kRowsOfWarp);
  }
}

template <class T, int kLanes>
int launch_wide(const BackwardParams& params, int64_t rows, StreamHandle stream) {
  constexpr int kRows = kWarpSize / kLanes * kRowsOfThread;  // per warp
  return launch_warp_rows(tiles_of(rows, kRows), stream, sum_wide_rows<T, kLanes>, params);
}

template <class T>
int launch_wide(const BackwardParams& params, int64_t rows, StreamHandle stream) {
  const int64_t width = params.forward.call.value_dim;
  if (width <= 64) return launch_wide<T, 8>(params, rows, stream);
  if (width <= 128) return launch_wide<T, 16>(params, rows, stream);
  static_assert(kMaxWidth <= kWarpSize * 8);
  return launch_wide<T, kWarpSize>(params, rows, stream);
}

constexpr int kSinkThreads = 256;

// d_sink = -(sum over rows of exp(sink - LSE) * delta); one block per head.
__global__ void __launch_bounds__(kSinkThreads, 1)
    differentiate_sinks(const __grid_constant__ BackwardParams p) {
  const rules::AttentionParams& call = p.forward.call;
  const int64_t head = block_number();
  if (head >= call.heads) return;
  const float sink = call.sinks[head];
  double sum = 0.0;
  for (int64_t index = 0; index < call.batch; ++index) {
    const Entry entry = entry_of(p.forward, index);
    for (int64_t query = thread_index(); query < entry.queries; query += kSinkThreads) {
      const int64_t row = entry.first_query + query;
      const auto lse = static_cast<double>(*p.lse.row(entry.batch, head, row));
      const auto delta = static_cast<double>(*p.delta.row(entry.batch, head, row));
      // Skip a sink of -inf: its weight is 0, but (-inf) - LSE is NaN for a row that sees no key.
      if (sink != -INFINITY) sum += exp(static_cast<double>(sink) - lse) * delta;
    }
  }
  sum = warp_sum(sum);
  auto* const sums = reinterpret_cast<double*>(shared_memory());
  if (lane() == 0) sums[warp()] = sum;
  sync_threads();
  if (thread_index() != 0) return;
  double total = 0.0;
  for (int i = 0; i < kSinkThreads / kWarpSize; ++i) total += sums[i];
  p.d_sinks[head] = static_cast<float>(-total);
}

}  // namespace

int launch_backward_rows(const BackwardParams& params, StreamHandle stream) {
  const int64_t rows = all_rows(params);
  if (rows == 0) return 0;
  if (!params.wide_rows) return launch_warp_rows(rows, stream, sum_rows, params);
  return params.out.type == DType::kBF16 ? launch_wide<BFloat16>(params, rows, stream)
                                         : launch_wide<Float16>(params, rows, stream);
}

int launch_sink_gradient(const BackwardParams& params, StreamHandle stream) {
  return launch({.blocks = params.forward.call.heads,
                 .threads = kSinkThreads,
                 .shared_bytes = kSinkThreads / kWarpSize * sizeof(double),
                 .stream = stream},
                differentiate_sinks, params);
}

}  // namespace multihead::cuda
