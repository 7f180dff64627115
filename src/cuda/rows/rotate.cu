// QK-norm (arXiv:2302.05442) and RoPE (arXiv:2104.09864).
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

__device__ int64_t pairs_of(const RotateParams& p) {
  return p.style == Rope::Style::kNone ? 0 : p.rotary / 2;
}

// A lane's rotations at one position: of pair first + lane(), and of every 32nd pair after it.
class Turns {
 public:
  static constexpr int kPairsOfLane = static_cast<int>(kMaxWidth) / 2 / kWarpSize;
  static constexpr int64_t kPairs = kMaxWidth / 2;

  __device__ void compute(const RotateParams& p, int64_t position, int64_t first) {
    first_ = first;
    // An angle takes hundreds of instructions.
#pragma unroll 1
    for (int n = 0; n < kPairsOfLane; ++n) {
      const int64_t pair = first + lane() + n * kWarpSize;
      if (pair >= pairs_of(p)) break;
      const double angle = rules::rope_angle(position, pair, p.base, p.rotary);
      const auto cosine = static_cast<float>(cos(angle)), sine = static_cast<float>(sin(angle));
      // An index that is not known when compiling would move the arrays out of the registers.
#pragma unroll
      for (int i = 0; i < kPairsOfLane; ++i) {
        cosine_[i] = i == n ? cosine : cosine_[i];
        sine_[i] = i == n ? sine : sine_[i];
      }
    }
  }

  // Calls rotate(the pair's elements, cosine, sine) for each pair of this lane.
  template <class Rotate>
  __device__ __forceinline__ void for_each(const RotateParams& p, const Rotate& rotate) const {
#pragma unroll
    for (int n = 0; n < kPairsOfLane; ++n) {
      const int64_t pair = first_ + lane() + n * kWarpSize;
      if (pair >= pairs_of(p)) break;
      rotate(rules::rotated_pair(pair, pairs_of(p), p.style), cosine_[n], sine_[n]);
    }
  }

 private:
  int64_t first_ = 0;
  float cosine_[kPairsOfLane] = {}, sine_[kPairsOfLane] = {};
};

// Rotates the pairs of `turns` in one row; `copies` also the elements that no pair rotates.
__device__ void rotate_row(const RotateParams& p, const Turns& turns, int64_t batch, int64_t head,
                           int64_t row, bool copies) {
  const int64_t x_row = rules::row_offset(p.x.stride, batch, head, row);
  const int64_t y_row = rules::row_offset(p.y.stride, batch, head, row);
  const float factor = p.normalize ? static_cast<float>(inverse_rms(p, x_row)) : 1.0F;
  const auto read = [&](int64_t c) {
    const float value = element(p.x.data, p.x.type, x_row + c);
    if (!p.normalize) return value;
    return value * (p.gain == nullptr ? factor : factor * p.gain[c]);
  };
  turns.for_each(p, [&](const rules::Pair& at, float cosine, float sine) {
    // Read both elements before writing either, because y may be x.
    const float first = read(at.first), second = read(at.second);
    set_element(p.y.data, p.y.type, y_row + at.first, first * cosine - second * sine);
    set_element(p.y.data, p.y.type, y_row + at.second, first * sine + second * cosine);
  });
  if (!copies) return;
  for (int64_t c = 2 * pairs_of(p) + lane(); c < p.width; c += kWarpSize) {
    set_element(p.y.data, p.y.type, y_row + c, read(c));
  }
}

// One warp per row of heads_of_warp() heads.
__global__ void __launch_bounds__(kWarpRowThreads, 1) rotate_rows(const RotateParams p) {
  const int64_t heads = p.heads_of_warp();
  const int64_t groups = rules::ceil_div(p.heads, heads);
  const int64_t index = row_of_warp();
  if (index >= p.batch * groups * p.rows) return;
  const int64_t row = index % p.rows;
  const int64_t first_head = index / p.rows % groups * heads;
  const int64_t last_head = rules::least_of(first_head + heads, p.heads);
  const int64_t batch = index / p.rows / groups;
  const int64_t pairs = pairs_of(p);
  const int64_t position = pairs == 0 ? 0 : position_of(p, batch, row);
  Turns turns;
  // A second pass, for rows of more than kPairs pairs, never has QK-norm, which must read a whole
  // row before any of it is written. Calls with QK-norm have at most kMaxWidth columns.
  for (int64_t first = 0; first == 0 || first < pairs; first += Turns::kPairs) {
    turns.compute(p, position, first);
    for (int64_t head = first_head; head < last_head; ++head) {
      rotate_row(p, turns, batch, head, row, first == 0);
    }
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

// The angles of the row of a batch entry that a warp rotated back last; heads share them.
struct TurnsOfRow {
  int64_t batch = -1, row = -1;
  Turns turns;
};

// Backward of one row. RoPE: rotates the gradient back by the same angles. QK-norm, with r = 1 /
// rms(x) and g = gradient * gain: the gradient becomes r g - x r^3 mean(g x), and d_gain grows by
// gradient * r x.
__device__ void turn_back(const RotateBackParams& p, int64_t batch, int64_t head, int64_t row,
                          TurnsOfRow& known, double (&d_gain)[kColumns]) {
  const RotateParams& forward = p.rotate;
  const int width = static_cast<int>(forward.width);
  float* const gradient = p.gradient.row(batch, head, row);
  bool any = false;
  for (int c = lane(); c < width; c += kWarpSize) any = any || gradient[c] != 0.0F;
  if (ballot(any) == 0) return;
  // All lanes must have read the row before any lane writes.
  sync_warp();
  if (pairs_of(forward) != 0) {
    if (known.batch != batch || known.row != row) {
      known.turns.compute(forward, position_of(forward, batch, row), 0);
      known.batch = batch;
      known.row = row;
    }
    known.turns.for_each(forward, [&](const rules::Pair& at, float cosine, float sine) {
      const float first = gradient[at.first], second = gradient[at.second];
      gradient[at.first] = first * cosine + second * sine;
      gradient[at.second] = second * cosine - first * sine;
    });
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
  TurnsOfRow known;
  for (int64_t index = first + warp(); index < last; index += kRowsOfBlock) {
    const int64_t head = index % forward.heads;
    const int64_t row = index / forward.heads % forward.rows;
    if (!has_gradient(p, row)) continue;
    turn_back(p, index / forward.heads / forward.rows, head, row, known, d_gain);
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
  const int64_t groups = rules::ceil_div(params.heads, params.heads_of_warp());
  const int64_t warps = params.batch * groups * params.rows;
  if (warps * params.width == 0) return 0;
  // Without sequences no row has a position, and no later kernel reads a row.
  if (params.cu_q != nullptr && params.sequences == 0) return 0;
  return launch_warp_rows(warps, stream, rotate_rows, params);
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
