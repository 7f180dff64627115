// QK-norm (arXiv:2302.05442) and RoPE (arXiv:2104.09864); one warp per row.
#include "cuda/kernels.h"
#include "cuda/rows.h"
#include "cuda/rows/rotate_params.h"
#include "cuda/warp_rows.h"
#include "rules/rope.h"

namespace multihead::cuda {
namespace {

// Returns the last packed sequence that begins at or before `row`, by binary search. `starts` come
// from the caller unchecked; the search ends for any values.
__device__ int64_t sequence_of(const RotateParams& p, const int32_t* starts, int64_t row) {
  int64_t sequence = 0, end = p.sequences;
  while (end - sequence > 1) {
    const int64_t middle = (sequence + end) / 2;
    if (starts[middle] <= row) {
      sequence = middle;
    } else {
      end = middle;
    }
  }
  return sequence;
}

__device__ int64_t packed_position(const RotateParams& p, int64_t row) {
  const int32_t* const starts = p.of_queries ? p.cu_q : p.cu_k;
  const int64_t sequence = sequence_of(p, starts, row);
  const int64_t position = row - starts[sequence];
  if (!p.of_queries) return position;
  rules::Visibility of_sequence = p.visibility;
  of_sequence.queries = p.cu_q[sequence + 1] - p.cu_q[sequence];
  of_sequence.keys = of_sequence.shard_keys = p.cu_k[sequence + 1] - p.cu_k[sequence];
  return of_sequence.position(0, position);
}

__device__ int64_t position_of(const RotateParams& p, int64_t batch, int64_t row) {
  if (p.cu_q != nullptr) return packed_position(p, row);
  if (p.positions != nullptr) return p.positions[batch * p.positions_stride + row];
  return p.of_queries ? p.visibility.position(batch, row) : row;
}

// 1 / sqrt(mean of squares + eps) of the row at offset `row`.
__device__ double inverse_rms(const RotateParams& p, int64_t row) {
  double squares = 0.0;
  for (int64_t c = lane(); c < p.width; c += kWarpSize) {
    const double value = element(p.x.data, p.x.type, row + c);
    squares += value * value;
  }
  const double mean = warp_sum(squares) / static_cast<double>(p.width);
  return 1.0 / sqrt(mean + static_cast<double>(p.eps));
}

// The rotation of one pair of elements.
struct Turn {
  rules::Pair at;
  float cosine, sine;
};

__device__ __forceinline__ Turn turn_of(const RotateParams& p, int64_t position, int64_t pair) {
  const double angle = rules::rope_angle(position, pair, p.base, p.rotary);
  return {rules::rotated_pair(pair, p.rotary / 2, p.style), static_cast<float>(cos(angle)),
          static_cast<float>(sin(angle))};
}

__global__ void __launch_bounds__(kWarpRowThreads, 1) rotate_rows(const RotateParams p) {
  const int64_t index = row_of_warp();
  if (index >= p.batch * p.heads * p.rows) return;
  const int64_t row = index % p.rows;
  const int64_t head = index / p.rows % p.heads;
  const int64_t batch = index / p.rows / p.heads;
  const int64_t x_row = rules::row_offset(p.x.stride, batch, head, row);
  const int64_t y_row = rules::row_offset(p.y.stride, batch, head, row);
  const float factor = p.normalize ? static_cast<float>(inverse_rms(p, x_row)) : 1.0F;
  const auto read = [&](int64_t c) {
    const float value = element(p.x.data, p.x.type, x_row + c);
    if (!p.normalize) return value;
    return value * (p.gain == nullptr ? factor : factor * p.gain[c]);
  };
  const int64_t pairs = p.style == Rope::Style::kNone ? 0 : p.rotary / 2;
  if (pairs != 0) {
    const int64_t position = position_of(p, batch, row);
    for (int64_t pair = lane(); pair < pairs; pair += kWarpSize) {
      const auto [at, cosine, sine] = turn_of(p, position, pair);
      // Read both elements before writing either, because y may be x.
      const float first = read(at.first), second = read(at.second);
      set_element(p.y.data, p.y.type, y_row + at.first, first * cosine - second * sine);
      set_element(p.y.data, p.y.type, y_row + at.second, first * sine + second * cosine);
    }
  }
  for (int64_t c = 2 * pairs + lane(); c < p.width; c += kWarpSize) {
    set_element(p.y.data, p.y.type, y_row + c, read(c));
  }
}

// True if a row belongs to a packed sequence, and so has a gradient. Always true without packed
// sequences.
__device__ bool has_gradient(const RotateBackParams& p, int64_t row) {
  if (p.rotate.cu_q == nullptr) return true;
  if (p.rotate.sequences == 0) return false;
  const int32_t* const starts = p.rotate.of_queries ? p.rotate.cu_q : p.rotate.cu_k;
  const int64_t sequence = sequence_of(p.rotate, starts, row);
  return row >= starts[sequence] && row < starts[sequence + 1] &&
         row - starts[sequence] < p.longest;
}

constexpr int kColumns = static_cast<int>(kMaxWidth) / kWarpSize;  // elements of a row per lane

// Backward of one row. RoPE: rotates the gradient back by the same angles. QK-norm, with r = 1 /
// rms(x) and g = gradient * gain: the gradient becomes r g - x r^3 mean(g x), and d_gain grows by
// gradient * r x.
__device__ void turn_back(const RotateBackParams& p, int64_t batch, int64_t head, int64_t row,
                          double (&d_gain)[kColumns]) {
  const RotateParams& forward = p.rotate;
  const int width = static_cast<int>(forward.width);
  float* const gradient = p.gradient.row(batch, head, row);
  bool any = false;
  for (int c = lane(); c < width; c += kWarpSize) any = any || gradient[c] != 0.0F;
  if (ballot(any) == 0) return;
  // All lanes must have read the row before any lane writes.
  sync_warp();
  const int64_t pairs = forward.style == Rope::Style::kNone ? 0 : forward.rotary / 2;
  if (pairs != 0) {
    const int64_t position = position_of(forward, batch, row);
    for (int64_t pair = lane(); pair < pairs; pair += kWarpSize) {
      const auto [at, cosine, sine] = turn_of(forward, position, pair);
      const float first = gradient[at.first], second = gradient[at.second];
      gradient[at.first] = first * cosine + second * sine;
      gradient[at.second] = second * cosine - first * sine;
    }
  }
  if (!forward.normalize) return;
  // Wait until other lanes have written their pairs.
  sync_warp();
  const int64_t x_row = rules::row_offset(forward.x.stride, batch, head, row);
  const double r = inverse_rms(forward, x_row);
  double along = 0.0;
  for (int c = lane(); c < width; c += kWarpSize) {
    const float gain = forward.gain == nullptr ? 1.0F : forward.gain[c];
    along += static_cast<double>(gradient[c] * gain) *
             static_cast<double>(element(forward.x.data, forward.x.type, x_row + c));
  }
  const double shrink = warp_sum(along) / static_cast<double>(width) * r * r * r;
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    const int c = lane() + n * kWarpSize;
    if (c >= width) break;
    const auto x = static_cast<double>(element(forward.x.data, forward.x.type, x_row + c));
    const float gain = forward.gain == nullptr ? 1.0F : forward.gain[c];
    const float of_y = gradient[c];
    d_gain[n] += static_cast<double>(of_y) * r * x;
    gradient[c] = static_cast<float>(r * static_cast<double>(of_y * gain) - shrink * x);
  }
}

// One block per part of d_gain.
__global__ void __launch_bounds__(kWarpRowThreads, 1)
    rotate_rows_back(const __grid_constant__ RotateBackParams p) {
  const RotateParams& forward = p.rotate;
  const int64_t rows = forward.batch * forward.heads * forward.rows;
  const int64_t first = block_number() * kRowsOfGainPart;
  if (first >= rows) return;
  const int64_t last = rules::least_of(first + kRowsOfGainPart, rows);
  double d_gain[kColumns] = {};
  for (int64_t index = first + warp(); index < last; index += kRowsOfBlock) {
    const int64_t row = index % forward.rows;
    const int64_t head = index / forward.rows % forward.heads;
    if (!has_gradient(p, row)) continue;
    turn_back(p, index / forward.rows / forward.heads, head, row, d_gain);
  }
  if (p.d_gain == nullptr) return;
  auto* const sums = reinterpret_cast<double*>(shared_memory());
  for (int n = 0; n < kColumns; ++n) sums[n * kWarpRowThreads + thread_index()] = d_gain[n];
  sync_threads();
  for (int c = thread_index(); c < forward.width; c += kWarpRowThreads) {
    double sum = 0.0;
    for (int w = 0; w < kRowsOfBlock; ++w) {
      sum += sums[c / kWarpSize * kWarpRowThreads + w * kWarpSize + c % kWarpSize];
    }
    p.parts[block_number() * forward.width + c] = sum;
  }
}

// One warp per element of d_gain.
__global__ void __launch_bounds__(kWarpRowThreads)
    sum_gain_parts(const double* parts, int64_t count, int64_t width, float* d_gain) {
  const int64_t c = row_of_warp();
  if (c >= width) return;
  double sum = 0.0;
  for (int64_t part = lane(); part < count; part += kWarpSize) sum += parts[part * width + c];
  sum = warp_sum(sum);
  if (lane() == 0) d_gain[c] = static_cast<float>(sum);
}

}  // namespace

