// What is done to a tile of transposed scores, keys in rows and queries in columns, between the two
// products: the passes of the options, and the online softmax.
#if defined(MULTIHEAD_CPU_ATTENTION_BLOCK_SCORE_PASSES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_ATTENTION_BLOCK_SCORE_PASSES_INL_H_
#undef MULTIHEAD_CPU_ATTENTION_BLOCK_SCORE_PASSES_INL_H_
#else
#define MULTIHEAD_CPU_ATTENTION_BLOCK_SCORE_PASSES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu/kernels.h"
#include "cpu/simd/file_namespace.h"
#include "cpu/simd/math-inl.h"
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/tile_size.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

// ---- Passes between the two products, over a tile of transposed scores: keys in rows, queries in
// columns. A call without options needs no pass.

struct ScoreTile {
  float* scores;  // [keys][stride]
  size_t stride;  // floats from one key to the next
  int64_t first_key;
  size_t keys;
  size_t lanes;  // queries with padding: a whole number of vectors
  size_t rows;   // queries without padding

  // Returns keys first .. last - 1 of the tile.
  ScoreTile part(int64_t first, int64_t last) const {
    ScoreTile result = *this;
    result.scores += static_cast<size_t>(first - first_key) * stride;
    result.first_key = first;
    result.keys = static_cast<size_t>(last - first);
    return result;
  }
  // Returns one vector of lanes.
  ScoreTile vector(size_t lane, size_t count) const {
    ScoreTile result = *this;
    result.scores += lane;
    result.lanes = count;
    result.rows = rows > lane ? (rows - lane < count ? rows - lane : count) : 0;
    return result;
  }
};

// s *= factor
template <class D>
HWY_NOINLINE void scale_scores(D d, const ScoreTile& tile, float factor) {
  const auto by = hn::Set(d, factor);
  for (size_t j = 0; j < tile.keys; ++j) {
    float* row = tile.scores + j * tile.stride;
    for (size_t lane = 0; lane < tile.lanes; lane += hn::Lanes(d)) {
      hn::StoreU(hn::Mul(hn::LoadU(d, row + lane), by), d, row + lane);
    }
  }
}

// s = cap * tanh(s / cap)
template <class D>
HWY_NOINLINE void cap_scores(D d, const ScoreTile& tile, float cap) {
  const ScoreCap score_cap(cap);
  for (size_t j = 0; j < tile.keys; ++j) {
    float* row = tile.scores + j * tile.stride;
    for (size_t lane = 0; lane < tile.lanes; lane += hn::Lanes(d)) {
      hn::StoreU(cap_score(d, score_cap, hn::LoadU(d, row + lane)), d, row + lane);
    }
  }
}

// s -= slope[lane] * |position[lane] - key|. Positions are subtracted as integers: in a ring they
// grow beyond 2^24, where floats do not represent every integer. Distances fit in 32 bits.
template <class D>
HWY_NOINLINE void add_alibi(D d, const ScoreTile& tile, const float* HWY_RESTRICT slope,
                            const int32_t* HWY_RESTRICT position) {
  const hn::RebindToSigned<D> di;
  const size_t vector = hn::Lanes(d);
  for (size_t lane = 0; lane < tile.lanes; lane += vector) {
    const auto lane_slope = hn::LoadU(d, slope + lane);
    auto distance =
        hn::Sub(hn::LoadU(di, position + lane), hn::Set(di, static_cast<int32_t>(tile.first_key)));
    float* at = tile.scores + lane;
    for (size_t j = 0; j < tile.keys; ++j, at += tile.stride) {
      const auto size = hn::Abs(hn::ConvertTo(d, distance));
      hn::StoreU(hn::NegMulAdd(lane_slope, size, hn::LoadU(d, at)), d, at);
      distance = hn::Sub(distance, hn::Set(di, 1));
    }
  }
}

