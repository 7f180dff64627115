// Scores of a panel of rows against a block of keys.
#if defined(MULTIHEAD_CPU_ATTENTION_BLOCK_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_ATTENTION_BLOCK_SCORES_INL_H_
#undef MULTIHEAD_CPU_ATTENTION_BLOCK_SCORES_INL_H_
#else
#define MULTIHEAD_CPU_ATTENTION_BLOCK_SCORES_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/attention/block/query_block-inl.h"
#include "cpu/gemm/micro_kernel-inl.h"
#include "cpu/simd/file_namespace.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

// Limit of the sum of a key block's weights if the exponentials are fused into Q K^T. Above this
// limit, the softmax reference is raised and the block recomputed. Needs kExp2Overflows: a weight
// too large for a float must make the sum infinite.
constexpr float kLargestFusedSum = 65536.0F;
static_assert(!TileSize::kFuseExpIntoQK || kExp2Overflows);

template <class Products>
ScoreTile tile_of(const QueryBlock<Products>& b, const Panel& panel, const rules::KeyRange& keys) {
  return {.scores = b.s.scores,
          .stride = std::min(panel_lanes(), static_cast<size_t>(b.g.rows)),
          .first_key = keys.first,
          .keys = static_cast<size_t>(keys.last - keys.first),
          .lanes = panel.lanes,
          .rows = panel.rows};
}

// True if the mask hides the whole tile, which is then skipped.
template <class Products>
bool mask_hides_tile(const QueryBlock<Products>& b, const Panel& panel,
                     const rules::KeyRange& keys) {
  return b.p.mask.given() && hides_all(b.s.mask + panel.lane, b.p.mask.stride[3], panel.rows,
                                       keys.first, static_cast<size_t>(keys.last - keys.first));
}

// For each vector of rows, the end of the tile's visible keys, rounded up to whole tiles of the
// products.
template <class Products>
VisibleEnds visible_ends(const QueryBlock<Products>& b, const Panel& panel, const ScoreTile& tile) {
  // A tile of four rows is as fast as one of six.
  constexpr size_t kRows = TileSize::rows(TileSize::kScoreVecs);
  constexpr size_t kUnit = kRows == 6 ? 4 : kRows;
  VisibleEnds ends{};
  for (size_t v = 0; v * b.vector < panel.lanes; ++v) {
    const int64_t last = b.s.last_key[panel.lane + (v + 1) * b.vector - 1];
    const int64_t seen = std::max<int64_t>(last - tile.first_key, 0);
    ends[v] = std::min(tile.keys, round_up(static_cast<size_t>(seen), kUnit));
  }
  return ends;
}

// Product of the panel's queries and the tile's keys: from vector `first_vector` of each strip, and
// from key `from`.
template <class Products>
Product<typename Products::Key> score_product(const QueryBlock<Products>& b, const Panel& panel,
                                              const ScoreTile& tile,
                                              const KeyBlock<Products>& block, size_t first_vector,
                                              size_t from) {
  const size_t lane = first_vector * b.vector;
  const size_t lane_in_block = panel.lane + lane;
  const size_t strip = lane_in_block / score_lanes() * score_lanes();
  return {.a = block.k +
               (tile.first_key - block.keys.first + static_cast<int64_t>(from)) * block.k_stride,
          .a_stride = block.k_stride,
          .b = b.s.queries + strip * b.depth() + lane_in_block % score_lanes(),
          .b_stride = static_cast<ptrdiff_t>(score_lanes()),
          .b_strip = static_cast<ptrdiff_t>(score_lanes() * b.depth()),
          .c = tile.scores + from * tile.stride + lane,
          .c_stride = static_cast<ptrdiff_t>(tile.stride),
          .depth = b.depth()};
}

template <Result kResult, class Products>
HWY_INLINE void multiply(QueryBlock<Products>& b, const Product<typename Products::Key>& p,
                         size_t keys, size_t vecs) {
  if constexpr (Products::kTiles) {
    Products::multiply_scores(b.d, p, keys, vecs);
  } else {
    product<ALayout::kRowMajor, typename Products::Arithmetic, TileSize::kScoreVecs, kResult>(
        b.d, p, keys, vecs, [&](size_t, size_t) HWY_ATTR {
          if (kPrefetches) b.prefetched.ask(b.lines_per_score_tile);
          return p.depth;
        });
  }
}

