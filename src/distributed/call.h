// A distributed call, plain or varlen, in the one form that all methods read: its tensors, the rows
// of the whole problem that each rank holds, and the parts of packed sequences in them.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "engine/attention/validate.h"
#include "multihead/distributed.h"

namespace multihead::distributed {

// Consecutive rows of the whole problem, and their first row in the rank's shard.
struct Chunk {
  int64_t first = 0, count = 0, local = 0;

  bool operator==(const Chunk&) const = default;
};

// Rows of one rank that belong to one sequence.
struct Segment {
  int64_t sequence = 0;
  int64_t first = 0;  // first row within the sequence
  int64_t count = 0;
  int64_t local = 0;  // first row within the shard
};

// Returns the chunks of a rank, without empty ones. For kContiguous, `counts` gives the rows of
// each rank.
std::vector<Chunk> chunks_of(const Sharding& sharding, std::span<const int64_t> counts,
                             int64_t total, int rank);

// Returns the segments of a chunk in order, without empty ones. Sequence s is rows cu[s] .. cu[s +
// 1] - 1.
std::vector<Segment> segments_of(const Chunk& chunk, std::span<const int32_t> cu);
std::vector<Segment> segments_of(std::span<const Chunk> chunks, std::span<const int32_t> cu);

// All `rows` rows of the whole problem, in memory that holds them all.
inline Chunk whole(int64_t rows) { return {.first = 0, .count = rows, .local = 0}; }

// Kind of a call. Ranks compare it, so that calls of different kinds do not exchange data.
enum class CallKind : uint8_t { kForward, kForwardVarlen, kBackward, kBackwardVarlen };

struct Call {
  CallKind kind = CallKind::kForward;
  ConstAnyTensor q, k, v;  // (B, H, n, d), this rank's rows; B = 1 if varlen
  AttentionOptions options;
  std::span<const int32_t> cu_q, cu_k;  // whole problem; {0, total} if not varlen
  Sharding sharding;
  engine::AttentionShape shape;  // shape of this rank's part

  bool varlen() const {
    return kind == CallKind::kForwardVarlen || kind == CallKind::kBackwardVarlen;
  }
  bool transforms() const { return options.qk_norm.given() || options.rope.given(); }
};

// Number of rows of every rank.
struct Shards {
  std::vector<int64_t> queries, keys;

  std::vector<Chunk> query_chunks(const Call& call, int rank) const {
    return chunks_of(call.sharding, queries, call.sharding.queries, rank);
  }
  std::vector<Chunk> key_chunks(const Call& call, int rank) const {
    return chunks_of(call.sharding, keys, call.sharding.keys, rank);
  }
};

// Returns a view of some rows and heads of (B, H, n, d).
template <class View>
View part_of(View view, int axis, int64_t first, int64_t count) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>,
                                  const char, char>;
  int64_t bytes = 1;
  if constexpr (requires { view.dtype; }) {
    bytes = bytes_of(view.dtype);
  } else {
    bytes = sizeof(*view.data);
  }
  if (view.data != nullptr && view.shape.elements() != 0) {
    view.data = reinterpret_cast<decltype(view.data)>(reinterpret_cast<Byte*>(view.data) +
                                                      first * view.strides[axis] * bytes);
  }
  view.shape[axis] = count;
  return view;
}
template <class View>
View rows_of(const View& view, int64_t first, int64_t count) {
  return part_of(view, 2, first, count);
}
template <class View>
View heads_of(const View& view, int64_t first, int64_t count) {
  return part_of(view, 1, first, count);
}

// Returns (B, H, n) as (B, H, n, 1).
template <class T>
TensorView<T> as_columns(const TensorView<T>& rows) {
  return {rows.data,
          {rows.shape[0], rows.shape[1], rows.shape[2], 1},
          {rows.strides[0], rows.strides[1], rows.strides[2], 1}};
}

// Returns scores (N_q, N_k) as (1, 1, N_q, N_k), other shapes unchanged.
inline Tensor as_scores(Tensor view) {
  if (view.shape.rank() == 2) {
    view.shape = {1, 1, view.shape[0], view.shape[1]};
    view.strides = {0, 0, view.strides[0], view.strides[1]};
  }
  return view;
}

// Copies (B, H, n, d) of one type.
void copy(const ConstAnyTensor& from, const AnyTensor& to, Context& context);
// Copies (B, H, n, d) and converts floats to the type of `to`.
void convert(const ConstTensor& from, const AnyTensor& to, Context& context);

// to += from, both (B, H, n, d).
void add(const Tensor& from, const Tensor& to, Context& context);

// Applies QK-norm and RoPE to the rank's rows of q or k, which `segments` assigns to sequences;
// `to` is f32 and contiguous.
enum class Operand : uint8_t { kQueries, kKeys };
Status transform(const Call& call, Operand operand, std::span<const Segment> segments,
                 const Tensor& to, Context& context);

// The backward of transform(): replaces the gradient of its output by the gradient of q or k.
// Writes the gain's gradient, a sum over the rank's rows, to d_gain unless d_gain is empty.
Status transform_back(const Call& call, Operand operand, std::span<const Segment> segments,
                      const Tensor& gradient, std::span<float> d_gain, Context& context);

}  // namespace multihead::distributed
