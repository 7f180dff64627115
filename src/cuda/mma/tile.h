// Tiles of bf16 or f16 rows in shared memory, and their products by mma.sync. Each warp has 16
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
inline constexpr int kChunk = 8;           // elements in 16 bytes
inline constexpr float kNoWeight = -1.0F;  // marks a hidden or dropped key in a recomputed block

// kWidth: row width in shared memory; rows of the call may be shorter.
template <int kWidth>
struct Tile {
  static constexpr int kKeys = kWidth <= 128 ? 64 : 16;
  static constexpr int kElements = kKeys * kWidth;  // K or V of a stage
  static constexpr int kQueryElements = kRows * kWidth;
  // The queries, and two stages of K and V.
  static constexpr int kAllElements = kQueryElements + 4 * kElements;
  // The weights of a recomputed block lie where the second stage would be.
  static_assert(2 * kElements * sizeof(uint16_t) >= kRows * kKeys * sizeof(float));

  // Offset of a chunk. Chunk `chunk` of eight consecutive rows lies in different banks, so that
  // load_matrix_x4() has no bank conflicts.
  static __device__ __forceinline__ int at(int row, int chunk) {
    return row * kWidth + (chunk ^ (row % 8)) * kChunk;
  }
};

// Starts to copy `kTileRows` rows. row_at(i): offset of row i in `data`, or negative. Elements
// beyond `width`, and rows with a negative offset, become zeros.
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

// scores = Q K^T for 16 rows and 8 * kTiles keys.
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

// out += P V, with the weights P of a warp's 16 rows and 8 * kTiles keys.
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

// out += P V, key by key, skipping weights of kNoWeight. `exchange`: shared memory of the warp with
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

// The results of a warp. Each thread has parts of rows lane / 4 and lane / 4 + 8.
template <int kWidth>
struct Sums {
  float largest[2];
  float weights[2];          // this thread's part
  float out[kWidth / 8][4];  // per 8 columns: 2 columns of the first row, 2 of the second
};

// A step of the online softmax (arXiv:1805.02867): turns scores into weights relative to the
// running max, and rescales the sums. A hidden key has the score -inf. most: this thread's largest
// score of each row, or NaN. keeps(half, key): whether dropout keeps this weight.
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
    // While a row has seen no key, its scores are -inf; with a reference of 0 their weights are 0.
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
