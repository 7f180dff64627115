// Tiles of bf16 or f16 rows in shared memory, and their products by mma.sync. Each warp has 16
// rows.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cuda/device/device.h"
#include "rules/attention_params.h"
#include "rules/visibility.h"

namespace multihead::cuda::mma {

inline constexpr int kThreads = 128;
inline constexpr int kWarps = kThreads / kWarpSize;
inline constexpr int kRowsOfWarp = 16;
inline constexpr int kRows = kWarps * kRowsOfWarp;
inline constexpr int kChunk = 8;           // elements in 16 bytes
inline constexpr float kNoWeight = -1.0F;  // marks a hidden or dropped key in a recomputed block

// Calls use(n, i) for each number [n][i] of a thread's part of a fragment.
template <int kTiles, class Use>
__device__ __forceinline__ void each_of_fragment(const Use& use) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) use(n, i);
  }
}

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

// Bytes of a chunk that lie within a row of `width` elements.
template <class T>
__device__ __forceinline__ int bytes_of_chunk(int width, int chunk) {
  const int left = width - chunk * kChunk;
  return (left < 0 ? 0 : left < kChunk ? left : kChunk) * static_cast<int>(sizeof(T));
}

// Starts to copy `kTileRows` rows. row_at(i): offset of row i in `data`, or negative. Elements
// beyond `width`, and rows with a negative offset, become zeros.
template <class T, int kWidth, int kTileRows, int kOfThreads = kThreads, class RowAt>
__device__ __forceinline__ void copy_tile(const void* data, int width, T* tile,
                                          const RowAt& row_at) {
  constexpr int kChunks = kWidth / kChunk;
  constexpr int kRowsAtOnce = kOfThreads / kChunks;
  static_assert(kTileRows % kRowsAtOnce == 0);
  const int chunk = thread_index() % kChunks, own = thread_index() / kChunks;
  const int bytes = bytes_of_chunk<T>(width, chunk);
  const T* const from = static_cast<const T*>(data) + chunk * kChunk;
#pragma unroll 4
  for (int i = 0; i < kTileRows / kRowsAtOnce; ++i) {
    const int row = own + i * kRowsAtOnce;
    const int64_t start = row_at(row);
    // Nothing is read at the address of a row that does not exist.
    copy_async<16>(tile + Tile<kWidth>::at(row, chunk), from + (start < 0 ? 0 : start),
                   start < 0 ? 0 : bytes);
  }
}

// Copies tiles of consecutive rows of a tensor. A thread always copies the same chunk of its rows,
// so its addresses advance by constants.
template <class T, int kWidth>
struct RowCopier {
  static constexpr int kChunks = kWidth / kChunk;
  static constexpr int kRowsAtOnce = kThreads / kChunks;
  // Rows at this distance have the same place of a chunk, see Tile::at().
  static constexpr int kSamePlace = kRowsAtOnce % 8 == 0 ? 1 : 2;  // in units of kRowsAtOnce
  static_assert(kRowsAtOnce * kSamePlace % 8 == 0);

  const T* from;  // this thread's chunk of the tensor's first row
  int64_t stride;
  int bytes;

  // `start`: offset of the first row.
  static __device__ __forceinline__ RowCopier of(const rules::StoredRows& rows, int64_t start,
                                                 int64_t width) {
    const int chunk = thread_index() % kChunks;
    return {static_cast<const T*>(rows.data) + start + chunk * kChunk, rows.stride[2],
            bytes_of_chunk<T>(static_cast<int>(width), chunk)};
  }
  // Starts to copy rows first .. first + kTileRows - 1. Rows from `end` on become zeros.
  template <int kTileRows>
  __device__ __forceinline__ void copy(int64_t first, int64_t end, T* tile) const {
    const int chunk = thread_index() % kChunks, own = thread_index() / kChunks;
    const int rows = static_cast<int>(rules::least_of(end - first, kTileRows)) - own;
    const T* source = from + (first + own) * stride;
    T* to[kSamePlace];
#pragma unroll
    for (int i = 0; i < kSamePlace; ++i) {
      to[i] = tile + Tile<kWidth>::at(own + i * kRowsAtOnce, chunk);
    }
#pragma unroll
    for (int i = 0; i < kTileRows / kRowsAtOnce; ++i) {
      constexpr int kRowElements = kRowsAtOnce * kWidth;
      // Nothing is read at the address of a row that does not exist.
      copy_async<16>(to[i % kSamePlace] + i / kSamePlace * kSamePlace * kRowElements, source,
                     i * kRowsAtOnce < rows ? bytes : 0);
      source += kRowsAtOnce * stride;
    }
  }
};

