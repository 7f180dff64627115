// The epilogue of the Hopper forward kernel: divides the sums of weighted values by the softmax
// denominators, stores the outputs, and recomputes rows that are NaN.
#pragma once

#include <math.h>

#include <cstddef>
#include <cstdint>
#include <limits>

#include "cuda/device/device.h"
#include "cuda/device/hopper_device.h"
#include "cuda/hopper/forward_tile.h"
#include "cuda/hopper/softmax.h"
#include "cuda/params.h"
#include "cuda/rows.h"
#include "multihead/tensor.h"
#include "rules/attention_params.h"
#include "rules/visibility.h"

namespace multihead::cuda {

inline constexpr float kNone = -std::numeric_limits<float>::infinity();  // score of a hidden key

template <class T>
__device__ __forceinline__ T* row_of(const rules::WritableRows& rows, const HopperBlock& block,
                                     const HopperRow& row) {
  return static_cast<T*>(rows.data) + rules::row_offset(rows.stride, block.batch, row.head,
                                                        int64_t{block.first_query} + row.query);
}
template <class T>
__device__ __forceinline__ const T* row_of(const rules::StoredRows& rows, int64_t batch,
                                           int64_t head, int64_t row) {
  return static_cast<const T*>(rows.data) + rules::row_offset(rows.stride, batch, head, row);
}

// The result of a row's softmax. end_row() takes `reference` and `sum` of natural exponents.
struct RowEnd {
  float factor;  // multiplies the sums of weighted values
  float lse;
};
__device__ __forceinline__ RowEnd end_row(float reference, float sum, const float* sink) {
  float factor = 1.0F;
  if (sink != nullptr) {
    const float shift = sum > 0.0F ? fmaxf(reference, *sink) : *sink;
    factor = sum > 0.0F ? exp2_approx((reference - shift) * kLog2E) : 0.0F;
    sum = sum * factor + exp2_approx((*sink - shift) * kLog2E);
    reference = shift;
  }
  if (sum == 0.0F) return {0.0F, kNone};
  return {factor / sum, reference + logf(sum)};
}

__device__ __forceinline__ void store_lse(const HopperCall& call, const HopperBlock& block,
                                          const HopperRow& row, float value) {
  const rules::Rows<float>& lse = call.params.call.lse;
  if (lse.data == nullptr) return;
  lse.data[rules::row_offset(lse.stride, block.batch, row.head,
                             int64_t{block.first_query} + row.query)] = value;
}

__device__ __forceinline__ const float* sink_of(const HopperCall& call, const HopperRow& row) {
  const float* const sinks = call.params.call.sinks;
  return sinks == nullptr ? nullptr : sinks + row.head;
}

// Transposes words among the four lanes of a row: word i of lane t becomes word t of lane i.
__device__ __forceinline__ void transpose_quad(uint32_t (&words)[4]) {
#pragma unroll
  for (int distance = 2; distance >= 1; distance /= 2) {
    const bool upper = (hopper_lane() & distance) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & distance) != 0) continue;
      const uint32_t other = shuffle_xor(upper ? words[i] : words[i + distance], distance);
      (upper ? words[i] : words[i + distance]) = other;
    }
  }
}

// Stores one of a thread's two rows, if it is `stored`. All lanes of the warp call it.
template <class T, size_t kCount>
__device__ __forceinline__ void store_row(const HopperCall& call, const HopperBlock& block,
                                          const float (&o)[kCount], int which, const HopperRow& row,
                                          bool stored, float factor) {
  const rules::WritableRows& out = call.params.call.out;
  if (out.type == DType::kF32) {
    struct alignas(8) Pair {
      float left, right;
    };
    if (!stored) return;
    auto* const to = reinterpret_cast<Pair*>(row_of<float>(out, block, row)) + hopper_lane() % 4;
#pragma unroll
    for (int i = 0; i < static_cast<int>(kCount); i += 4) {
      to[i] = {o[i + 2 * which] * factor, o[i + 2 * which + 1] * factor};
    }
    return;
  }
  struct alignas(16) Piece {
    uint32_t words[4];
  };
  auto* const to = reinterpret_cast<Piece*>(row_of<T>(out, block, row)) + hopper_lane() % 4;
  // Store 32 columns at a time: each lane stores 8 adjacent columns.
#pragma unroll
  for (int i = 0; i < static_cast<int>(kCount); i += 16) {
    uint32_t words[4];
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const int at = i + 4 * word + 2 * which;
      words[word] = pack<T>(o[at] * factor, o[at + 1] * factor);
    }
    transpose_quad(words);
    if (stored) to[i / 4] = {{words[0], words[1], words[2], words[3]}};
  }
}

