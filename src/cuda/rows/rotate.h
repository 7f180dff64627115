// QK-norm and RoPE of rows on the device.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/kernels.h"
#include "multihead/rope.h"
#include "rules/attention_params.h"
#include "rules/visibility.h"

namespace multihead::cuda {

// y = RoPE(QK-norm(x)) for x (B, H, N, d). y may be x.
struct RotateParams {
  rules::StoredRows x;
  rules::WritableRows y;
  int64_t batch = 0, heads = 0, rows = 0, width = 0;

  bool normalise = false;
  const float* gain = nullptr;  // (d); null for 1
  float epsilon = 0.0F;

  Rope::Style style = Rope::Style::kNone;
  double base = 1.0;
  int64_t rotary = 0;  // elements of a row that are rotated
  // (N) or (B, N); null: queries have the positions of `visibility`, keys those of their rows.
  const int32_t* positions = nullptr;
  int64_t positions_stride = 0;  // from batch entry to batch entry
  bool of_queries = false;
  rules::Visibility visibility;

  // Packed sequences, see ForwardParams: the rows are those of all sequences, and the positions
  // begin at 0 in each.
  const int32_t* cu_q = nullptr;
  const int32_t* cu_k = nullptr;
  int64_t sequences = 0;
};
static_assert(std::is_trivially_copyable_v<RotateParams>);

int launch_rotate(const RotateParams& params, StreamHandle stream);

// The backward of launch_rotate().
struct RotateBackParams {
  RotateParams rotate;  // of the forward; its y is not used
  // (B, H, N, d): the gradient with respect to y becomes the one with respect to x. A row of zeros
  // stays as it is, even if x is NaN there.
  rules::Rows<float> gradient;
  int64_t longest = 0;      // packed sequences: rows of one that have a gradient
  float* d_gain = nullptr;  // (d), may be null; else `gradient` is given
  double* parts = nullptr;  // gain_parts() * d numbers of the workspace, with d_gain only
};
static_assert(std::is_trivially_copyable_v<RotateBackParams> && sizeof(RotateBackParams) <= 4096);

// Rows of so many are added to one part of d_gain; the parts are then added in order.
inline constexpr int64_t kRowsOfGainPart = 64;

inline int64_t gain_parts(const RotateParams& params) {
  const int64_t rows = params.batch * params.heads * params.rows;
  return (rows + kRowsOfGainPart - 1) / kRowsOfGainPart;
}

int launch_rotate_back(const RotateBackParams& params, StreamHandle stream);

}  // namespace multihead::cuda