// Sets scores outside [first[lane], last[lane]) to -inf. If row_max is given, raises it to the
// largest remaining score.
template <class D>
HWY_NOINLINE void hide_by_range(D d, const ScoreTile& tile, const int32_t* HWY_RESTRICT first,
                                const int32_t* HWY_RESTRICT last, float* HWY_RESTRICT row_max) {
  using V = hn::Vec<D>;
  const hn::RebindToSigned<D> di;
  const hn::RebindToUnsigned<D> du;
  const size_t vector = hn::Lanes(d), keys = tile.keys, stride = tile.stride;
  const V neg_inf = hn::Set(d, kNegInf);
  for (size_t lane = 0; lane < tile.lanes; lane += vector) {
    const auto begin = hn::LoadU(di, first + lane);
    const auto end = hn::Max(begin, hn::LoadU(di, last + lane));
    // One comparison checks both ends: a key before the range becomes a large unsigned number. Two
    // comparisons and a single maximum took twice as long (AVX-512).
    const auto visible = hn::BitCast(du, hn::Sub(end, begin));
    auto key = hn::BitCast(du, hn::Sub(hn::Set(di, static_cast<int32_t>(tile.first_key)), begin));
    float* at = tile.scores + lane;
    V largest[2] = {neg_inf, neg_inf};
    const auto hide = [&](V& so_far) HWY_ATTR {
      const auto seen = hn::RebindMask(d, hn::Lt(key, visible));
      const V score = hn::IfThenElse(seen, hn::LoadU(d, at), neg_inf);
      hn::StoreU(score, d, at);
      so_far = hn::Max(score, so_far);
      key = hn::Add(key, hn::Set(du, 1));
      at += stride;
    };
    size_t j = 0;
    for (; j + 2 <= keys; j += 2) {
      hide(largest[0]);
      hide(largest[1]);
    }
    if (j < keys) hide(largest[0]);
    if (row_max == nullptr) continue;
    const V most = hn::Max(largest[0], largest[1]);
    hn::StoreU(hn::Max(most, hn::LoadU(d, row_max + lane)), d, row_max + lane);
  }
}

// True if D has one lane although the target's vectors have several. A tile of D then has one row.
template <class D>
constexpr bool kHasOneRow = hn::MaxLanes(D()) == 1 && hn::MaxLanes(DF()) > 1;

template <class D, class T>
bool all_equal(const T* const* rows, size_t count) {
  if constexpr (kHasOneRow<D>) return true;
  for (size_t row = 1; row < count; ++row) {
    if (rows[row] != rows[0]) return false;
  }
  return true;
}

// Sets masked scores to -inf. mask[lane] points at the query's mask at key 0; a byte of 0 hides the
// key.
template <class D>
HWY_NOINLINE void hide_by_mask(D d, const ScoreTile& tile, const uint8_t* const* mask,
                               int64_t key_stride) {
  const size_t vector = hn::Lanes(d);
  const auto neg_inf = hn::Set(d, kNegInf);
  // Key padding: all rows have the same mask.
  if (all_equal<D>(mask, tile.rows)) {
    const uint8_t* allowed = mask[0] + tile.first_key * key_stride;
    for (size_t j = 0; j < tile.keys; ++j, allowed += key_stride) {
      if (*allowed != 0) continue;
      float* at = tile.scores + j * tile.stride;
      for (size_t lane = 0; lane < tile.lanes; lane += vector) hn::StoreU(neg_inf, d, at + lane);
    }
    return;
  }
  const hn::Full128<uint8_t> d8;
  constexpr size_t kBytes = kSide<decltype(d8)>;
  static_assert(kBytes % kSide<D> == 0);
  const hn::Rebind<uint8_t, D> bytes_of_vector;
  const hn::RebindToUnsigned<D> du;
  for (size_t lane = 0; lane < tile.lanes; lane += kBytes) {
    const size_t columns = HWY_MIN(kBytes, tile.lanes - lane);
    for (size_t j = 0; j < tile.keys; j += kBytes) {
      const size_t keys = HWY_MIN(kBytes, tile.keys - j);
      auto square = load_square(d8, mask + lane, columns, tile.first_key + static_cast<int64_t>(j),
                                key_stride, keys, uint8_t{1});
      // Skip squares without hidden keys, which are the most common.
      auto least = square.row[0];
      for (size_t i = 1; i < kBytes; ++i) least = hn::Min(least, square.row[i]);
      if (hn::AllTrue(d8, hn::Ne(least, hn::Zero(d8)))) continue;
      transpose(d8, square);
      HWY_ALIGN uint8_t allowed[kBytes * kBytes];
      store_square(d8, square, allowed);
      for (size_t k = 0; k < keys; ++k) {
        float* at = tile.scores + (j + k) * tile.stride + lane;
        for (size_t column = 0; column < columns; column += vector) {
          const auto bytes = hn::LoadU(bytes_of_vector, allowed + k * kBytes + column);
          const auto hidden = hn::Eq(hn::PromoteTo(du, bytes), hn::Zero(du));
          const auto score = hn::LoadU(d, at + column);
          hn::StoreU(hn::IfThenElse(hn::RebindMask(d, hidden), neg_inf, score), d, at + column);
        }
      }
    }
  }
}

