// The backward kernels through mma.sync: tiles in shared memory, and functions on sums that both
// kernels use.
//
// A block keeps 64 rows of two tensors, 16 for each warp, and loops over the rows of the two other
// tensors ("passing" rows), kStep at a time. A warp has both products of its 16 kept rows with
// kStep passing rows in registers, in the layout that the next product needs for its left operand,
// so weights and gradients never go through shared memory.
//
//                  kept   passing       products of a step                   sums of a warp
//   d_k and d_v    K, V   Q, d_out      K Q^T, V d_out^T                     P^T d_out, dS^T Q
//   d_q            Q, d_out   K, V      Q K^T, d_out V^T                     dS K
//
// Passing rows are read twice from shared memory: untransposed (ldmatrix) for the first two
// products, and transposed (ldmatrix.trans) for the sums. Per thread, sums take d / 2 registers of
// each gradient and kStep of both products:
//
//   d     kStep   registers of sums: d_k and d_v, d_q   shared memory
//   64       64   64 + 64          32 + 64               48 KiB
//   128      32   128 + 32         64 + 32               64 KiB
//   256      16   128 + 16         128 + 16              96 KiB; d_k and d_v by two kernels
#pragma once

#include <cstdint>

#include "cuda/backward_params.h"
#include "cuda/device/device.h"
#include "cuda/mma/tile.h"
#include "cuda/rows.h"
#include "rules/attention_params.h"

namespace multihead::cuda::mma {

// kWidth: row width in shared memory; rows of the call may be shorter.
template <int kWidth>
struct GradientTile {
  static constexpr int kStep = kWidth <= 64 ? 64 : kWidth <= 128 ? 32 : 16;
  static constexpr int kTiles = kStep / 8;                 // mma tiles of 8 passing rows
  static constexpr int kKeptElements = kRows * kWidth;     // per tensor
  static constexpr int kPassingElements = kStep * kWidth;  // per tensor
  // Passing rows have two stages: while one is used, the next is copied.
  static constexpr int kAllElements = 2 * kKeptElements + 4 * kPassingElements;
};

// Start of a stage: it holds the passing rows of two tensors.
template <class T, int kWidth>
__device__ __forceinline__ T* passing_rows(T* shared, int stage) {
  using Shape = GradientTile<kWidth>;
  return shared + 2 * Shape::kKeptElements + stage * 2 * Shape::kPassingElements;
}

// weight = exp2(of_product * product - of_reference * reference). Near the largest float, one of
// both may overflow; then the gradient is not finite, and its row is recomputed.
struct WeightFactors {
  float of_product, of_reference;
};
__device__ __forceinline__ WeightFactors weight_factors(const rules::ScaleFactors& scale) {
  const float to_power = scale.softmax * kLog2E;
  return {scale.queries * scale.scores * to_power, to_power};
}

template <int kCount>
__device__ __forceinline__ void clear(float (&sums)[kCount][4]) {
  each_of_fragment<kCount>([&](int n, int i) { sums[n][i] = 0.0F; });
}

// Bit r is set if row r of the warp's 16 rows has a sum that is not finite.
template <int kTiles>
__device__ __forceinline__ uint32_t rows_not_finite(const float (&sums)[kTiles][4]) {
  uint32_t rows = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    bool finite = true;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float first = sums[n][2 * half], second = sums[n][2 * half + 1];
      finite = finite && first - first == 0.0F && second - second == 0.0F;
    }
    // Each row is spread over four lanes.
    const uint32_t lanes = ballot(!finite);
    for (int row = 0; row < 8; ++row) {
      if ((lanes >> (4 * row) & 0xFU) != 0) rows |= 1U << (8 * half + row);
    }
  }
  return rows;
}

// Multiplies one of the two rows of a thread's sums by `factor` and stores it.
template <int kTiles>
__device__ __forceinline__ void store_row(const float (&sums)[kTiles][4], int half, float factor,
                                          float* to, int64_t width) {
  struct alignas(8) Pair {
    float first, second;
  };
  const bool aligned = reinterpret_cast<uintptr_t>(to) % sizeof(Pair) == 0;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const int c = n * 8 + 2 * (lane() % 4);
    const Pair pair{sums[n][2 * half] * factor, sums[n][2 * half + 1] * factor};
    if (aligned && c + 1 < width) {
      *reinterpret_cast<Pair*>(to + c) = pair;
      continue;
    }
    if (c < width) to[c] = pair.first;
    if (c + 1 < width) to[c + 1] = pair.second;
  }
}

}  // namespace multihead::cuda::mma