// A lane reads the matrices of its fragments from here: `offset` is the place in shared memory, in
// bytes, of chunk 0 or 1 of a row of a tile. Tiles begin at a multiple of a row. So chunks 2 i and
// 2 i + 1 of the row lie at the offsets of its chunks 0 and 1, XOR 32 i, and the same chunk 8 rows
// below has a constant distance. Thus one instruction serves all rows. Offsets computed for each
// load took a fifth of a kernel's instructions.
template <class T, int kWidth>
struct FragmentRows {
  int offset;

  static __device__ __forceinline__ FragmentRows of(const T* tile, int row, int chunk) {
    const auto* const at = reinterpret_cast<const std::byte*>(tile + Tile<kWidth>::at(row, chunk));
    return {static_cast<int>(at - shared_memory())};
  }
  // `below`: a multiple of 8.
  __device__ __forceinline__ const void* at(int pair, int below) const {
    constexpr int kPairBytes = 2 * kChunk * static_cast<int>(sizeof(T));
    return shared_memory() + (offset ^ (pair * kPairBytes)) +
           below * kWidth * static_cast<int>(sizeof(T));
  }
};

// The rows of this warp in a tile of kRows rows.
template <int kWidth, class T>
__device__ __forceinline__ const T* rows_of_warp(const T* tile) {
  return tile + warp() * kRowsOfWarp * kWidth;
}

