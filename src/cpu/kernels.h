// The door to the CPU kernels: what the engine may call. Everything here is checked and
// planned already; a kernel validates nothing and knows no default.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "rules/broadcast.h"
#include "rules/visibility.h"

namespace multihead::cpu {

// A tensor of rank 4 as (B, H, N, width); strides in elements, the last axis contiguous.
template <class T>
struct Rows {
  T* data = nullptr;
  std::array<int64_t, 3> stride{};

  T* row(int64_t batch, int64_t head, int64_t position) const {
    return data + batch * stride[0] + head * stride[1] + position * stride[2];
  }
};

struct ForwardParams {
  Rows<const float> q, k, v;
  Rows<float> out;
  Rows<float> lse;      // data may be null; one value a row
  Rows<float> weights;  // data may be null
  int64_t batch, heads, kv_heads, queries, keys, key_width, value_width;
  float scale;
  rules::Visibility visibility;
  rules::Broadcast<uint8_t> mask;
  rules::Broadcast<float> bias;

  // The query heads that share a key/value head are one list of rows, position by
  // position: row r is head r % group() of the group at query r / group().
  int64_t group() const { return heads / kv_heads; }
  int64_t rows() const { return queries * group(); }
};

struct ForwardLayout {
  int64_t block_rows;    // rows that one forward_block() call computes
  size_t scratch_bytes;  // of memory that such a call needs, aligned to kScratchAlignment
};

inline constexpr size_t kScratchAlignment = 64;

ForwardLayout forward_layout(const ForwardParams& params);

// Rows first_row .. first_row + block_rows - 1 of one batch entry and key/value head.
void forward_block(const ForwardParams& params, int64_t batch, int64_t kv_head, int64_t first_row,
                   void* scratch);

// y = x W^T + bias. Strides in elements from row to row.
struct LinearParams {
  const float* x;
  const float* weight;
  const float* bias;  // may be null
  float* y;
  int64_t x_stride, weight_stride, y_stride;
  int64_t rows, in, out;
};

struct LinearLayout {
  int64_t panel_columns;  // columns of y that one linear_panel() call computes
  size_t scratch_bytes;
};

LinearLayout linear_layout(const LinearParams& params);
void linear_panel(const LinearParams& params, int64_t first_column, void* scratch);

const char* target_name();

}  // namespace multihead::cpu
