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

}  // namespace multihead::cuda
