// Passes between the two products, over a tile of transposed scores: keys in rows, queries in
// columns. A call without options needs no pass.
#if defined(MULTIHEAD_CPU_ATTENTION_BLOCK_SCORE_PASSES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_ATTENTION_BLOCK_SCORE_PASSES_INL_H_
#undef MULTIHEAD_CPU_ATTENTION_BLOCK_SCORE_PASSES_INL_H_
#else
#define MULTIHEAD_CPU_ATTENTION_BLOCK_SCORE_PASSES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/kernels.h"
#include "cpu/simd/file_namespace.h"
#include "cpu/simd/philox-inl.h"
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/tanh-inl.h"
#include "cpu/simd/transpose-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

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

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_ATTENTION_BLOCK_SCORE_PASSES_INL_H_
