// This header applies the options of a call to a warp's fragment of scores: 16 rows of 8 * kTiles
// columns, the sums of mma.sync. A thread has scores[n][i], in row lane / 4 + 8 * (i / 2) and
// column 8 n + 2 * (lane % 4) + i % 2. Rows are queries and columns are keys, except in the kernel
// of d_k and d_v, where rows are keys.
//
// Each option is one pass over the fragment. The pass tests once whether the call has the option.
// Tests, loads and 64-bit addresses for each single score took ten times as long as the products.
// The loads of a fragment do not depend on each other, and kernels start them before the products.
#pragma once

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>

#include "cuda/device/device.h"
#include "cuda/mma/tile.h"
#include "cuda/params.h"
#include "cuda/rows.h"
#include "rules/attention_params.h"
#include "rules/dropout_mask.h"
#include "rules/visibility.h"

namespace multihead::cuda::mma {

// True if a call has more than visibility by position, sinks and a positive scale; then kernels
// with kOptions serve it.
inline bool has_options(const rules::AttentionParams& call) {
  return call.changes_scores() || call.mask.given() || call.dropout.given() ||
         !(call.scale.queries * call.scale.scores > 0.0F);
}

// The unit of the scores that scale_scores() leaves: positive. 1 if a pass changes scores.
template <bool kOptions>
__device__ __forceinline__ float unit_of_scores(const rules::AttentionParams& call) {
  const float factor = call.scale.queries * call.scale.scores;
  return kOptions && (call.changes_scores() || !(factor > 0.0F)) ? 1.0F : factor;
}

// tanh(x) with a relative error below 2^-20, without branches.
__device__ __forceinline__ float tanh_approx(float x) {
  // 2^-22 up to 0.55: tanh(x) = x + x^3 p(x^2), p through the Chebyshev points of [0, 0.55^2].
  const float square = x * x;
  float p = 0.017295752F;
  p = fmaf(p, square, -0.053146746F);
  p = fmaf(p, square, 0.13328464F);
  p = fmaf(p, square, -0.33333287F);
  const float small = fmaf(p * square, x, x);
  // 2^-21 from there on: 1 - 2 e / (1 + e) with e = exp(-2 |x|).
  const float e = exp2_approx(fabsf(x) * (-2.0F * kLog2E));
  const float large = copysignf(fmaf(-2.0F * e, reciprocal_approx(1.0F + e), 1.0F), x);
  return fabsf(x) < 0.55F ? small : large;
}

// Steps 2 and 3 at the head of multihead/attention.h, without scale.softmax, in units of
// unit_of_scores(). at_ratio(n, i, r): called for each score of a call with softcap; the score's
// derivative by the score before softcap is 1 - r^2.
template <int kTiles, class AtRatio>
__device__ __forceinline__ void scale_scores(const rules::AttentionParams& call,
                                             float (&scores)[kTiles][4], const AtRatio& at_ratio) {
  if (unit_of_scores<true>(call) == 1.0F) {
    // Two factors, because their product may be 0 although the scaled score is not.
    each_of_fragment<kTiles>([&](int n, int i) {
      scores[n][i] = scores[n][i] * call.scale.queries * call.scale.scores;
    });
  }
  if (call.softcap > 0.0F) {
    // The inverse of the smallest caps is not infinite, so that a score of 0 stays 0.
    const float inverse = fminf(1.0F / call.softcap, FLT_MAX);
    each_of_fragment<kTiles>([&](int n, int i) {
      const float ratio = tanh_approx(scores[n][i] * inverse);
      scores[n][i] = ratio * call.softcap;
      at_ratio(n, i, ratio);
    });
  }
}

// A fragment of the mask or of the bias. A kernel with fragments of both at the same time needs
// more registers than three blocks per multiprocessor have.
template <int kTiles>
struct FragmentTerms {
  // The bits of the bias of scores[n][i]; or, in byte i % 2 of of[n][i / 2], its mask.
  uint32_t of[kTiles][4];
};

// Adds the bias. -inf hides a key even if its score is NaN.
template <int kTiles>
__device__ __forceinline__ void add_bias(const FragmentTerms<kTiles>& terms,
                                         float (&scores)[kTiles][4]) {
  each_of_fragment<kTiles>([&](int n, int i) {
    const auto bias = std::bit_cast<float>(terms.of[n][i]);
    scores[n][i] = bias == -INFINITY ? -INFINITY : scores[n][i] + bias;
  });
}

// Hides keys by the mask.
template <int kTiles>
__device__ __forceinline__ void hide_masked(const FragmentTerms<kTiles>& terms,
                                            float (&scores)[kTiles][4]) {
  each_of_fragment<kTiles>([&](int n, int i) {
    const uint32_t byte = terms.of[n][i / 2] & (i % 2 == 0 ? 0xFFU : 0xFF00U);
    if (byte == 0) scores[n][i] = -INFINITY;
  });
}

// Replaces -inf by the least float.
template <int kTiles>
__device__ __forceinline__ void raise_lowest(float (&scores)[kTiles][4]) {
  each_of_fragment<kTiles>([&](int n, int i) {
    if (scores[n][i] == -INFINITY) scores[n][i] = -FLT_MAX;
  });
}

// The weights of a fragment that dropout keeps: bit 4 n + i belongs to [n][i].
struct KeptWeights {
  uint32_t bits = 0;
  __device__ __forceinline__ bool at(int n, int i) const {
    return (bits >> static_cast<uint32_t>(4 * n + i) & 1U) != 0;
  }
};

// Returns, as bits 0 to 3, the keys of 4 * group .. 4 * group + 3 whose weights dropout keeps. Keys
// are counted in the whole problem.
__device__ __forceinline__ uint32_t kept_of_group(const rules::AttentionParams& call,
                                                  const Entry& entry, int64_t head, int64_t query,
                                                  int64_t group) {
  const auto kept = rules::dropout_keeps_four(entry.dropout_seed, call.first.batch + entry.batch,
                                              call.first.head + head, call.first.query + query,
                                              group, call.dropout.threshold);
  return (kept[0] ? 1U : 0U) | (kept[1] ? 2U : 0U) | (kept[2] ? 4U : 0U) | (kept[3] ? 8U : 0U);
}

// The keys of a tile that a row sees by position: begin .. end - 1.
struct KeyPart {
  int begin, end;
  __device__ __forceinline__ bool contains(int at) const { return at >= begin && at < end; }
};
// `first`: the first of the tile's keys.
__device__ __forceinline__ KeyPart part_of(const rules::KeyRange& seen, int64_t first, int keys) {
  return {static_cast<int>(rules::limited(seen.first - first, 0, keys)),
          static_cast<int>(rules::limited(seen.last - first, 0, keys))};
}

// The options of the two query rows of a thread, kept in registers.
struct QueryOptions {
  const rules::AttentionParams& call;
  const Entry& entry;
  int heads[2] = {};
  uint32_t queries[2] = {};