// Computes one row by plain sums over the keys that it sees, with one warp. Used for rows
// whose output by tiles is NaN, or whose sum of weights is not positive although they see a key:
// either the row sees a NaN, or a hidden value was NaN or infinite, or a product overflowed before
// it was scaled. Ends when all outputs are NaN, so that inputs of NaN take no longer than others.
// has_lse: the LSE is already written.
template <class T, class Tile>
__device__ __forceinline__ void recompute_row(const HopperCall& call, const HopperBlock& block,
                                              const HopperRow& row, bool has_lse) {
  constexpr int kColumns = Tile::kWidth / kWarpSize;  // per lane
  const rules::AttentionParams& attention = call.params.call;
  const T* const query =
      row_of<T>(attention.q, block.batch, row.head, int64_t{block.first_query} + row.query);
  const ColumnRange visible = block.visible(row.query);
  const QueryRow terms{row_terms(attention, block.entry(), row.head, row.query),
                       {visible.first, visible.last}};
  const float to_power = attention.scale.softmax * kLog2E;
  float reference = kNone, sum = 0.0F;
  float o[size_t{kColumns}] = {};
  for (int first = visible.first; first < visible.last; first += kWarpSize) {
    const int key = first + hopper_lane();
    float score = kNone;
    const bool is_seen = sees(attention, terms, key);
    if (is_seen) {
      const T* const k =
          row_of<T>(attention.k, block.batch, block.kv_head, int64_t{block.first_key} + key);
      float product = 0.0F;
      for (int column = 0; column < Tile::kWidth; ++column) {
        product =
            fmaf(to_float(query[column]) * attention.scale.queries, to_float(k[column]), product);
      }
      score = biased_score(attention, terms, key, capped_score(attention, product));
    }
    const uint32_t seen = ballot(is_seen);
    const float maximum = warp_max(fmaxf(reference, score));
    const float shift = maximum == kNone ? 0.0F : maximum;
    // Subtract first: a bias of -FLT_MAX would overflow.
    const float factor = exp2_approx((reference - shift) * to_power);
    const float weight = exp2_approx((score - shift) * to_power);
    reference = maximum;
    sum = sum * factor + warp_sum(weight);
    if (sum != sum) break;  // all outputs are NaN
#pragma unroll
    for (int i = 0; i < kColumns; ++i) o[i] *= factor;
    const auto count = static_cast<int>(rules::least_of(visible.last - first, kWarpSize));
    for (int other = 0; other < count; ++other) {
      const float w = shuffle(weight, other);
      if ((seen >> other & 1U) == 0) continue;
      const T* const value = row_of<T>(attention.v, block.batch, block.kv_head,
                                       int64_t{block.first_key} + first + other);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        o[i] = fmaf(w, to_float(value[hopper_lane() + i * kWarpSize]), o[i]);
      }
    }
    bool all_nan = has_lse;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) all_nan = all_nan && o[i] != o[i];
    if (ballot(!all_nan) == 0) break;
  }
  const RowEnd end = end_row(reference * attention.scale.softmax, sum, sink_of(call, row));
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int column = hopper_lane() + i * kWarpSize;
    if (attention.out.type == DType::kF32) {
      row_of<float>(attention.out, block, row)[column] = o[i] * end.factor;
    } else {
      row_of<T>(attention.out, block, row)[column] = from_float<T>(o[i] * end.factor);
    }
  }
  if (hopper_lane() == 0 && !has_lse) store_lse(call, block, row, end.lse);
}