int launch_rotate(const RotateParams& params, StreamHandle stream) {
  const int64_t rows = params.batch * params.heads * params.rows;
  if (rows * params.width == 0) return 0;
  // Without sequences no row has a position, and no later kernel reads a row.
  if (params.cu_q != nullptr && params.sequences == 0) return 0;
  return launch_warp_rows(rows, stream, rotate_rows, params);
}

int launch_rotate_back(const RotateBackParams& params, StreamHandle stream) {
  const int64_t parts = gain_parts(params.rotate);
  if (parts != 0) {
    const size_t shared = params.d_gain == nullptr ? 0 : kColumns * kWarpRowThreads;
    const int error = launch({.blocks = parts,
                              .threads = kWarpRowThreads,
                              .shared_bytes = shared * sizeof(double),
                              .stream = stream},
                             rotate_rows_back, params);
    if (error != 0) return error;
  }
  if (params.d_gain == nullptr) return 0;
  const int64_t width = params.rotate.width;
  return launch({.blocks = (width + kRowsOfBlock - 1) / kRowsOfBlock,
                 .threads = kWarpRowThreads,
                 .shared_bytes = 0,
                 .stream = stream},
                sum_gain_parts, params.parts, parts, width, params.d_gain);
}

}  // namespace multihead::cuda