  __device__ __forceinline__ void set(int half, int64_t head, int64_t query) {
    heads[half] = static_cast<int>(head);
    queries[half] = static_cast<uint32_t>(query);
  }
  // Address of a row at key 0. Computed once a step: registers are scarcer than instructions.
  template <class T>
  __device__ __forceinline__ const T* row(const rules::Broadcast<T>& terms, int half) const {
    return terms.row(entry.batch, heads[half], queries[half]);
  }

  // Starts to load the bias, or the mask if there is no bias, of a tile of keys from `first`, an
  // even number, on. whole: all rows of the warp see all keys of the tile, so that all addresses
  // are valid. part(half): the keys that a row sees by position; others are not read.
  template <int kTiles, class PartOf>
  __device__ __forceinline__ void load(int64_t first, bool whole, const PartOf& part,
                                       FragmentTerms<kTiles>& terms) const {
    if (call.bias.given()) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (whole && in_pairs(call.bias)) {
          struct alignas(8) Pair {
            uint32_t of[2];
          };
          const float* const from = row(call.bias, half) + first + 2 * (lane() % 4);
#pragma unroll
          for (int n = 0; n < kTiles; ++n) {
            const Pair pair = *reinterpret_cast<const Pair*>(from + 8 * n);
            terms.of[n][2 * half] = pair.of[0];
            terms.of[n][2 * half + 1] = pair.of[1];
          }
        } else {
          load_singly<kTiles>(call.bias, half, first, part(half), [&](int n, int i, float bias) {
            terms.of[n][2 * half + i] = std::bit_cast<uint32_t>(bias);
          });
        }
      }
    } else if (call.mask.given()) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (whole && in_pairs(call.mask)) {
          const uint8_t* const from = row(call.mask, half) + first + 2 * (lane() % 4);
#pragma unroll
          for (int n = 0; n < kTiles; ++n) {
            terms.of[n][half] = *reinterpret_cast<const uint16_t*>(from + 8 * n);
          }
        } else {
          load_singly<kTiles>(call.mask, half, first, part(half), [&](int n, int i, uint32_t byte) {
            terms.of[n][half] = i == 0 ? byte : terms.of[n][half] | byte << 8U;
          });
        }
      }
    }
  }

  // Applies all options but dropout and scale.softmax to the scores of a tile. kKeepLow: scores of
  // -inf become the least float before keys are hidden, so that only hidden keys have -inf. For
  // at_ratio see scale_scores().
  template <bool kKeepLow, int kTiles, class PartOf, class AtRatio>
  __device__ __forceinline__ void apply(int64_t first, const PartOf& part,
                                        const FragmentTerms<kTiles>& terms,
                                        float (&scores)[kTiles][4], const AtRatio& at_ratio) const {
    scale_scores(call, scores, at_ratio);
    if (call.alibi_slopes != nullptr) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // Exact up to a distance of 2^24, and from there on with a relative error of 2^-23.
        const int64_t at = queries[half] + entry.alibi_shift;
        const auto position = static_cast<float>(at - first - 2 * (lane() % 4));
        const float slope = call.alibi_slopes[heads[half]];
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float distance = fabsf(position - static_cast<float>(8 * n + i));
            scores[n][2 * half + i] -= slope * distance;
          }
        }
      }
    }
    if (kKeepLow) raise_lowest(scores);
    if (call.bias.given()) {
      add_bias(terms, scores);
      if (call.mask.given()) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          load_singly<kTiles>(call.mask, half, first, part(half), [&](int n, int i, uint8_t byte) {
            if (byte == 0) scores[n][2 * half + i] = -INFINITY;
          });
        }
      }
    } else if (call.mask.given()) {
      hide_masked(terms, scores);
    }
  }

  // Returns the weights of a tile that dropout keeps. All lanes take part.
  template <int kTiles>
  __device__ __forceinline__ KeptWeights kept(int64_t first) const {
    const int side = lane() % 2;
    const int64_t key = call.first.key + first;
    uint32_t upper = 0, lower = 0;  // bit 4 n + i: column 8 n + 2 * (lane % 4) + i of a row
    if (key % 4 == 0) {
      // Two lanes hold four adjacent keys of two rows. Each hashes for one row and passes the bits
      // on.
      const int head = side == 0 ? heads[0] : heads[1];
      const uint32_t query = side == 0 ? queries[0] : queries[1];
      uint32_t bits = 0;
#pragma unroll 1
      for (int n = 0; n < kTiles; ++n) {
        const int64_t group = key / 4 + 2 * n + lane() % 4 / 2;
        bits |= kept_of_group(call, entry, head, query, group) << (4 * n);
      }
      const uint32_t others = shuffle_xor(bits, 1);
      upper = (side == 0 ? bits : others) >> (2 * side);
      lower = (side == 0 ? others : bits) >> (2 * side);
    } else {
#pragma unroll 1
      for (int at = 0; at < 2 * kTiles; ++at) {
        const int64_t column = first + at / 2 * 8 + 2 * (lane() % 4) + at % 2;
        const int bit = at / 2 * 4 + at % 2;
        upper |= (keeps(call, entry, heads[0], queries[0], column) ? 1U : 0U) << bit;
        lower |= (keeps(call, entry, heads[1], queries[1], column) ? 1U : 0U) << bit;
      }
    }
    return {(upper & 0x33333333U) | (lower & 0x33333333U) << 2U};
  }

 private:
  // True if two adjacent keys, the first one even, lie in one aligned pair of numbers.
  template <class T>
  static __device__ __forceinline__ bool in_pairs(const rules::Broadcast<T>& terms) {
    return terms.stride[3] == 1 && reinterpret_cast<uintptr_t>(terms.data) % (2 * sizeof(T)) == 0 &&
           (terms.stride[0] | terms.stride[1] | terms.stride[2]) % 2 == 0;
  }

  // Calls set(n, i, value) for the thread's columns 8 n + 2 * (lane % 4) + i of a tile.
  template <int kTiles, class T, class Set>
  __device__ __forceinline__ void load_singly(const rules::Broadcast<T>& terms, int half,
                                              int64_t first, const KeyPart& part,
                                              const Set& set) const {
    const int64_t stride = terms.stride[3];
    const T* from = row(terms, half) + (first + 2 * (lane() % 4)) * stride;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const bool seen = part.contains(8 * n + 2 * (lane() % 4) + i);
        set(n, i, seen ? from[i * stride] : T{});
      }
      // The compiler would keep the products 8 * n * stride in registers.
      from += 8 * stride;
    }
  }
};

// Clears, or marks, the weights that dropout does not keep.
template <bool kSingly, int kTiles>
__device__ __forceinline__ void drop_weights(const KeptWeights& kept, float (&weights)[kTiles][4]) {
  each_of_fragment<kTiles>([&](int n, int i) {
    if (!kept.at(n, i)) weights[n][i] = kSingly ? kNoWeight : 0.0F;
  });
}

// Multiplies the gradients of kept weights by `scale` and clears the gradients of dropped weights.
template <int kTiles>
__device__ __forceinline__ void scale_kept(const KeptWeights& kept, float scale,
                                           float (&gradients)[kTiles][4]) {
  each_of_fragment<kTiles>(
      [&](int n, int i) { gradients[n][i] = kept.at(n, i) ? gradients[n][i] * scale : 0.0F; });
}

}  // namespace multihead::cuda::mma
