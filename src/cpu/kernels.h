// The door to the CPU kernels: what the engine may call. Everything here is checked and
// planned already; a kernel validates nothing and knows no default.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "multihead/attention.h"
#include "rules/broadcast.h"
#include "rules/visibility.h"

namespace multihead::cpu {

// Strides over (B, H, N), in elements; the last axis of what they belong to is contiguous.
using RowStrides = std::array<int64_t, 3>;

inline int64_t row_offset(const RowStrides& stride, int64_t batch, int64_t head, int64_t row) {
  return batch * stride[0] + head * stride[1] + row * stride[2];
}

template <class T>
struct Rows {
  T* data = nullptr;
  RowStrides stride{};

  T* row(int64_t batch, int64_t head, int64_t position) const {
    return data + row_offset(stride, batch, head, position);
  }
};

enum class Element : uint8_t { kF32, kF16, kBF16, kInt8 };

constexpr int64_t bytes_of(Element element) {
  return element == Element::kF32 ? 4 : element == Element::kInt8 ? 1 : 2;
}

// Rows of any storage type, and where the row of a position lies.
struct StoredRows {
  const void* data = nullptr;
  Element element = Element::kF32;
  RowStrides stride{};

  // kInt8: one factor a row.
  const float* scales = nullptr;
  RowStrides scale_stride{};

  // A ring keeps position j in row j % ring; pages keep it in row
  // pages[batch][j / page_size] * page_size + j % page_size. 0 and null otherwise.
  int64_t ring = 0;
  const int32_t* pages = nullptr;
  int64_t pages_per_entry = 0;
  int64_t page_size = 0;

  bool in_order() const { return ring == 0 && pages == nullptr; }
};

struct WritableRows {
  void* data = nullptr;
  Element element = Element::kF32;
  RowStrides stride{};
};

struct ForwardParams {
  StoredRows q, k, v;
  WritableRows out;            // data may be null
  Rows<float> lse;             // data may be null; one value a row
  Rows<uint8_t> dropout_mask;  // data may be null
  std::span<const ScoreCapture> captures;
  ScoreCapture weights;  // out.data may be null

  int64_t batch, heads, kv_heads, queries, keys, key_width, value_width;
  int64_t first_query, end_query;  // the queries that are computed
  float scale;
  rules::Visibility visibility;
  rules::Broadcast<uint8_t> mask;
  rules::Broadcast<float> bias;
  const float* alibi_slopes;  // (H_q), may be null
  float softcap;              // 0 is none
  const float* sinks;         // (H_q), may be null
  Dropout dropout;
  bool bf16_products;

  // The query heads that share a key/value head are one list of rows, position by
  // position: row r is head r % group() of the group at query r / group().
  int64_t group() const { return heads / kv_heads; }
  int64_t first_row() const { return first_query * group(); }
  int64_t end_row() const { return end_query * group(); }

  // A query's position for ALiBi, less its index: the last query stands at the last key. In a
  // cache every entry ends at its own length.
  int64_t alibi_shift(int64_t of_batch) const {
    const bool cached = visibility.firsts != nullptr;
    return (cached ? visibility.present(of_batch).last : keys) - queries;
  }
};

struct ForwardLayout {
  int64_t block_rows;      // rows that one forward_block() call computes
  int64_t heads;           // of so many key/value heads, one after the other
  uint64_t scratch_bytes;  // of memory that such a call needs, aligned to kScratchAlignment
};

inline constexpr size_t kScratchAlignment = 64;

ForwardLayout forward_layout(const ForwardParams& params);

// Rows first_row .. first_row + block_rows - 1 of one batch entry and of its key/value heads
// kv_head .. end_head - 1.
struct ForwardJob {
  int64_t batch, kv_head, end_head, first_row;
};

// `next` is what the same thread is likely to compute then, and brought nearer meanwhile; may be
// null.
void forward_block(const ForwardParams& params, const ForwardJob& job, const ForwardJob* next,
                   void* scratch);

// Few query rows against many keys, see decode.cc. The keys that the rows see are cut into
// pieces, which may be computed in any order and on any threads; then they are merged.
struct DecodeLayout {
  int64_t heads;           // key/value heads that one decode_piece() call computes
  int64_t pieces;          // of each of them
  int64_t most_pieces;     // that there can be, whatever the lengths
  int64_t piece_keys;      // from shapes and visibility alone, so that results depend on no more
  uint64_t partial_bytes;  // of the result of one head and piece
  uint64_t scratch_bytes;  // as above
};

struct DecodeJob {
  int64_t batch, kv_head, piece;  // the first of its heads
};

// Query rows of a key/value head up to which decode_piece() is the faster way.
inline constexpr int64_t kMostDecodeRows = 12;

// Whether decode_piece() does all that is asked for.
bool decode_fits(const ForwardParams& params);

DecodeLayout decode_layout(const ForwardParams& params);

// The partial result of the job's first head goes to `partials`, that of the next one
// layout.pieces * layout.partial_bytes behind it.
void decode_piece(const ForwardParams& params, const DecodeLayout& layout, const DecodeJob& job,
                  void* partials, void* scratch);

// Writes the outputs of one batch entry and key/value head from its `layout.pieces` partial
// results, of which the first is overwritten.
void decode_merge(const ForwardParams& params, const DecodeLayout& layout, int64_t batch,
                  int64_t kv_head, void* partials);

// y = x W^T + bias. Strides in elements from row to row.
struct LinearParams {
  const float* x;
  StoredRows weight;  // row o is that of output o; without batches and heads
  const float* bias;  // may be null
  float* y;
  int64_t x_stride, y_stride;
  int64_t rows, in, out;
};

struct LinearLayout {
  int64_t job_rows, job_columns;  // the block of y that one linear_block() call computes
  uint64_t scratch_bytes;         // of memory that such a call needs, aligned likewise
};

LinearLayout linear_layout(const LinearParams& params, int threads);

// The block of y from that row and column on. Its bits do not depend on the layout.
void linear_block(const LinearParams& params, const LinearLayout& layout, int64_t first_row,
                  int64_t first_column, void* scratch);

const char* target_name();

}  // namespace multihead::cpu
