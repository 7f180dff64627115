// QK-norm (arXiv:2302.05442) and RoPE (arXiv:2104.09864): a warp for each row.
#include "cuda/rotate.h"
#include "cuda/rows.h"
#include "cuda/warp_rows.h"
#include "rules/rope.h"

namespace multihead::cuda {
namespace {

// The position of a row of packed sequences. Row numbers of sequences are the caller's: any search
// ends, at some sequence.
__device__ int64_t packed_position(const RotateParams& p, int64_t row) {
  const int32_t* const starts = p.of_queries ? p.cu_q : p.cu_k;
  int64_t sequence = 0, end = p.sequences;  // the last sequence that begins at `row` or before
  while (end - sequence > 1) {
    const int64_t middle = (sequence + end) / 2;
    if (starts[middle] <= row) {
      sequence = middle;
    } else {
      end = middle;
    }
  }
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

__global__ void __launch_bounds__(kWarpRowThreads) rotate_rows(const RotateParams p) {
  const int64_t index = row_of_warp();
  if (index >= p.batch * p.heads * p.rows) return;
  const int64_t row = index % p.rows;
  const int64_t head = index / p.rows % p.heads;
  const int64_t batch = index / p.rows / p.heads;
  const int64_t x_row = rules::row_offset(p.x.stride, batch, head, row);
  const int64_t y_row = rules::row_offset(p.y.stride, batch, head, row);
  float factor = 1.0F;
  if (p.normalise) {
    double squares = 0.0;
    for (int64_t c = lane(); c < p.width; c += kWarpSize) {
      const double value = element(p.x.data, p.x.type, x_row + c);
      squares += value * value;
    }
    const double mean = warp_sum(squares) / static_cast<double>(p.width);
    factor = static_cast<float>(1.0 / sqrt(mean + static_cast<double>(p.epsilon)));
  }
  const auto read = [&](int64_t c) {
    const float value = element(p.x.data, p.x.type, x_row + c);
    if (!p.normalise) return value;
    return value * (p.gain == nullptr ? factor : factor * p.gain[c]);
  };
  const int64_t pairs = p.style == Rope::Style::kNone ? 0 : p.rotary / 2;
  if (pairs != 0) {
    const int64_t position = position_of(p, batch, row);
    for (int64_t pair = lane(); pair < pairs; pair += kWarpSize) {
      const rules::Pair at = rules::rotated_pair(pair, pairs, p.style);
      const double angle = rules::rope_angle(position, pair, p.base, p.rotary);
      const float cosine = static_cast<float>(cos(angle)), sine = static_cast<float>(sin(angle));
      // Both are read before either is written: y may be x.
      const float first = read(at.first), second = read(at.second);
      set_element(p.y.data, p.y.type, y_row + at.first, first * cosine - second * sine);
      set_element(p.y.data, p.y.type, y_row + at.second, first * sine + second * cosine);
    }
  }
  for (int64_t c = 2 * pairs + lane(); c < p.width; c += kWarpSize) {
    set_element(p.y.data, p.y.type, y_row + c, read(c));
  }
}

}  // namespace

int launch_rotate(const RotateParams& params, StreamHandle stream) {
  const int64_t rows = params.batch * params.heads * params.rows;
  if (rows * params.width == 0) return 0;
  return launch_warp_rows(rows, stream, rotate_rows, params);
}

}  // namespace multihead::cuda