// True if the mask hides all keys of [first, first + keys) from all `rows` rows; such a tile is
// skipped. Usually the first byte already decides that it is not.
inline bool hides_all(const uint8_t* const* mask, int64_t key_stride, size_t rows, int64_t first,
                      size_t keys) {
  for (size_t row = 0; row < rows; ++row) {
    if (row > 0 && mask[row] == mask[row - 1]) continue;
    const uint8_t* allowed = mask[row] + first * key_stride;
    size_t j = 0;
    if (key_stride == 1) {
      for (; j + sizeof(uint64_t) <= keys; j += sizeof(uint64_t)) {
        uint64_t eight;
        std::memcpy(&eight, allowed + j, sizeof(eight));
        if (eight != 0) return false;
      }
    }
    for (; j < keys; ++j) {
      if (allowed[static_cast<int64_t>(j) * key_stride] != 0) return false;
    }
  }
  return true;
}

// Adds a bias to a score. A bias of -inf hides the key, even if its score is NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V biased(D d, V score, V bias) {
  const V neg_inf = hn::Set(d, kNegInf);
  return hn::IfThenElse(hn::Eq(bias, neg_inf), neg_inf, hn::Add(score, bias));
}

// Adds biases. bias[lane] points at the query's bias at key 0.
template <class D>
HWY_NOINLINE void add_bias(D d, const ScoreTile& tile, const float* const* bias,
                           int64_t key_stride) {
  constexpr size_t kVector = kSide<D>;
  if (all_equal<D>(bias, tile.rows)) {
    const float* added = bias[0] + tile.first_key * key_stride;
    for (size_t j = 0; j < tile.keys; ++j, added += key_stride) {
      float* at = tile.scores + j * tile.stride;
      const auto key_bias = hn::Set(d, *added);
      for (size_t lane = 0; lane < tile.lanes; lane += kVector) {
        hn::StoreU(biased(d, hn::LoadU(d, at + lane), key_bias), d, at + lane);
      }
    }
    return;
  }
  for (size_t lane = 0; lane < tile.lanes; lane += kVector) {
    for (size_t j = 0; j < tile.keys; j += kVector) {
      const size_t keys = HWY_MIN(kVector, tile.keys - j);
      auto square = load_square(d, bias + lane, kVector, tile.first_key + static_cast<int64_t>(j),
                                key_stride, keys, 0.0F);
      transpose(d, square);
      HWY_ALIGN float added[kVector * kVector];
      store_square(d, square, added);
      float* at = tile.scores + j * tile.stride + lane;
      for (size_t k = 0; k < keys; ++k, at += tile.stride) {
        hn::StoreU(biased(d, hn::LoadU(d, at), hn::Load(d, added + k * kVector)), d, at);
      }
    }
  }
}

// Position of a row in a group of query heads that share a key/value head.
struct RowPlace {
  int32_t head_in_group, query;
};

// Sets dropped weights to 0 and scales the others. Four keys share one Philox block, see
// rules/dropout_mask.h. `head` is the first query head of the group.
template <class D>
HWY_NOINLINE void drop_weights(D d, const ScoreTile& tile, const RowPlace* place,
                               const rules::Coordinates& shard, int64_t batch, int64_t head,
                               const rules::DropoutParams& dropout) {
  const hn::RebindToSigned<D> di;
  const hn::RebindToUnsigned<D> du;
  const size_t vector = hn::Lanes(d);
  // The threshold is below 2^32, because the probability is below 1.
  const auto threshold = hn::Set(du, static_cast<uint32_t>(dropout.threshold));
  const auto grow = hn::Set(d, dropout.scale);
  const PhiloxKeys keys(dropout.seed);
  const auto first_head = hn::Set(di, static_cast<int32_t>(shard.head + head));
  const auto first_query = hn::Set(di, static_cast<int32_t>(shard.query));
  const auto batch_entry = static_cast<uint32_t>(shard.batch + batch);
  const int64_t begin = shard.key + tile.first_key;
  const int64_t end = begin + static_cast<int64_t>(tile.keys);
  for (size_t lane = 0; lane < tile.lanes; lane += vector) {
    hn::Vec<decltype(di)> head_in_group, query;
    static_assert(sizeof(RowPlace) == 2 * sizeof(int32_t));
    hn::LoadInterleaved2(di, &place[lane].head_in_group, head_in_group, query);
    const DropoutWords<decltype(du)> dropout_words(
        du, keys, batch_entry, hn::BitCast(du, hn::Add(head_in_group, first_head)),
        hn::BitCast(du, hn::Add(query, first_query)));
    for (int64_t group = begin / 4; group * 4 < end; ++group) {
      hn::Vec<decltype(du)> words[4];
      dropout_words.set_words(static_cast<uint32_t>(group), words);
      for (int64_t word = 0; word < 4; ++word) {
        const int64_t key = group * 4 + word;
        if (key < begin || key >= end) continue;
        float* at = tile.scores + static_cast<size_t>(key - begin) * tile.stride + lane;
        const auto kept = hn::RebindMask(d, hn::Ge(words[word], threshold));
        hn::StoreU(hn::IfThenElseZero(kept, hn::Mul(hn::LoadU(d, at), grow)), d, at);
      }
    }
  }
}

