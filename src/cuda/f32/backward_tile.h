// Device code of the f32 backward kernels: a block holds 16 rows, and streams the rows of the other
// side through shared memory, 32 at a time. Either query rows are held and keys streamed, or keys
// are held and query rows streamed: the products are the same. A row of width d_k belongs to Q or
// K, a row of width d_v to d_out or V.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/backward_pair.h"
#include "cuda/backward_params.h"
#include "cuda/device/device.h"
#include "cuda/f32/tile.h"
#include "rules/attention_params.h"

namespace multihead::cuda::backward {

inline constexpr int kThreads = 128;
inline constexpr int kWarps = kThreads / kWarpSize;
inline constexpr int kHeld = 16;
inline constexpr int kHeldOfWarp = kHeld / kWarps;
inline constexpr int kStreamed = kWarpSize;

// A block's shared memory. All arrays hold floats.
struct Tiles {
  int head_dim, value_dim;
  // Strides of streamed rows; odd, so that the lanes of a warp read from different banks.
  int key_stride, value_stride;
  float *keys, *values;            // streamed
  float *held_keys, *held_values;  // [row][width]
  float* factors;                  // [held row of this warp][streamed row]

  __device__ __forceinline__ explicit Tiles(const rules::AttentionParams& call)
      : head_dim(static_cast<int>(call.head_dim)),
        value_dim(static_cast<int>(call.value_dim)),
        key_stride(head_dim | 1),
        value_stride(value_dim | 1),
        keys(reinterpret_cast<float*>(shared_memory())),
        values(keys + kStreamed * key_stride),
        held_keys(values + kStreamed * value_stride),
        held_values(held_keys + kHeld * head_dim),
        factors(held_values + kHeld * value_dim + warp() * kHeldOfWarp * kStreamed) {}

  static size_t bytes(const rules::AttentionParams& call) {
    const int64_t floats = kStreamed * ((call.head_dim | 1) + (call.value_dim | 1)) +
                           kHeld * (call.head_dim + call.value_dim) + kHeld * kStreamed;
    return static_cast<size_t>(floats) * sizeof(float);
  }
};

// A query row in the row list of a key/value head, or none.
struct Place {
  bool exists = false;
  int64_t head = 0, query = 0;
};

__device__ __forceinline__ int64_t row_at(const rules::StoredRows& rows, const Entry& entry,
                                          const Place& place) {
  if (!place.exists) return -1;
  return rules::row_offset(rows.stride, entry.batch, place.head, entry.first_query + place.query);
}

// Copies the rows of Q and d_out of place_of(0), place_of(1), ...
template <int kRows, class PlaceOf>
__device__ __forceinline__ void copy_queries(const BackwardParams& p, const Tiles& tiles,
                                             const Entry& entry, float* queries, int query_stride,
                                             float* d_out, int out_stride,
                                             const PlaceOf& place_of) {
  const rules::StoredRows& q = p.forward.call.q;
  copy_rows<kRows>(q.data, q.type, tiles.head_dim, queries, query_stride,
                   [&](int i) { return row_at(q, entry, place_of(i)); });
  copy_rows<kRows>(p.d_out.data, p.d_out.type, tiles.value_dim, d_out, out_stride,
                   [&](int i) { return row_at(p.d_out, entry, place_of(i)); });
}

// Copies the rows of K and V for keys first, first + 1, ...; writes zeros for keys >= `end`.
template <int kRows>
__device__ __forceinline__ void copy_keys(const BackwardParams& p, const Tiles& tiles,
                                          const Entry& entry, int64_t kv_head, int64_t first,
                                          int64_t end, float* keys, int key_stride, float* values,
                                          int value_stride) {
  const auto copy = [&](const rules::StoredRows& of, int width, float* to, int stride) {
    copy_rows<kRows>(of.data, of.type, width, to, stride, [&](int i) {
      const int64_t key = first + i;
      if (key >= end) return int64_t{-1};
      return rules::row_offset(of.stride, entry.batch, kv_head, entry.first_key + key);
    });
  };
  copy(p.forward.call.k, tiles.head_dim, keys, key_stride);
  copy(p.forward.call.v, tiles.value_dim, values, value_stride);
}

// Multiplies the held rows of Q or K by scale.queries.
__device__ __forceinline__ void scale_held(const Tiles& tiles, float factor) {
  for (int i = thread_index(); i < kHeld * tiles.head_dim; i += kThreads) {
    tiles.held_keys[i] *= factor;
  }
}

// Multiplies the streamed row of this lane with each held row of this warp.
__device__ __forceinline__ void multiply(const float* held, const float* streamed, int width,
                                         int stride, float (&product)[kHeldOfWarp]) {
  const float* const own = held + warp() * kHeldOfWarp * width;
#pragma unroll
  for (int r = 0; r < kHeldOfWarp; ++r) product[r] = 0.0F;
  for (int c = 0; c < width; ++c) {
    const float x = streamed[lane() * stride + c];
#pragma unroll
    for (int r = 0; r < kHeldOfWarp; ++r) product[r] += own[r * width + c] * x;
  }
}

// Adds the streamed rows times their factors to the sums of this warp's held rows. Row r takes
// streamed row i only if bit i of counts[r] is set. A lane has columns lane(), lane() + 32, ...
template <int kColumns>
__device__ __forceinline__ void add_rows(const float* factors,
                                         const uint32_t (&counts)[kHeldOfWarp],
                                         const float* streamed, int width, int stride,
                                         float (&sums)[kHeldOfWarp][kColumns]) {
  // Sum each tile separately, then add it to the total: two short sums round less than one long
  // sum.
  float part[kHeldOfWarp][kColumns] = {};
  for (int i = 0; i < kStreamed; ++i) {
    float x[kColumns];
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int c = lane() + n * kWarpSize;
      x[n] = c < width ? streamed[i * stride + c] : 0.0F;
    }
#pragma unroll
    for (int r = 0; r < kHeldOfWarp; ++r) {
      if ((counts[r] >> i & 1U) == 0) continue;
      const float factor = factors[r * kStreamed + i];
#pragma unroll
      for (int n = 0; n < kColumns; ++n) part[r][n] += factor * x[n];
    }
  }
#pragma unroll
  for (int r = 0; r < kHeldOfWarp; ++r) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) sums[r][n] += part[r][n];
  }
}

}  // namespace multihead::cuda::backward
