// The passes between the two products, over one tile of transposed scores: keys down,
// the queries of a panel across. The plan of a call decides which run; a call without
// options runs none.
#if defined(MULTIHEAD_CPU_SCORE_PASSES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_SCORE_PASSES_INL_H_
#undef MULTIHEAD_CPU_SCORE_PASSES_INL_H_
#else
#define MULTIHEAD_CPU_SCORE_PASSES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/softmax-inl.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "rules/dropout_mask.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct ScoreTile {
  float* scores;  // [keys][stride]
  size_t stride;  // floats from key to key
  int64_t first_key;
  size_t keys;
  size_t lanes;  // queries, padding included: a whole number of vectors
  size_t rows;   // queries, padding left out

  // Keys first .. last - 1 of it.
  ScoreTile part(int64_t first, int64_t last) const {
    ScoreTile result = *this;
    result.scores += static_cast<size_t>(first - first_key) * stride;
    result.first_key = first;
    result.keys = static_cast<size_t>(last - first);
    return result;
  }
  // One vector of lanes.
  ScoreTile vector(size_t lane, size_t count) const {
    ScoreTile result = *this;
    result.scores += lane;
    result.lanes = count;
    result.rows = rows > lane ? (rows - lane < count ? rows - lane : count) : 0;
    return result;
  }
};

// s = cap * tanh(s / cap). Highway's Tanh, accurate to some units in the last place.
template <class D>
HWY_NOINLINE void cap_scores(D d, const ScoreTile& tile, float cap) {
  const auto limit = hn::Set(d, cap);
  const auto inverse = hn::Set(d, 1.0F / cap);
  for (size_t j = 0; j < tile.keys; ++j) {
    float* row = tile.scores + j * tile.stride;
    for (size_t lane = 0; lane < tile.lanes; lane += hn::Lanes(d)) {
      const auto score = hn::LoadU(d, row + lane);
      const auto capped = hn::Mul(limit, hn::CallTanh(d, hn::Mul(score, inverse)));
      // Highway's Tanh says nothing of NaN.
      hn::StoreU(hn::IfThenElse(hn::IsNaN(score), score, capped), d, row + lane);
    }
  }
}

// s -= slope[lane] * |end[lane] - key|
template <class D>
HWY_NOINLINE void add_alibi(D d, const ScoreTile& tile, const float* HWY_RESTRICT slope,
                            const float* HWY_RESTRICT end) {
  const size_t vector = hn::Lanes(d);
  for (size_t lane = 0; lane < tile.lanes; lane += vector) {
    const auto lane_slope = hn::LoadU(d, slope + lane);
    auto distance =
        hn::Sub(hn::LoadU(d, end + lane), hn::Set(d, static_cast<float>(tile.first_key)));
    float* at = tile.scores + lane;
    for (size_t j = 0; j < tile.keys; ++j, at += tile.stride) {
      hn::StoreU(hn::NegMulAdd(lane_slope, hn::Abs(distance), hn::LoadU(d, at)), d, at);
      distance = hn::Sub(distance, hn::Set(d, 1.0F));
    }
  }
}

// Scores outside [first[lane], last[lane]) become -inf.
template <class D>
HWY_NOINLINE void hide_by_range(D d, const ScoreTile& tile, const int32_t* HWY_RESTRICT first,
                                const int32_t* HWY_RESTRICT last) {
  const hn::RebindToSigned<D> di;
  const size_t vector = hn::Lanes(d);
  for (size_t lane = 0; lane < tile.lanes; lane += vector) {
    const auto lane_first = hn::LoadU(di, first + lane);
    const auto lane_last = hn::LoadU(di, last + lane);
    float* at = tile.scores + lane;
    auto key = hn::Set(di, static_cast<int32_t>(tile.first_key));
    for (size_t j = 0; j < tile.keys; ++j, at += tile.stride) {
      const auto visible = hn::And(hn::Ge(key, lane_first), hn::Lt(key, lane_last));
      const auto score = hn::LoadU(d, at);
      hn::StoreU(hn::IfThenElse(hn::RebindMask(d, visible), score, hn::Set(d, kNegInf)), d, at);
      key = hn::Add(key, hn::Set(di, 1));
    }
  }
}

// mask[row] points at the mask of that row's key 0; 0 hides.
inline void hide_by_mask(const ScoreTile& tile, const uint8_t* const* mask, int64_t key_stride) {
  for (size_t row = 0; row < tile.rows; ++row) {
    const uint8_t* allowed = mask[row] + tile.first_key * key_stride;
    float* at = tile.scores + row;
    for (size_t j = 0; j < tile.keys; ++j, at += tile.stride, allowed += key_stride) {
      *at = *allowed != 0 ? *at : kNegInf;
    }
  }
}

// Whether a mask leaves no key of [first, first + keys) to any of `rows` rows: such a tile is
// skipped. Mostly the first byte already says no.
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

// A bias of -inf hides, even where the score is NaN.
inline void add_bias(const ScoreTile& tile, const float* const* bias, int64_t key_stride) {
  for (size_t row = 0; row < tile.rows; ++row) {
    const float* added = bias[row] + tile.first_key * key_stride;
    float* at = tile.scores + row;
    for (size_t j = 0; j < tile.keys; ++j, at += tile.stride, added += key_stride) {
      *at = *added == kNegInf ? kNegInf : *at + *added;
    }
  }
}

// Where a row stands among all: what dropout is keyed by.
struct RowPlace {
  int32_t head, query;
};

// Weights that dropout takes become 0, the others grow by 1 / (1 - p). Four keys share one
// Philox block, see rules/dropout_mask.h.
inline void drop_weights(const ScoreTile& tile, const RowPlace* place, int64_t batch,
                         const Dropout& dropout) {
  const uint64_t threshold = rules::dropout_threshold(dropout.probability);
  const float grow = 1.0F / (1.0F - dropout.probability);
  const int64_t end = tile.first_key + static_cast<int64_t>(tile.keys);
  for (size_t row = 0; row < tile.rows; ++row) {
    for (int64_t group = tile.first_key / 4; group * 4 < end; ++group) {
      const auto words =
          rules::dropout_words(dropout.seed, batch, place[row].head, place[row].query, group);
      for (int64_t word = 0; word < 4; ++word) {
        const int64_t key = group * 4 + word;
        if (key < tile.first_key || key >= end) continue;
        float& weight = tile.scores[static_cast<size_t>(key - tile.first_key) * tile.stride + row];
        weight = words[static_cast<size_t>(word)] >= threshold ? weight * grow : 0.0F;
      }
    }
  }
}

}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_SCORE_PASSES_INL_H_