// ---- Online softmax over a tile of transposed scores, queries in the lanes.
//
// Milakov and Gimelshein, "Online normalizer calculation for softmax" (arXiv:1805.02867): each lane
// keeps a reference score and the sum of exp(score - reference) so far. When the reference rises,
// the sum is scaled down.

// Limit of weights relative to a reference below the maximum: no weight exceeds 2^kMostExponent, so
// sums cannot overflow.
inline constexpr float kMostExponent = 8.0F;

// The constants of a softmax over factor * score.
struct SoftmaxFactor {
  float to_log2;  // factor * log2(e)
  float lowest;   // score - reference for a weight of 2^-127
  float slack;    // score - reference for a weight of 2^kMostExponent

  explicit SoftmaxFactor(float factor)
      : to_log2(factor * kLog2E), lowest(-127.0F / to_log2), slack(kMostExponent / to_log2) {}
};

// SoftmaxFactor in vectors.
template <class D>
struct ToLog2 {
  hn::Vec<D> factor, lowest;

  ToLog2(D d, const SoftmaxFactor& of)
      : factor(hn::Set(d, of.to_log2)), lowest(hn::Set(d, of.lowest)) {}
};

// Replaces x by exp(factor * (x - reference)). Folding the factor into Q would save an instruction,
// but its rounding would affect all products of a score in the same way (an error of 1e-5 in the
// output for inputs of +-1 and a scale of 1).
template <size_t kCount, class D, class V = hn::Vec<D>>
HWY_INLINE void exp_of_differences(D d, Exp2Table HWY_RESTRICT table, V (&x)[kCount], V reference,
                                   const ToLog2<D>& to_log2) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  for (size_t i = 0; i < kCount; ++i) {
    x[i] = exp2_clamped(d, table, hn::Mul(hn::Sub(x[i], reference), to_log2.factor));
  }
#else
  // Inlines exp2_clamped() with the factor inside its multiply-adds.
  V fraction[kCount], power[kCount], poly[kCount];
  const hn::RebindToSigned<D> di;
  const V magic = hn::Set(d, table[6]);
  for (size_t i = 0; i < kCount; ++i) x[i] = at_least(to_log2.lowest, hn::Sub(x[i], reference));
  for (size_t i = 0; i < kCount; ++i) power[i] = mul_add(x[i], to_log2.factor, magic);
  for (size_t i = 0; i < kCount; ++i) {
    fraction[i] = mul_add(x[i], to_log2.factor, hn::Sub(magic, power[i]));
  }
  for (size_t i = 0; i < kCount; ++i) {
    power[i] = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, power[i])));
  }
  exp2_polynomial(d, table, fraction, poly);
  for (size_t i = 0; i < kCount; ++i) x[i] = hn::Mul(poly[i], power[i]);
#endif
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_of_difference(D d, Exp2Table HWY_RESTRICT table, V score, V reference,
                               const ToLog2<D>& to_log2) {
  V x[1] = {score};
  exp_of_differences(d, table, x, reference, to_log2);
  return x[0];
}

// Replaces a reference of -inf by 0: a lane without visible keys so far would compute -inf -
// (-inf), which is NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V finite_reference(D d, V reference) {
  return hn::IfThenElse(hn::Eq(reference, hn::Set(d, kNegInf)), hn::Zero(d), reference);
}