// scores = Q K^T for 16 rows and 8 * kTiles keys. Columns beyond the width of the rows are zeros in
// both tiles and are multiplied too: a test of the width would split the loop into blocks of two
// products, and no load could move ahead of its use.
template <class T, int kWidth, int kTiles>
__device__ __forceinline__ void multiply_keys(const T* queries, const T* keys,
                                              float (&scores)[kTiles][4]) {
  using Rows = FragmentRows<T, kWidth>;
  const Rows left = Rows::of(queries, lane() % 16, lane() / 16);
  const Rows right = Rows::of(keys, lane() / 16 * 8 + lane() % 8, lane() / 8 % 2);
  each_of_fragment<kTiles>([&](int n, int i) { scores[n][i] = 0.0F; });
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    uint32_t a[4];
    load_matrix_x4(a, left.at(k, 0));
#pragma unroll
    for (int n = 0; n < kTiles / 2; ++n) {
      uint32_t b[4];
      load_matrix_x4(b, right.at(k, n * 16));
      mma_m16n8k16<T>(scores[2 * n], a, b[0], b[1]);
      mma_m16n8k16<T>(scores[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// out += P V, with the weights P of a warp's 16 rows and 8 * kTiles keys. For columns beyond the
// width see multiply_keys().
template <class T, int kWidth, int kTiles>
__device__ __forceinline__ void multiply_values(const float (&weights)[kTiles][4], const T* values,
                                                float (&out)[kWidth / 8][4]) {
  using Rows = FragmentRows<T, kWidth>;
  const Rows right = Rows::of(values, lane() / 8 % 2 * 8 + lane() % 8, lane() / 16);
#pragma unroll
  for (int k = 0; k < kTiles / 2; ++k) {
    const uint32_t a[4] = {pack<T>(weights[2 * k][0], weights[2 * k][1]),
                           pack<T>(weights[2 * k][2], weights[2 * k][3]),
                           pack<T>(weights[2 * k + 1][0], weights[2 * k + 1][1]),
                           pack<T>(weights[2 * k + 1][2], weights[2 * k + 1][3])};
#pragma unroll
    for (int n = 0; n < kWidth / 16; ++n) {
      uint32_t b[4];
      load_matrix_x4_transposed(b, right.at(n, k * 16));
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
  each_of_fragment<kTiles>([&](int n, int i) {
    exchange[(row + i / 2 * 8) * kKeys + n * 8 + pair + i % 2] = weights[n][i];
  });
  sync_warp();
  for (int key = 0; key < kKeys; ++key) {
    const float weight[2] = {exchange[row * kKeys + key], exchange[(row + 8) * kKeys + key]};
    each_of_fragment<kWidth / 8>([&](int n, int i) {
      if (weight[i / 2] < 0.0F) return;
      out[n][i] += weight[i / 2] * to_float(values[Shape::at(key, n) + pair + i % 2]);
    });
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
// running max, and rescales the sums. Scores are given in units of `unit`, which is positive. A
// hidden key has the score -inf.
//
// With kSingly, scores are subtracted before they are multiplied, since scores near the largest
// float would overflow. Otherwise one instruction does both, and the caller checks sound().
template <bool kSingly, int kTiles, int kWidth>
__device__ __forceinline__ void add_weights(float (&scores)[kTiles][4], float unit, float to_power,
                                            Sums<kWidth>& sums) {
  float reference[2], shrink[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // A NaN is no maximum, but its weight is NaN, and so is the sum.
    float most = -INFINITY;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      most = fmaxf(most, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
    }
    most = fmaxf(most, shuffle_xor(most, 1));
    most = fmaxf(most, shuffle_xor(most, 2)) * unit;
    const float before = sums.largest[half];
    const float after = fmaxf(before, most);
    shrink[half] = before == after ? 1.0F : exp2_approx((before - after) * to_power);
    sums.largest[half] = after;
    // While a row has seen no key, its scores are -inf; with a reference of 0 their weights are 0.
    reference[half] = after == -INFINITY ? 0.0F : after;
    sums.weights[half] *= shrink[half];
  }
  const float factor = unit * to_power;
  const float shift[2] = {reference[0] * to_power, reference[1] * to_power};
  each_of_fragment<kTiles>([&](int n, int i) {
    const int half = i / 2;
    const bool hidden = scores[n][i] == -INFINITY;
    const float weight = exp2_approx(kSingly ? (scores[n][i] * unit - reference[half]) * to_power
                                             : fmaf(scores[n][i], factor, -shift[half]));
    sums.weights[half] += weight;
    scores[n][i] = kSingly && hidden ? kNoWeight : weight;
  });
  each_of_fragment<kWidth / 8>([&](int n, int i) { sums.out[n][i] *= shrink[i / 2]; });
}

// Adds up the parts that four threads have of the sum of a row's weights. A sum is sound if it is
// finite and positive, or if the row has seen no key; otherwise the row must be recomputed.
template <int kWidth>
__device__ __forceinline__ float sum_of_row(const Sums<kWidth>& sums, int half, bool& sound) {
  float sum = sums.weights[half];
  sum += shuffle_xor(sum, 1);
  sum += shuffle_xor(sum, 2);
  sound = (sum > 0.0F && sum < INFINITY) || (sum == 0.0F && sums.largest[half] == -INFINITY);
  return sum;
}

// The rows of a thread that have a sound sum.
struct Sound {
  bool row[2];
};

// True if this thread sees that a row must be recomputed.
template <int kWidth>
__device__ __forceinline__ bool is_wrong(const Sums<kWidth>& sums, int half, const Sound& sound) {
  bool wrong = !sound.row[half];
#pragma unroll
  for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
    for (int i = 2 * half; i < 2 * half + 2; ++i) {
      wrong = wrong || sums.out[n][i] != sums.out[n][i];
    }
  }
  return wrong;
}

// True if all of this thread's columns of a row are NaN; true if it has none.
template <int kWidth>
__device__ __forceinline__ bool all_nan(const Sums<kWidth>& sums, int half, int64_t width) {
  bool all = true;
#pragma unroll
  for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
    for (int i = 2 * half; i < 2 * half + 2; ++i) {
      all = all && (n * 8 >= width || sums.out[n][i] != sums.out[n][i]);
    }
  }
  return all;
}

}  // namespace multihead::cuda::mma
