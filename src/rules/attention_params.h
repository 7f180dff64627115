// Parameters of one attention call, shared by all backends: addresses, strides, extents and
// resolved options. The engine fills them from a checked call and applies all defaults.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "multihead/attention.h"
#include "rules/visibility.h"

namespace multihead::rules {

// Strides over (B, H, N), in elements; the last axis of the tensor is contiguous.
using RowStrides = std::array<int64_t, 3>;

constexpr int64_t row_offset(const RowStrides& stride, int64_t batch, int64_t head, int64_t row) {
  return batch * stride[0] + head * stride[1] + row * stride[2];
}

// Rows of type T.
template <class T>
struct Rows {
  T* data = nullptr;
  RowStrides stride{};

  constexpr T* row(int64_t batch, int64_t head, int64_t position) const {
    return data + row_offset(stride, batch, head, position);
  }
};

// Rows of any storage type, and the rule that maps a position to a row.
struct StoredRows {
  const void* data = nullptr;
  DType type = DType::kF32;
  RowStrides stride{};

  // kInt8: one factor per row.
  const float* scales = nullptr;
  RowStrides scale_stride{};

  // A ring stores position j in row j % ring. Pages store it in row pages[batch][j / page_size] *
  // page_size + j % page_size. Without a ring or pages: 0 and null.
  int64_t ring = 0;
  const int32_t* pages = nullptr;
  int64_t pages_per_entry = 0;
  int64_t page_size = 0;

  constexpr bool in_order() const { return ring == 0 && pages == nullptr; }
  constexpr bool dense_floats() const { return type == DType::kF32 && in_order(); }
  // True if the heads of a token are adjacent in memory; false if the tokens of a head are.
  constexpr bool heads_side_by_side() const { return stride[1] > 0 && stride[1] < stride[2]; }
};

struct WritableRows {
  void* data = nullptr;
  DType type = DType::kF32;
  RowStrides stride{};
};

// A mask or bias of rank 2 or 4, broadcast to (B, H_q, N_q, N_k): strides in elements, 0 along a
// shared axis.
template <class T>
struct Broadcast {
  const T* data = nullptr;
  std::array<int64_t, 4> stride{};

  constexpr bool given() const { return data != nullptr; }
  constexpr const T* row(int64_t batch, int64_t head, int64_t query) const {
    return data + batch * stride[0] + head * stride[1] + query * stride[2];
  }
  constexpr const T& at(int64_t batch, int64_t head, int64_t query, int64_t key) const {
    return row(batch, head, query)[key * stride[3]];
  }
};

// Returns strides over (B, H_q, N_q, N_k). The view's last axis is N_k; axes that are absent or of
// extent 1 get stride 0.
template <class T>
std::array<int64_t, 4> strides_over_scores(const TensorView<T>& view) {
  std::array<int64_t, 4> result{};
  const int rank = view.shape.rank();
  auto stride = result.end() - rank;
  for (int axis = 0; axis < rank; ++axis) {
    *stride++ = view.shape[axis] == 1 ? 0 : view.strides[axis];
  }
  return result;
}

template <class T>
Broadcast<T> broadcast_to_scores(const TensorView<const T>& view) {
  return {.data = view.data, .stride = strides_over_scores(view)};
}

// The scale is the product queries * scores * softmax. The three factors are applied in different
// places, so that no intermediate result overflows unless the scaled score does. `scores` and
// `softmax` are positive.
struct ScaleFactors {
  float queries = 1.0F;  // applied to q before the products
  float scores = 1.0F;   // applied in a separate pass after the products; 1: no pass
  float softmax = 1.0F;  // applied inside the exponentials
};

// Dropout of weights, see rules/dropout_mask.h.
struct DropoutParams {
  uint64_t seed = 0;
  uint64_t threshold = 0;  // 0 keeps all weights
  float scale = 1.0F;      // 1 / (1 - p), applied to the kept weights

  constexpr bool given() const { return threshold != 0; }
};

// Indices of a shard's first batch entry, query head, query and key in the whole problem; 0 if the
// call is no shard. Dropout and ALiBi use them directly; causal order, window and lengths use them
// through `visibility`.
struct Coordinates {
  int64_t batch = 0, head = 0, query = 0, key = 0;
};

struct AttentionParams {
  StoredRows q, k, v;
  WritableRows out;            // data may be null
  Rows<float> lse;             // data may be null; one value per row
  Rows<uint8_t> dropout_mask;  // data may be null
  std::span<const ScoreCapture> captures;
  ScoreCapture weights;  // out.data may be null

  int64_t batch, heads, kv_heads, queries, keys, head_dim, value_dim;
  int64_t first_query, end_query;  // range of queries to compute
  Coordinates first;
  Visibility visibility;
  ScaleFactors scale;
  float softcap;  // 0 for none
  Broadcast<uint8_t> mask;
  Broadcast<float> bias;
  const float* alibi_slopes;  // (H_q), may be null
  const float* sinks;         // (H_q), may be null
  DropoutParams dropout;

  // The query heads that share a key/value head form one list of rows, query by query: row r is
  // head r % group() of the group at query r / group().
  constexpr int64_t group() const { return heads / kv_heads; }
  constexpr int64_t first_row() const { return first_query * group(); }
  constexpr int64_t end_row() const { return end_query * group(); }
  constexpr int64_t rows() const { return kv_heads == 0 ? 0 : end_row() - first_row(); }

  // Returns the union of the key ranges that the queries of a batch entry see.
  KeyRange seen_keys(int64_t batch_entry) const {
    KeyRange seen{keys, 0};
    const EntryVisibility entry = visibility.entry(batch_entry);
    for (int64_t query = first_query; query < end_query; ++query) {
      const KeyRange range = entry.seen_by(query);
      if (range.empty()) continue;
      seen.first = std::min(seen.first, range.first);
      seen.last = std::max(seen.last, range.last);
    }
    return seen;
  }

  bool captures_weights() const {
    return weights.out.data != nullptr ||
           std::any_of(captures.begin(), captures.end(), [](const ScoreCapture& capture) {
             return capture.stage == ScoreStage::kWeights;
           });
  }
  // Returns the call with its captures only, without out and lse.
  AttentionParams without_results() const {
    AttentionParams result = *this;
    result.out.data = nullptr;
    result.lse.data = nullptr;
    return result;
  }
  bool captures_anything() const { return !captures.empty() || weights.out.data != nullptr; }
  // Whether anything is to be written, of whatever the call asks for.
  bool writes_anything() const {
    if (batch == 0 || rows() == 0) return false;
    if (out.data != nullptr || lse.data != nullptr) return true;
    if (keys == 0) return false;
    return weights.out.data != nullptr || dropout_mask.data != nullptr ||
           std::any_of(captures.begin(), captures.end(), [](const ScoreCapture& capture) {
             return capture.out.shape.elements() != 0;
           });
  }
  bool needs_softmax() const {
    return out.data != nullptr || lse.data != nullptr || captures_weights();
  }
  // True if a pass changes scores after the products, other than by hiding keys.
  constexpr bool changes_scores() const {
    return softcap > 0.0F || bias.given() || alibi_slopes != nullptr;
  }
};

}  // namespace multihead::rules