// Raises row_max[lane] to the largest score of the lane.
template <class D>
HWY_NOINLINE void raise_row_max(D d, const float* HWY_RESTRICT scores, size_t stride, size_t keys,
                                float* HWY_RESTRICT row_max) {
  using V = hn::Vec<D>;
  V max0 = hn::LoadU(d, row_max);
  V max1 = max0;
  size_t key = 0;
  for (; key + 2 <= keys; key += 2) {
    max0 = hn::Max(hn::LoadU(d, scores + key * stride), max0);
    max1 = hn::Max(hn::LoadU(d, scores + (key + 1) * stride), max1);
  }
  if (key < keys) max0 = hn::Max(hn::LoadU(d, scores + key * stride), max0);
  hn::StoreU(hn::Max(max0, max1), d, row_max);
}

// Turns the scores of one vector of lanes (`keys` rows, `stride` floats apart) into weights
// exp(factor * (score - subtract)) and returns their sum. Even and odd keys are summed separately
// for every kExpsAtOnce, so keys of weight 0 at the end do not change a bit of the sum.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_and_sum(D d, float* HWY_RESTRICT scores, size_t stride, size_t keys, V subtract,
                         const ToLog2<D>& to_log2, Exp2Table HWY_RESTRICT table) {
  V sum[2] = {hn::Zero(d), hn::Zero(d)};
  size_t key = 0;
  const auto take = [&](auto count) HWY_ATTR {
    constexpr size_t kCount = decltype(count)::value;
    for (; key + kCount <= keys; key += kCount) {
      float* row = scores + key * stride;
      V weight[kCount];
      for (size_t i = 0; i < kCount; ++i) weight[i] = hn::LoadU(d, row + i * stride);
      exp_of_differences(d, table, weight, subtract, to_log2);
      for (size_t i = 0; i < kCount; ++i) hn::StoreU(weight[i], d, row + i * stride);
      for (size_t i = 0; i < kCount; ++i) sum[i % 2] = hn::Add(sum[i % 2], weight[i]);
    }
  };
  static_assert(TileSize::kExpsAtOnce % 2 == 0);
  take(std::integral_constant<size_t, TileSize::kExpsAtOnce>());
  if constexpr (TileSize::kExpsAtOnce > 2) take(std::integral_constant<size_t, 2>());
  take(std::integral_constant<size_t, 1>());
  return hn::Add(sum[0], sum[1]);
}

// One step of the online softmax for one vector of lanes (`keys` rows, `stride` floats apart).
// Scores become weights exp(factor * (score - reference)), which are added to row_sum. The
// reference rises to row_max only if a weight would otherwise exceed 2^kMostExponent, which is rare
// after the first keys. `correction` receives the rescale factor of earlier sums; returns true if
// it differs from 1 in any lane.
template <class D>
HWY_NOINLINE bool online_softmax(D d, float* HWY_RESTRICT scores, size_t stride, size_t keys,
                                 const SoftmaxFactor& factor, const float* HWY_RESTRICT row_max,
                                 float* HWY_RESTRICT reference, float* HWY_RESTRICT row_sum,
                                 float* HWY_RESTRICT correction) {
  using V = hn::Vec<D>;
  const ToLog2<D> to_log2(d, factor);
  const V old_reference = hn::LoadU(d, reference);
  const V highest = hn::LoadU(d, row_max);
  const V enough = hn::Add(old_reference, hn::Set(d, factor.slack));
  const V new_reference = hn::IfThenElse(hn::Gt(highest, enough), highest, old_reference);
  const V subtract = finite_reference(d, new_reference);
  const Exp2Table HWY_RESTRICT table = exp2_table();

  const V total = exp_and_sum(d, scores, stride, keys, subtract, to_log2, table);
  const auto same = hn::Eq(old_reference, new_reference);
  if (HWY_LIKELY(hn::AllTrue(d, same))) {
    hn::StoreU(hn::Add(hn::LoadU(d, row_sum), total), d, row_sum);
    hn::StoreU(hn::Set(d, 1.0F), d, correction);
    return false;
  }
  // Lanes whose reference did not change must keep their bits, but the polynomial gives 1 + 1e-7 at
  // 0.
  const V shrunk = hn::IfThenElse(same, hn::Set(d, 1.0F),
                                  exp_of_difference(d, table, old_reference, subtract, to_log2));
  hn::StoreU(new_reference, d, reference);
  hn::StoreU(mul_add(hn::LoadU(d, row_sum), shrunk, total), d, row_sum);
  hn::StoreU(shrunk, d, correction);
  return true;
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_ATTENTION_BLOCK_SCORE_PASSES_INL_H_
