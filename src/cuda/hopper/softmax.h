// The softmax of the Hopper forward kernel: turns scores into weights, in registers. A thread has
// parts of two rows of a 64-row tile, in the layout of wgmma().
#pragma once

#include <math.h>

#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "cuda/device/device.h"
#include "cuda/device/hopper_device.h"
#include "rules/visibility.h"

namespace multihead::cuda {

// The online softmax of a thread's two rows. Scores are unscaled products; the exponential applies
// the scale.
struct HopperSoftmax {
  float reference[2] = {-std::numeric_limits<float>::infinity(),
                        -std::numeric_limits<float>::infinity()};
  float sum[2] = {0.0F, 0.0F};  // over this thread's columns only

  // Replaces scores by weights. `factor`: the rescale factor for everything summed before.
  template <size_t kCount>
  __device__ __forceinline__ void step(float (&s)[kCount], float scale_log2, float (&factor)[2]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float maximum = reference[row];
#pragma unroll
      for (int i = 0; i < static_cast<int>(kCount); i += 4) {
        maximum = fmaxf(maximum, fmaxf(s[i + 2 * row], s[i + 2 * row + 1]));
      }
      maximum = fmaxf(maximum, shuffle_xor(maximum, 1));
      maximum = fmaxf(maximum, shuffle_xor(maximum, 2));
      // Finite if a row has seen no key, or biases of -FLT_MAX: (-inf) - (-inf) would be NaN.
      const float shift = fmaxf(maximum * scale_log2, -FLT_MAX);
      factor[row] = exp2_approx(fmaf(reference[row], scale_log2, -shift));
      reference[row] = maximum;
      float total = sum[row] * factor[row];
#pragma unroll
      for (int i = 0; i < static_cast<int>(kCount); i += 4) {
        float& left = s[i + 2 * row];
        float& right = s[i + 2 * row + 1];
        left = exp2_approx(fmaf(left, scale_log2, -shift));
        right = exp2_approx(fmaf(right, scale_log2, -shift));
        total += left + right;
      }
      sum[row] = total;
    }
  }
};

// Visible columns of a row's scores: keys of the entry that a query sees, or queries that see a
// key.
struct ColumnRange {
  int first, last;
};

// The keys that a query sees. A window far to the right begins beyond the range of int; such a
// query sees no key.
__device__ __forceinline__ ColumnRange seen_columns(const rules::EntryVisibility& visibility,
                                                    int64_t query) {
  const rules::KeyRange keys = visibility.seen_by(query);
  return {static_cast<int>(rules::least_of(keys.first, visibility.present.last)),
          static_cast<int>(keys.last)};
}

// Replaces scores that are not visible by `hidden`. Columns of s count from first_column.
template <size_t kCount>
__device__ __forceinline__ void hide(float (&s)[kCount], const ColumnRange (&visible)[2],
                                     int first_column, float hidden) {
  const int column = first_column + 2 * (hopper_lane() % 4);
#pragma unroll
  for (int i = 0; i < static_cast<int>(kCount); ++i) {
    const ColumnRange& range = visible[i / 2 % 2];
    const int offset = i / 4 * 8 + i % 2;
    if (offset < range.first - column || offset >= range.last - column) {
      s[i] = hidden;
    }
  }
}

// Rounds weights to T and packs them as the left operand of the next product.
template <class T, size_t kCount>
__device__ __forceinline__ void pack_weights(const float (&s)[kCount],
                                             uint32_t (&weights)[kCount / 8][4]) {
#pragma unroll
  for (int i = 0; i < static_cast<int>(kCount / 8); ++i) {
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      weights[i][pair] = pack<T>(s[8 * i + 2 * pair], s[8 * i + 2 * pair + 1]);
    }
  }
}

}  // namespace multihead::cuda
