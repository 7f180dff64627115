// Forward attention of heads so short that what a block does beside its sums takes as long as they
// do: all keys are one step of the softmax, a strip of queries goes through scores, weights and
// averages at once, and of the options only causal order and lengths are left to ask about. The
// same sums in the same order as a block's, so the same bits.
#if defined(MULTIHEAD_CPU_SHORT_HEADS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_SHORT_HEADS_INL_H_
#undef MULTIHEAD_CPU_SHORT_HEADS_INL_H_
#else
#define MULTIHEAD_CPU_SHORT_HEADS_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "cpu/block_layout-inl.h"
#include "cpu/kernels.h"
#include "cpu/micro_kernel-inl.h"
#include "cpu/simd-inl.h"
#include "cpu/softmax-inl.h"
#include "cpu/transpose-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Inputs and outputs, in bytes, that caches hold. Beyond, blocks are faster, which copy V and
// natively look ahead: of heads of 64 x 64, 24 (1.6 MB) gain 10 %, 96 of them 3 to 6 %, but 192
// would lose 3 to 5 % and 384 16 to 27 %; in WebAssembly 24 gain 8 % and 384 would lose 6 %.
inline constexpr double kMostNear = 4 << 20;

inline bool short_fits(const ForwardParams& p) {
  const rules::Visibility& seen = p.visibility;
  const double bytes = sizeof(float) * static_cast<double>(p.batch) * static_cast<double>(p.heads) *
                       static_cast<double>(p.queries + p.keys) *
                       static_cast<double>(p.key_width + p.value_width);
  return p.keys <= TileSize::kShortKeys && bytes <= kMostNear && is_float(p.q) && is_float(p.k) &&
         is_float(p.v) && stores_means(p) && !changes_scores(p) && seen.left < 0 &&
         seen.firsts == nullptr && p.dropout.probability == 0.0F &&
         p.dropout_mask.data == nullptr && p.lse.data == nullptr && p.captures.empty() &&
         p.weights.out.data == nullptr;
}

// Where everything of a job lies in its scratch memory.
struct ShortScratch {
  float* queries;     // [key_width][lanes of a strip], transposed
  float* scores;      // [key][lanes of a strip]
  float* top;         // [lane of a strip]
  float* inverse;     // likewise
  int32_t* last_key;  // [row]
  uint64_t bytes;
};

inline ShortScratch lay_out_short(const ForwardParams& p, void* memory) {
  ShortScratch s{};
  Arena take(memory);
  take(s.queries, score_lanes() * static_cast<uint64_t>(p.key_width));
  take(s.scores, score_lanes() * static_cast<uint64_t>(p.keys));
  take(s.top, score_lanes());
  take(s.inverse, score_lanes());
  take(s.last_key, block_lanes(p));
  s.bytes = take.bytes();
  return s;
}

// Scores of a strip of queries, [key][stride].
struct ShortScores {
  const float* k;
  ptrdiff_t k_stride;
  const float* queries;  // [depth][stride]
  size_t depth;
  float* scores;
  size_t stride;
  const int32_t* last;  // [query] end of the keys that it sees
  size_t open;          // end of the keys that all of them see
  float* top;           // [query] rises to its largest score
};

// Keys from .. to - 1 of the queries in kVecs vectors, `first` the first of them. What a query does
// not see is -inf.
template <size_t kVecs, class D>
HWY_NOINLINE void score_keys(D d, const ShortScores& s, size_t first, size_t from, size_t to) {
  using V = hn::Vec<D>;
  const hn::RebindToSigned<D> di;
  const size_t lanes = hn::Lanes(d);
  const size_t lane = first * lanes;
  size_t key = from;
  cut_rows<TileSize::rows(kVecs)>(to - from, [&](auto count) HWY_ATTR MULTIHEAD_INLINED {
    constexpr size_t kRows = decltype(count)::value;
    V sum[kRows][kVecs];
    add_products<ALayout::kRowMajor, Elements::kFloats>(
        d, s.k + static_cast<ptrdiff_t>(key) * s.k_stride, s.k_stride, s.queries + lane,
        static_cast<ptrdiff_t>(s.stride), s.depth, sum);
    if (key + kRows > s.open) {
      for (size_t v = 0; v < kVecs; ++v) {
        const auto last = hn::LoadU(di, s.last + lane + v * lanes);
        for (size_t r = 0; r < kRows; ++r) {
          const auto seen = hn::Lt(hn::Set(di, static_cast<int32_t>(key + r)), last);
          sum[r][v] = hn::IfThenElse(hn::RebindMask(d, seen), sum[r][v], hn::Set(d, kNegInf));
        }
      }
    }
    float* const scores = s.scores + key * s.stride + lane;
    float* const tops = s.top + lane;
    for (size_t v = 0; v < kVecs; ++v) {
      V top = hn::LoadU(d, tops + v * lanes);
      for (size_t r = 0; r < kRows; ++r) {
        top = hn::Max(sum[r][v], top);
        hn::StoreU(sum[r][v], d, scores + r * s.stride + v * lanes);
      }
      hn::StoreU(top, d, tops + v * lanes);
    }
    key += kRows;
  });
}