// Ends the softmax of a thread's two rows: stores their LSE, and returns the factors of their
// outputs. NaN marks a row whose sum of weights is not positive although it sees a key.
struct RowFactors {
  float of[2];
};
template <class Tile>
__device__ __forceinline__ RowFactors end_rows(const HopperCall& call, const HopperBlock& block,
                                               int thread_row, const HopperSoftmax& softmax) {
  constexpr float kLn2 = 0.693147181F;
  RowFactors factors;
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    const HopperRow row = row_of_tile(call, block, thread_row + 8 * which);
    float sum = softmax.sum[which];
    sum += shuffle_xor(sum, 1);
    sum += shuffle_xor(sum, 2);
    const float reference = softmax.reference[which] * call.scale_log2 * kLn2;
    const RowEnd end = end_row(reference, sum, sink_of(call, row));
    if (row.query < block.end_of_tile && hopper_lane() % 4 == 0)
      store_lse(call, block, row, end.lse);
    const ColumnRange visible = block.visible(row.query);
    // A mask may hide all keys: then no score is above -inf, and none is NaN.
    const bool masked = Tile::kOptions && sum == 0.0F && softmax.reference[which] == kNone;
    const bool wrong = visible.first < visible.last && !(sum > 0.0F) && !masked;
    factors.of[which] = wrong ? std::numeric_limits<float>::quiet_NaN() : end.factor;
  }
  return factors;
}

// Divides by the softmax denominators and stores a warpgroup's 64 rows.
template <class T, class Tile>
__device__ __forceinline__ void store_rows(const HopperCall& call, const HopperBlock& block,
                                           int thread_row, const RowFactors& factors,
                                           const float (&o)[Tile::kWidth / 2]) {
  uint32_t wrong[2];  // bit i: the row of lane i must be recomputed
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    const HopperRow row = row_of_tile(call, block, thread_row + 8 * which);
    const bool stored = row.query < block.end_of_tile;
    // The total is NaN if any output is. Large outputs of both signs can overflow to NaN too; then
    // the row is recomputed needlessly.
    float total = factors.of[which];
#pragma unroll
    for (int i = 0; i < Tile::kWidth / 2; i += 4) total += o[i + 2 * which] + o[i + 2 * which + 1];
    wrong[which] = ballot(stored && total != total);
    store_row<T>(call, block, o, which, row, stored, factors.of[which]);
  }
  if ((wrong[0] | wrong[1]) == 0) return;
  // Bit i: the LSE of lane i's row is right, because its sum of weights is positive and finite.
  const uint32_t has_lse[2] = {ballot(factors.of[0] > 0.0F), ballot(factors.of[1] > 0.0F)};
  sync_warp();  // recomputed rows must be written after the rows above
  const int first_row = thread_row - hopper_lane() / 4;
  for (int row = 0; row < 16; ++row) {
    const uint32_t lanes = row < 8 ? wrong[0] : wrong[1];
    if ((lanes >> (row % 8 * 4) & 0xFU) == 0) continue;
    const uint32_t right = row < 8 ? has_lse[0] : has_lse[1];
    recompute_row<T, Tile>(call, block, row_of_tile(call, block, first_row + row),
                           (right >> (row % 8 * 4) & 1U) != 0);
  }
}

// Stores a warpgroup's 64 rows of a tile that sees no key: zeros.
template <class T, class Tile>
__device__ __forceinline__ void store_unseen(const HopperCall& call, const HopperBlock& block,
                                             int thread_row) {
  const float o[Tile::kWidth / 2] = {};
  const RowFactors factors = end_rows<Tile>(call, block, thread_row, HopperSoftmax{});
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    const HopperRow row = row_of_tile(call, block, thread_row + 8 * which);
    store_row<T>(call, block, o, which, row, row.query < block.end_of_tile, factors.of[which]);
  }
}

}  // namespace multihead::cuda
