// QK-norm and RoPE of rows on the device.
#pragma once

#include <cstdint>
#include <type_traits>

#include "multihead/rope.h"
#include "rules/attention_params.h"
#include "rules/integers.h"
#include "rules/visibility.h"

namespace multihead::cuda {

// y = RoPE(QK-norm(x)) for x (B, H, N, d). y may be x.
struct RotateParams {
  rules::StoredRows x;
  rules::WritableRows y;
  int64_t batch = 0, heads = 0, rows = 0, width = 0;

  bool normalize = false;
  const float* gain = nullptr;  // (d); null for 1
  float eps = 0.0F;

  Rope::Style style = Rope::Style::kNone;
  double base = 1.0;
  int64_t rotary = 0;  // number of rotated elements per row
  // (N) or (B, N). Null: queries take their positions from `visibility`, keys their row number.
  const int32_t* positions = nullptr;
  int64_t positions_stride = 0;  // distance between batch entries
  bool of_queries = false;
  rules::Visibility visibility;

  // Packed sequences, see ForwardParams: the tensor has the rows of all sequences, and positions
  // restart at 0 in each sequence.
  const int32_t* cu_q = nullptr;
  const int32_t* cu_k = nullptr;
  int64_t sequences = 0;

  // Heads of a row that a warp rotates, one after the other, by the same angles. In double
  // precision, which GPUs for games compute at 1/64 of the speed, an angle costs more than the rest
  // of its pair. With few rows, and so few warps, it is 1, because a warp would wait for the memory
  // of each head.
  constexpr int64_t heads_of_warp() const {
    return style == Rope::Style::kNone ? 1 : rules::limited(rows / 4, 1, 8);
  }
};
static_assert(std::is_trivially_copyable_v<RotateParams>);

// The backward of launch_rotate().
struct RotateBackParams {
  RotateParams rotate;  // parameters of the forward; y is not used
  // (B, H, N, d). In: gradient with respect to y. Out: gradient with respect to x. A row of zeros
  // stays zero, even if x is NaN in that row.
  rules::Rows<float> gradient;
  int64_t longest = 0;      // packed sequences: rows of each that have a gradient
  float* d_gain = nullptr;  // (d), may be null; else `gradient` must be given
  double* parts = nullptr;  // gain_parts() * d numbers in the workspace, only with d_gain
};
static_assert(std::is_trivially_copyable_v<RotateBackParams> && sizeof(RotateBackParams) <= 4096);

// Number of rows that are added to one part of d_gain. The parts are then added up in a fixed
// order.
inline constexpr int64_t kRowsOfGainPart = 64;

inline int64_t gain_parts(const RotateParams& params) {
  const int64_t rows = params.batch * params.heads * params.rows;
  return (rows + kRowsOfGainPart - 1) / kRowsOfGainPart;
}

}  // namespace multihead::cuda
