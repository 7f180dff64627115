// Tiles of bf16 or f16 rows in shared memory, and their products by mma.sync, each warp with 16
// rows.
#pragma once

#include <cmath>
#include <cstdint>

#include "cuda/device/device.h"

namespace multihead::cuda::mma {

inline constexpr int kThreads = 128;
inline constexpr int kWarps = kThreads / kWarpSize;
inline constexpr int kRowsOfWarp = 16;
inline constexpr int kRows = kWarps * kRowsOfWarp;
inline constexpr int kChunk = 8;           // elements of 16 bytes
inline constexpr float kNoWeight = -1.0F;  // of a hidden or dropped key, in a recomputed block

// kWidth: of rows in shared memory; those of the call may be shorter.
template <int kWidth>
struct Tile {
  static constexpr int kKeys = kWidth <= 128 ? 64 : 16;
  static constexpr int kElements = kKeys * kWidth;  // of K or V
  static constexpr int kQueryElements = kRows * kWidth;
  // Of the queries, and of two stages of K and V.
  static constexpr int kAllElements = kQueryElements + 4 * kElements;
  // Weights of a recomputed block lie where the second stage would be.
  static_assert(2 * kElements * sizeof(uint16_t) >= kRows * kKeys * sizeof(float));

  // The chunks of eight rows lie in different banks, as load_matrix_x4() needs it.
  static __device__ __forceinline__ int at(int row, int chunk) {
    return row * kWidth + (chunk ^ (row % 8)) * kChunk;
  }
};

// Starts to copy `kTileRows` rows, beginning at row_at(0): elements beyond `width` and rows for
// which row_at() is negative become zeros.
template <class T, int kWidth, int kTileRows, class RowAt>
__device__ __forceinline__ void copy_tile(const void* data, int width, T* tile,
                                          const RowAt& row_at) {
  constexpr int kChunks = kWidth / kChunk;
#pragma unroll 4
  for (int i = thread_index(); i < kTileRows * kChunks; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    const int64_t start = row_at(row);
    const int left = width - chunk * kChunk;
    const int elements = start < 0 || left < 0 ? 0 : left < kChunk ? left : kChunk;
    const T* const from =
        static_cast<const T*>(data) + (elements == 0 ? 0 : start + chunk * kChunk);
    copy_async<16>(tile + Tile<kWidth>::at(row, chunk), from,
                   elements * static_cast<int>(sizeof(T)));
  }
}

// The rows of this warp in a tile of kRows rows.
template <int kWidth, class T>
__device__ __forceinline__ const T* rows_of_warp(const T* tile) {
  return tile + warp() * kRowsOfWarp * kWidth;
}

// scores = Q K^T of 16 rows and 8 * kTiles keys, both tiles of their own.
template <class T, int kWidth, int kTiles>
__device__ __forceinline__ void multiply_keys(const T* queries, const T* keys, int width,
                                              float (&scores)[kTiles][4]) {
  using Shape = Tile<kWidth>;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[n][i] = 0.0F;
  }
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    if (k * 16 >= width) break;
    uint32_t a[4];
    load_matrix_x4(a, queries + Shape::at(lane() % 16, 2 * k + lane() / 16));
#pragma unroll
    for (int n = 0; n < kTiles / 2; ++n) {
      uint32_t b[4];
      load_matrix_x4(
          b, keys + Shape::at(n * 16 + lane() / 16 * 8 + lane() % 8, 2 * k + lane() / 8 % 2));
      mma_m16n8k16<T>(scores[2 * n], a, b[0], b[1]);
      mma_m16n8k16<T>(scores[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// out += P V, with the weights P of the 16 rows of a warp and 8 * kTiles keys.
template <class T, int kWidth, int kTiles>
__device__ __forceinline__ void multiply_values(const float (&weights)[kTiles][4], const T* values,
                                                int width, float (&out)[kWidth / 8][4]) {
  using Shape = Tile<kWidth>;
#pragma unroll
  for (int k = 0; k < kTiles / 2; ++k) {
    const uint32_t a[4] = {pack<T>(weights[2 * k][0], weights[2 * k][1]),
                           pack<T>(weights[2 * k][2], weights[2 * k][3]),
                           pack<T>(weights[2 * k + 1][0], weights[2 * k + 1][1]),
                           pack<T>(weights[2 * k + 1][2], weights[2 * k + 1][3])};
#pragma unroll
    for (int n = 0; n < kWidth / 16; ++n) {
      if (n * 16 >= width) break;
      uint32_t b[4];
      load_matrix_x4_transposed(
          b, values + Shape::at(k * 16 + lane() / 8 % 2 * 8 + lane() % 8, 2 * n + lane() / 16));
      mma_m16n8k16<T>(out[2 * n], a, b[0], b[1]);
      mma_m16n8k16<T>(out[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// The same key by key, without those of kNoWeight. `exchange` is shared memory of the warp with
// room for the weights.
template <class T, int kWidth, int kTiles>
__device__ __forceinline__ void add_values_singly(const float (&weights)[kTiles][4],
                                                  const T* values, float* exchange,
                                                  float (&out)[kWidth / 8][4]) {
  using Shape = Tile<kWidth>;
  constexpr int kKeys = 8 * kTiles;
  const int row = lane() / 4, pair = 2 * (lane() % 4);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      exchange[(row + i / 2 * 8) * kKeys + n * 8 + pair + i % 2] = weights[n][i];
    }
  }
  sync_warp();
  for (int key = 0; key < kKeys; ++key) {
    const float weight[2] = {exchange[row * kKeys + key], exchange[(row + 8) * kKeys + key]};
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (weight[i / 2] < 0.0F) continue;
        out[n][i] += weight[i / 2] * to_float(values[Shape::at(key, n) + pair + i % 2]);
      }
    }
  }
}

// The results of a warp, per thread for rows lane / 4 and lane / 4 + 8.
template <int kWidth>
struct Sums {
  float largest[2];
  float weights[2];          // this thread's part
  float out[kWidth / 8][4];  // a tile of 8 columns: (row 0, 2 columns), (row 1, 2 columns)
};

// A step of the online softmax (arXiv:1805.02867): turns scores into weights relative to the
// largest score so far, and scales the sums to it. A hidden key has the score -inf. most: the
// largest score of each row among those of this thread, or NaN. keeps(half, key): whether dropout
// keeps this weight.
template <bool kSingly, int kTiles, int kWidth, class Keeps>
__device__ __forceinline__ void add_weights(float (&scores)[kTiles][4], float (&most)[2],
                                            float to_power, Sums<kWidth>& sums,
                                            const Keeps& keeps) {
  float reference[2], shrink[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int mask = 1; mask < 4; mask *= 2) {
      const float other = shuffle_xor(most[half], mask);
      if (!(other <= most[half])) most[half] = other;
    }
    const float before = sums.largest[half];
    const float after = most[half] <= before ? before : most[half];
    shrink[half] = before == after ? 1.0F : exp2_approx((before - after) * to_power);
    sums.largest[half] = after;
    // While a row has seen nothing, its scores are -inf, and so their weights are 0.
    reference[half] = after == -INFINITY ? 0.0F : after;
    sums.weights[half] *= shrink[half];
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int half = i / 2;
      const bool hidden = scores[n][i] == -INFINITY;
      const float weight = exp2_approx((scores[n][i] - reference[half]) * to_power);
      sums.weights[half] += weight;
      scores[n][i] = kSingly && hidden ? kNoWeight : weight;
      if (!hidden && !keeps(half, n * 8 + 2 * (lane() % 4) + i % 2)) {
        scores[n][i] = kSingly ? kNoWeight : 0.0F;
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums.out[n][i] *= shrink[i / 2];
  }
}

}  // namespace multihead::cuda::mma