// Averages of a strip of queries.
struct ShortAverages {
  const float* weights;  // [key][stride]
  size_t stride;
  const float* v;
  ptrdiff_t v_stride;
  const int32_t* last;   // [query]
  const float* inverse;  // [query] 1 / sum of its weights
  float* out;
  ptrdiff_t out_stride;
};

// kVecs vectors of columns of `rows` queries. Returns whether none is NaN.
template <size_t kVecs, class D>
HWY_NOINLINE bool average_values(D d, const ShortAverages& s, size_t rows, size_t column) {
  using V = hn::Vec<D>;
  // Of a tile that lies within one vector of queries all weights end at the same key.
  constexpr size_t kMost = HWY_MIN(TileSize::rows(kVecs), kSide<D>);
  constexpr size_t kTile = kMost == 6 ? 4 : kMost;
  auto nan = hn::MaskFalse(d);
  size_t row = 0;
  cut_rows<kTile>(rows, [&](auto count) HWY_ATTR MULTIHEAD_INLINED {
    constexpr size_t kRows = decltype(count)::value;
    V sum[kRows][kVecs];
    add_products<ALayout::kColMajor, Elements::kFloats>(
        d, s.weights + row, static_cast<ptrdiff_t>(s.stride), s.v + column, s.v_stride,
        static_cast<size_t>(s.last[row + kRows - 1]), sum);
    float* to = s.out + static_cast<ptrdiff_t>(row) * s.out_stride + column;
    for (size_t r = 0; r < kRows; ++r, to += s.out_stride) {
      const V inverse = hn::Set(d, s.inverse[row + r]);
      for (size_t v = 0; v < kVecs; ++v) {
        const V mean = hn::Mul(sum[r][v], inverse);
        nan = hn::Or(nan, hn::IsNaN(mean));
        hn::StoreU(mean, d, to + v * hn::Lanes(d));
      }
    }
    row += kRows;
  });
  return hn::AllFalse(d, nan);
}

// The rows of a job, one head after the other.
class ShortHeads {
 public:
  ShortHeads(const ForwardParams& params, const ForwardJob& job, void* scratch)
      : p_(params),
        batch_(job.batch),
        first_row_(job.first_row),
        s_(lay_out_short(params, scratch)),
        scale_(scale_factors(params)),
        vector_(hn::Lanes(d_)),
        rows_(std::min(block_lanes(params), static_cast<size_t>(params.end_row() - job.first_row))),
        lanes_(round_up(rows_, vector_)) {
    load_rows();
  }

  // Again where something else has used the scratch memory.
  void load_rows() {
    const rules::EntryVisibility visibility = p_.visibility.of_entry(batch_);
    for (size_t row = 0; row < lanes_; ++row) {
      // Padding lanes repeat the last row.
      const auto query = first_row_ + static_cast<int64_t>(std::min(row, rows_ - 1));
      s_.last_key[row] = static_cast<int32_t>(visibility.of_query(query).last);
    }
  }

  // Returns false where a row needs the care that a block takes: it sees nothing, or a result is
  // NaN.
  bool compute(int64_t head) {
    head_ = head;
    const size_t vectors = lanes_ / vector_;
    // Strips as even as possible.
    const size_t strips = (vectors + TileSize::kScoreVecs - 1) / TileSize::kScoreVecs;
    const size_t step = (vectors + strips - 1) / strips;
    bool sound = true;
    for (size_t v = 0; v < vectors; v += step) {
      const size_t lane = v * vector_;
      switch (std::min(step, vectors - v)) {
        case 4:
          if constexpr (TileSize::kScoreVecs >= 4) sound &= compute_strip<4>(lane);
          break;
        case 3:
          if constexpr (TileSize::kScoreVecs >= 3) sound &= compute_strip<3>(lane);
          break;
        case 2:
          sound &= compute_strip<2>(lane);
          break;
        default:
          sound &= compute_strip<1>(lane);
      }
    }
    return sound;
  }

 private:
  const float* row_of(const StoredRows& rows, int64_t row) const {
    return static_cast<const float*>(rows.data) + row_offset(rows.stride, batch_, head_, row);
  }

