// Forward attention of short heads. For short sequences, the bookkeeping of a block costs as much
// as its products. All keys form one step of the softmax here, and scores, weights and the product
// with V are computed for a strip of queries at once. Supports only causal order, lengths and a
// right window. Sums are added in the same order as in a block, so the results have the same bits.
#if defined(MULTIHEAD_CPU_ATTENTION_FORWARD_SHORT_HEADS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_ATTENTION_FORWARD_SHORT_HEADS_INL_H_
#undef MULTIHEAD_CPU_ATTENTION_FORWARD_SHORT_HEADS_INL_H_
#else
#define MULTIHEAD_CPU_ATTENTION_FORWARD_SHORT_HEADS_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "cpu/attention/block/query_block-inl.h"
#include "cpu/attention/block/score_passes-inl.h"
#include "cpu/gemm/micro_kernel-inl.h"
#include "cpu/kernels.h"
#include "cpu/simd/file_namespace.h"
#include "cpu/simd/simd-inl.h"
#include "hwy/highway.h"
#include "rules/lse.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

// Arrays of a job in its scratch memory.
struct ShortScratch {
  float* queries;     // [head_dim][lanes of a strip], transposed
  float* scores;      // [key][lanes of a strip]
  float* row_max;     // [lane of a strip]
  float* row_sum;     // [lane of a strip] sum of the weights
  float* inverse;     // [lane of a strip] 1 / row_sum
  int32_t* last_key;  // [row]
  uint64_t bytes;
};

inline ShortScratch lay_out_short(const AttentionParams& p, const BlockTiling& g, void* memory) {
  ShortScratch s{};
  rules::Arena take(memory);
  take(s.queries, score_lanes() * static_cast<uint64_t>(p.head_dim));
  take(s.scores, score_lanes() * static_cast<uint64_t>(p.keys));
  take(s.row_max, score_lanes());
  take(s.row_sum, score_lanes());
  take(s.inverse, score_lanes());
  take(s.last_key, static_cast<uint64_t>(g.rows));
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
  const int32_t* last;  // [query] end of the visible keys
  size_t unmasked_end;  // end of the keys that all queries see
  float* row_max;       // [query] raised to its largest score
};

// Scores of keys from .. to - 1 for the queries in kVecs vectors, beginning with query `first`;
// -inf for hidden keys.
template <size_t kVecs, class D>
HWY_NOINLINE void score_short_keys(D d, const ShortScores& s, size_t first, size_t from,
                                   size_t to) {
  using V = hn::Vec<D>;
  const hn::RebindToSigned<D> di;
  const size_t lanes = hn::Lanes(d);
  const size_t lane = first * lanes;
  size_t key = from;
  cut_rows<TileSize::rows(kVecs)>(to - from, [&](auto count) HWY_ATTR MULTIHEAD_INLINED {
    constexpr size_t kRows = decltype(count)::value;
    V sum[kRows][kVecs];
    add_products<ALayout::kRowMajor, F32Arithmetic>(
        d, s.k + static_cast<ptrdiff_t>(key) * s.k_stride, s.k_stride, s.queries + lane,
        static_cast<ptrdiff_t>(s.stride), s.depth, sum);
    if (key + kRows > s.unmasked_end) {
      for (size_t v = 0; v < kVecs; ++v) {
        const auto last = hn::LoadU(di, s.last + lane + v * lanes);
        for (size_t r = 0; r < kRows; ++r) {
          const auto seen = hn::Lt(hn::Set(di, static_cast<int32_t>(key + r)), last);
          sum[r][v] = hn::IfThenElse(hn::RebindMask(d, seen), sum[r][v], hn::Set(d, kNegInf));
        }
      }
    }
    float* const scores = s.scores + key * s.stride + lane;
    float* const row_max = s.row_max + lane;
    for (size_t v = 0; v < kVecs; ++v) {
      V largest = hn::LoadU(d, row_max + v * lanes);
      for (size_t r = 0; r < kRows; ++r) {
        largest = hn::Max(sum[r][v], largest);
        hn::StoreU(sum[r][v], d, scores + r * s.stride + v * lanes);
      }
      hn::StoreU(largest, d, row_max + v * lanes);
    }
    key += kRows;
  });
}

