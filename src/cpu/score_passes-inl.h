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

#include "cpu/softmax-inl.h"
#include "hwy/highway.h"

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
};

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
template <class D>
HWY_NOINLINE void hide_by_mask(D /*d*/, const ScoreTile& tile, const uint8_t* const* mask,
                               int64_t key_stride) {
  for (size_t row = 0; row < tile.rows; ++row) {
    const uint8_t* allowed = mask[row] + tile.first_key * key_stride;
    float* at = tile.scores + row;
    for (size_t j = 0; j < tile.keys; ++j, at += tile.stride, allowed += key_stride) {
      *at = *allowed != 0 ? *at : kNegInf;
    }
  }
}

// A bias of -inf hides, even where the score is NaN.
template <class D>
HWY_NOINLINE void add_bias(D /*d*/, const ScoreTile& tile, const float* const* bias,
                           int64_t key_stride) {
  for (size_t row = 0; row < tile.rows; ++row) {
    const float* added = bias[row] + tile.first_key * key_stride;
    float* at = tile.scores + row;
    for (size_t j = 0; j < tile.keys; ++j, at += tile.stride, added += key_stride) {
      *at = *added == kNegInf ? kNegInf : *at + *added;
    }
  }
}

}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_SCORE_PASSES_INL_H_