  template <size_t kVecs>
  HWY_INLINE bool compute_strip(size_t lane) {
    const size_t stride = kVecs * vector_;
    transpose_queries<kVecs>(lane);
    const int32_t* const last = s_.last_key + lane;
    const ShortScores scores{.k = row_of(p_.k, 0),
                             .k_stride = static_cast<ptrdiff_t>(p_.k.stride[2]),
                             .queries = s_.queries,
                             .depth = static_cast<size_t>(p_.key_width),
                             .scores = s_.scores,
                             .stride = stride,
                             .last = last,
                             .open = static_cast<size_t>(last[0]),
                             .top = s_.top};
    score<kVecs, kVecs>(scores, 0);

    const ToLog2<DF> to_log2(d_, SoftmaxFactor(scale_.of_softmax));
    bool sound = true;
    for (size_t v = 0; v < kVecs; ++v) {
      const size_t at = v * vector_;
      const auto top = finite_maximum(d_, hn::LoadU(d_, s_.top + at));
      const auto sum =
          weigh_lanes(d_, s_.scores + at, stride, reach(last, v), top, to_log2, exp2_table());
      sound &= hn::AllTrue(d_, hn::Gt(sum, hn::Zero(d_)));
      hn::StoreU(hn::Div(hn::Set(d_, 1.0F), sum), d_, s_.inverse + at);
    }

    const auto first = first_row_ + static_cast<int64_t>(lane);
    const ShortAverages averages{
        .weights = s_.scores,
        .stride = stride,
        .v = row_of(p_.v, 0),
        .v_stride = static_cast<ptrdiff_t>(p_.v.stride[2]),
        .last = last,
        .inverse = s_.inverse,
        .out = static_cast<float*>(p_.out.data) + row_offset(p_.out.stride, batch_, head_, first),
        .out_stride = static_cast<ptrdiff_t>(p_.out.stride[2])};
    return average(averages, std::min(stride, rows_ - lane)) && sound;
  }

  template <size_t kVecs>
  HWY_INLINE void transpose_queries(size_t lane) {
    // Padding lanes repeat the last row.
    const float* row = row_of(p_.q, first_row_ + static_cast<int64_t>(lane));
    const float* const last = row_of(p_.q, first_row_ + static_cast<int64_t>(rows_ - 1));
    std::array<const float*, hn::MaxLanes(DF())> rows;
    for (size_t v = 0; v < kVecs; ++v) {
      for (size_t i = 0; i < vector_; ++i) {
        rows[i] = row;
        if (row != last) row += p_.q.stride[2];
      }
      transpose_rows(d_, rows.data(), static_cast<size_t>(p_.key_width), scale_.of_queries,
                     s_.queries + v * vector_, kVecs * vector_);
      hn::StoreU(hn::Set(d_, kNegInf), d_, s_.top + v * vector_);
    }
  }

  // The end of the keys that some query of a vector sees.
  size_t reach(const int32_t* last, size_t v) const {
    return static_cast<size_t>(last[(v + 1) * vector_ - 1]);
  }

  // Keys from `key` on, for the last kLeft vectors of a strip: in causal order the first of them
  // drops out first.
  template <size_t kVecs, size_t kLeft>
  HWY_INLINE void score(const ShortScores& scores, size_t key) {
    constexpr size_t kFirst = kVecs - kLeft;
    const size_t end = reach(scores.last, kFirst);
    if (key < end) score_keys<kLeft>(d_, scores, kFirst, key, end);
    if constexpr (kLeft > 1) score<kVecs, kLeft - 1>(scores, std::max(key, end));
  }

  HWY_INLINE bool average(const ShortAverages& averages, size_t rows) {
    const auto width = static_cast<size_t>(p_.value_width);
    bool sound = true;
    for (size_t column = 0; column < width; column += strip_lanes()) {
      switch (std::min(strip_lanes(), width - column) / vector_) {
        case 4:
          if constexpr (TileSize::kMaxVecs >= 4) {
            sound &= average_values<4>(d_, averages, rows, column);
          }
          break;
        case 3:
          if constexpr (TileSize::kMaxVecs >= 3) {
            sound &= average_values<3>(d_, averages, rows, column);
          }
          break;
        case 2:
          sound &= average_values<2>(d_, averages, rows, column);
          break;
        default:
          sound &= average_values<1>(d_, averages, rows, column);
      }
    }
    return sound;
  }

  const ForwardParams& p_;
  const int64_t batch_, first_row_;
  const ShortScratch s_;
  const ScaleFactors scale_;
  const DF d_;
  const size_t vector_, rows_, lanes_;
  int64_t head_ = 0;
};

}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_SHORT_HEADS_INL_H_