// Multiplies the weights of a strip of queries by V and normalizes.
struct ShortOutput {
  const float* weights;  // [key][stride]
  size_t stride;
  const float* v;
  ptrdiff_t v_stride;
  const int32_t* last;   // [query]
  const float* inverse;  // [query] 1 / sum of its weights
  float* out;
  ptrdiff_t out_stride;
};

// Computes kVecs vectors of columns of `rows` queries. Returns true if no result is NaN.
template <size_t kVecs, class D>
HWY_NOINLINE bool store_output(D d, const ShortOutput& s, size_t rows, size_t column) {
  using V = hn::Vec<D>;
  // If a tile is within one vector of queries, all its weights end at the same key.
  constexpr size_t kMost = HWY_MIN(TileSize::rows(kVecs), kSide<D>);
  constexpr size_t kTile = kMost == 6 ? 4 : kMost;
  auto nan = hn::MaskFalse(d);
  size_t row = 0;
  cut_rows<kTile>(rows, [&](auto count) HWY_ATTR MULTIHEAD_INLINED {
    constexpr size_t kRows = decltype(count)::value;
    V sum[kRows][kVecs];
    add_products<ALayout::kColMajor, F32Arithmetic>(
        d, s.weights + row, static_cast<ptrdiff_t>(s.stride), s.v + column, s.v_stride,
        static_cast<size_t>(s.last[row + kRows - 1]), sum);
    float* to = s.out + static_cast<ptrdiff_t>(row) * s.out_stride + column;
    for (size_t r = 0; r < kRows; ++r, to += s.out_stride) {
      const V inverse = hn::Set(d, s.inverse[row + r]);
      for (size_t v = 0; v < kVecs; ++v) {
        const V value = hn::Mul(sum[r][v], inverse);
        nan = hn::Or(nan, hn::IsNaN(value));
        hn::StoreU(value, d, to + v * hn::Lanes(d));
      }
    }
    row += kRows;
  });
  return hn::AllFalse(d, nan);
}

// Rows of a job, computed one head after the other.
class ShortHeads {
 public:
  ShortHeads(const AttentionParams& params, const BlockTiling& tiling, const BlockJob& job,
             void* scratch)
      : p_(params),
        batch_(job.batch),
        first_row_(job.first_row),
        s_(lay_out_short(params, tiling, scratch)),
        vector_(hn::Lanes(d_)),
        rows_(std::min(static_cast<size_t>(tiling.rows),
                       static_cast<size_t>(params.end_row() - job.first_row))),
        lanes_(round_up(rows_, vector_)) {
    load_rows();
  }

  // Call this again after other code has used the scratch memory.
  void load_rows() {
    const rules::EntryVisibility visibility = p_.visibility.entry(batch_);
    for (size_t row = 0; row < lanes_; ++row) {
      // Padding lanes repeat the last row.
      const auto query = first_row_ + static_cast<int64_t>(std::min(row, rows_ - 1));
      s_.last_key[row] = static_cast<int32_t>(visibility.seen_by(query).last);
    }
  }

  // Returns false if a row must be computed by a block: it sees no key, or a result is NaN.
  bool compute(int64_t head) {
    head_ = head;
    const size_t vectors = lanes_ / vector_;
    // Make the strips as equal as possible.
    const size_t strips = (vectors + TileSize::kScoreVecs - 1) / TileSize::kScoreVecs;
    const size_t step = ceil_div(vectors, strips);
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
                             .depth = static_cast<size_t>(p_.head_dim),
                             .scores = s_.scores,
                             .stride = stride,
                             .last = last,
                             .unmasked_end = static_cast<size_t>(last[0]),
                             .row_max = s_.row_max};
    score<kVecs, kVecs>(scores, 0);