// Turns a panel's scores into weights relative to its current reference, and sums them in
// block_sum.
template <class Products>
void weigh_by_reference(const QueryBlock<Products>& b, const Panel& panel, const ScoreTile& tile) {
  const ToLog2<DF> to_log2(b.d, b.softmax);
  for (size_t lane = 0; lane < panel.lanes; lane += b.vector) {
    const auto reference = hn::LoadU(b.d, b.s.reference + panel.lane + lane);
    const auto sum = exp_and_sum(b.d, tile.scores + lane, tile.stride, tile.keys, reference,
                                 to_log2, exp2_table());
    hn::StoreU(sum, b.d, b.s.block_sum + panel.lane + lane);
  }
}

// Computes the scores of keys [from, to) of the tile. Raises row_max if `raises_max`.
template <class Products>
void score_keys(QueryBlock<Products>& b, const Panel& panel, const ScoreTile& tile,
                const KeyBlock<Products>& block, size_t first_vector, size_t vecs, size_t from,
                size_t to, bool raises_max = false) {
  if (from >= to) return;
  auto p = score_product(b, panel, tile, block, first_vector, from);
  if (raises_max) p.column_max = b.s.row_max + panel.lane + first_vector * b.vector;
  multiply<Result::kProduct>(b, p, to - from, vecs);
}

// Computes the weights of a panel that sees the whole tile, relative to the current reference, with
// the exponentials fused into Q K^T. Returns false if the scores exceed the reference so far that
// it must be raised first.
template <class Products>
bool score_fused(QueryBlock<Products>& b, const Panel& panel, const ScoreTile& tile,
                 const KeyBlock<Products>& block) {
  auto p = score_product(b, panel, tile, block, 0, 0);
  if constexpr (Products::kTiles) {
    multiply<Result::kProduct>(b, p, tile.keys, panel.lanes / b.vector);
    weigh_by_reference(b, panel, tile);
  } else {
    std::fill_n(b.s.block_sum + panel.lane, panel.lanes, 0.0F);
    p.fused_exp = {.to_log2 = b.softmax.to_log2,
                   .reference = b.s.reference + panel.lane,
                   .sum = b.s.block_sum + panel.lane};
    multiply<Result::kWeights>(b, p, tile.keys, panel.lanes / b.vector);
  }
  // If the sum is below the limit, so is every weight.
  auto largest = hn::LoadU(b.d, b.s.block_sum + panel.lane);
  for (size_t lane = b.vector; lane < panel.lanes; lane += b.vector) {
    largest = hn::Max(largest, hn::LoadU(b.d, b.s.block_sum + panel.lane + lane));
  }
  if (!hn::AllTrue(b.d, hn::Le(largest, hn::Set(b.d, kLargestFusedSum)))) return false;
  for (size_t lane = panel.lane; lane < panel.lane + panel.lanes; lane += b.vector) {
    const auto sum =
        hn::Add(hn::LoadU(b.d, b.s.row_sum + lane), hn::LoadU(b.d, b.s.block_sum + lane));
    hn::StoreU(sum, b.d, b.s.row_sum + lane);
  }
  return true;
}

// Turns products into capped scores: scale, then soft cap.
template <class Products>
void scale_and_cap(const QueryBlock<Products>& b, const ScoreTile& tile) {
  if (b.scale.scores != 1.0F) scale_scores(b.d, tile, b.scale.scores);
  if (b.p.softcap > 0.0F) cap_scores(b.d, tile, b.p.softcap);
}

// Applies the passes over capped scores, except the visible range: bias, ALiBi and mask.
template <class Products>
void add_and_mask(const QueryBlock<Products>& b, const Panel& panel, const ScoreTile& tile) {
  if (b.p.bias.given()) add_bias(b.d, tile, b.s.bias + panel.lane, b.p.bias.stride[3]);
  if (b.p.alibi_slopes != nullptr) {
    add_alibi(b.d, tile, b.s.alibi_slope + panel.lane, b.s.alibi_position + panel.lane);
  }
  if (b.p.mask.given()) hide_by_mask(b.d, tile, b.s.mask + panel.lane, b.p.mask.stride[3]);
}

// Runs the passes between the products, up to `stage`, except the one that hides keys outside the
// visible range.
template <class Products>
void apply_passes(const QueryBlock<Products>& b, const Panel& panel, const ScoreTile& tile,
                  ScoreStage stage) {
  scale_and_cap(b, tile);
  if (stage != ScoreStage::kCapped) add_and_mask(b, panel, tile);
}