    const ToLog2<DF> to_log2(d_, SoftmaxFactor(p_.scale.softmax));
    bool sound = true;
    const size_t rows = std::min(stride, rows_ - lane);
    for (size_t v = 0; v < kVecs; ++v) {
      const size_t at = v * vector_;
      const auto row_max = finite_reference(d_, hn::LoadU(d_, s_.row_max + at));
      const auto sum = exp_and_sum(d_, s_.scores + at, stride, visible_end(last, v), row_max,
                                   to_log2, exp2_table());
      sound &= hn::AllTrue(d_, hn::Gt(sum, hn::Zero(d_)));
      hn::StoreU(sum, d_, s_.row_sum + at);
      hn::StoreU(hn::Div(hn::Set(d_, 1.0F), sum), d_, s_.inverse + at);
    }

    if (p_.lse.data != nullptr) store_lse(lane, rows);
    const auto first = first_row_ + static_cast<int64_t>(lane);
    const ShortOutput output{
        .weights = s_.scores,
        .stride = stride,
        .v = row_of(p_.v, 0),
        .v_stride = static_cast<ptrdiff_t>(p_.v.stride[2]),
        .last = last,
        .inverse = s_.inverse,
        .out = static_cast<float*>(p_.out.data) + row_offset(p_.out.stride, batch_, head_, first),
        .out_stride = static_cast<ptrdiff_t>(p_.out.stride[2])};
    return store(output, rows) && sound;
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
      transpose_rows(d_, rows.data(), static_cast<size_t>(p_.head_dim), p_.scale.queries,
                     s_.queries + v * vector_, kVecs * vector_);
      hn::StoreU(hn::Set(d_, kNegInf), d_, s_.row_max + v * vector_);
    }
  }

  // Stores the LSE of a strip. A block later overwrites rows that see no key.
  HWY_NOINLINE void store_lse(size_t lane, size_t rows) const {
    for (size_t i = 0; i < rows; ++i) {
      *p_.lse.row(batch_, head_, first_row_ + static_cast<int64_t>(lane + i)) =
          rules::lse_of(s_.row_max[i], p_.scale.softmax, s_.row_sum[i]);
    }
  }

  // End of the keys that at least one query of a vector sees.
  size_t visible_end(const int32_t* last, size_t v) const {
    return static_cast<size_t>(last[(v + 1) * vector_ - 1]);
  }

  // Processes keys after `key` for the last kLeft vectors of a strip. In causal order, the first of
  // these vectors runs out of visible keys first.
  template <size_t kVecs, size_t kLeft>
  HWY_INLINE void score(const ShortScores& scores, size_t key) {
    constexpr size_t kFirst = kVecs - kLeft;
    const size_t end = visible_end(scores.last, kFirst);
    if (key < end) score_short_keys<kLeft>(d_, scores, kFirst, key, end);
    if constexpr (kLeft > 1) score<kVecs, kLeft - 1>(scores, std::max(key, end));
  }

  HWY_INLINE bool store(const ShortOutput& output, size_t rows) {
    const auto width = static_cast<size_t>(p_.value_dim);
    bool sound = true;
    for (size_t column = 0; column < width; column += strip_lanes()) {
      switch (std::min(strip_lanes(), width - column) / vector_) {
        case 4:
          if constexpr (TileSize::kMaxVecs >= 4) {
            sound &= store_output<4>(d_, output, rows, column);
          }
          break;
        case 3:
          if constexpr (TileSize::kMaxVecs >= 3) {
            sound &= store_output<3>(d_, output, rows, column);
          }
          break;
        case 2:
          sound &= store_output<2>(d_, output, rows, column);
          break;
        default:
          sound &= store_output<1>(d_, output, rows, column);
      }
    }
    return sound;
  }

  const AttentionParams& p_;
  const int64_t batch_, first_row_;
  const ShortScratch s_;
  const DF d_;
  const size_t vector_, rows_, lanes_;
  int64_t head_ = 0;
};

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_ATTENTION_FORWARD_SHORT_HEADS_INL_H_