// Vectors of a strip see keys up to ends that rise with the vector. Calls visit(first vector,
// vectors, from, to) for ranges of keys after `from`, each with all vectors that see the range.
template <class Visit>
HWY_INLINE void for_ending_vectors(const VisibleEnds& visible_end, size_t strip, size_t vecs,
                                   size_t from, const Visit& visit) {
  // With strips of two vectors, keep computing both after the first one has no visible keys left:
  // one vector costs as much as two.
  constexpr bool kDropsVectors = TileSize::kScoreVecs > 2;
  for (size_t out = kDropsVectors ? 0 : vecs - 1; out < vecs; ++out) {
    const size_t first = kDropsVectors ? out : 0;
    const size_t to = visible_end[strip + out];
    if (to > from) visit(strip + first, vecs - first, from, to);
    from = std::max(from, to);
  }
}

// Computes the scores of the panel's rows against the tile, -inf for hidden keys, and raises
// row_max.
template <class Products>
void score_visible(QueryBlock<Products>& b, const Panel& panel, const ScoreTile& tile,
                   const KeyBlock<Products>& block, const VisibleEnds& visible_end) {
  constexpr size_t kUnit = TileSize::rows(TileSize::kScoreVecs);
  const auto within = [&](int64_t key) {
    return static_cast<size_t>(
        std::clamp<int64_t>(key - tile.first_key, 0, static_cast<int64_t>(tile.keys)));
  };
  const bool plain = b.plain();
  const size_t unmasked_begin = within(panel.unmasked.first);
  const size_t vectors = panel.lanes / b.vector;
  // All rows of a strip see keys [unmasked_begin, unmasked_end): their maxima are taken in
  // registers, unless later passes change the scores.
  const auto unmasked_end_of = [&](size_t strip) HWY_ATTR {
    const size_t seen = within(b.s.last_key[panel.lane + strip * score_lanes()]);
    return std::max(unmasked_begin, seen == tile.keys ? seen : seen / kUnit * kUnit);
  };
  for (size_t v = 0; v < vectors; v += TileSize::kScoreVecs) {
    const size_t vecs = std::min(TileSize::kScoreVecs, vectors - v);
    const size_t unmasked_end = unmasked_end_of(v / TileSize::kScoreVecs);
    score_keys(b, panel, tile, block, v, vecs, 0, unmasked_begin);
    score_keys(b, panel, tile, block, v, vecs, unmasked_begin, unmasked_end, plain);
    for_ending_vectors(visible_end, v, vecs, unmasked_end,
                       [&](size_t first, size_t count, size_t from, size_t to)
                           HWY_ATTR { score_keys(b, panel, tile, block, first, count, from, to); });
  }
  if (!plain) apply_passes(b, panel, tile, ScoreStage::kMasked);
  for (size_t v = 0; v < vectors; ++v) {
    const ScoreTile lanes = tile.vector(v * b.vector, b.vector);
    const size_t first = panel.lane + v * b.vector;
    const size_t unmasked_end = unmasked_end_of(v / TileSize::kScoreVecs);
    float* const row_max = b.s.row_max + first;
    const auto hide = [&](size_t from, size_t to) HWY_ATTR {
      if (from >= to) return;
      hide_by_range(b.d,
                    lanes.part(tile.first_key + static_cast<int64_t>(from),
                               tile.first_key + static_cast<int64_t>(to)),
                    b.s.first_key + first, b.s.last_key + first, plain ? row_max : nullptr);
    };
    hide(0, unmasked_begin);
    // The vector's first row has the lowest end of visible keys.
    const size_t shared =
        std::min(std::max(within(b.s.last_key[first]), unmasked_end), visible_end[v]);
    if (plain && shared > unmasked_end) {
      raise_row_max(b.d, lanes.scores + unmasked_end * tile.stride, tile.stride,
                    shared - unmasked_end, row_max);
    }
    hide(shared, visible_end[v]);
    if (!plain) raise_row_max(b.d, lanes.scores, tile.stride, visible_end[v], row_max);
  }
}

// Computes all scores of the panel against `keys`, up to `stage`. From kMasked on, hidden scores
// are -inf.
template <class Products>
ScoreTile score_all(QueryBlock<Products>& b, const Panel& panel, const rules::KeyRange& keys,
                    const KeyBlock<Products>& block, ScoreStage stage) {
  const ScoreTile tile = tile_of(b, panel, keys);
  const size_t vectors = panel.lanes / b.vector;
  for (size_t v = 0; v < vectors; v += TileSize::kScoreVecs) {
    score_keys(b, panel, tile, block, v, std::min(TileSize::kScoreVecs, vectors - v), 0, tile.keys);
  }
  if (stage == ScoreStage::kRaw) return tile;
  apply_passes(b, panel, tile, stage);
  if (stage == ScoreStage::kCapped) return tile;
  hide_by_range(b.d, tile, b.s.first_key + panel.lane, b.s.last_key + panel.lane, nullptr);
  return tile;
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_ATTENTION_BLOCK_SCORES_INL_H_
