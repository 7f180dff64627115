// Forward attention of one block of query rows.
//
// FlashAttention-2's order (Dao, arXiv:2307.08691): a block of queries walks along the keys
// and carries its running maximum m, sum l and unnormalised output. Scores are kept
// transposed, queries in the vector lanes:
//
//   Qt[d][query]      the block's queries, transposed once
//   St[key][query]  = sum over d of K[key][d] * Qt[d][query]         broadcast K, vector Qt
//   online softmax    every lane its own query: no horizontal maximum or sum anywhere
//   O[query][:]    += sum over keys of St[key][query] * V[key][:]    broadcast St, vector V
//
// so K and V are read where they lie, V from a copy where that is faster. A block is cut into
// panels: one panel's scores against a key block stay near, the key block is shared by the panels.
// Of what causal order hides only the vectors and tiles at its edge are computed at all.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "cpu/kernels.h"
#include "rules/dropout_mask.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/forward.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/block_layout-inl.h"
#include "cpu/micro_kernel-inl.h"
#include "cpu/prefetch-inl.h"
#include "cpu/score_passes-inl.h"
#include "cpu/short_heads-inl.h"
#include "cpu/simd-inl.h"
#include "cpu/softmax-inl.h"
#include "cpu/stored_rows-inl.h"
#include "cpu/transpose-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// A hidden key's weight, in the pass that has to tell it from one that underflowed.
constexpr float kHidden = -1.0F;
// Of the weights of one key block, where they are made at once with their scores: more, and what
// they are relative to has to rise first.
constexpr float kLargestSum = 65536.0F;

// kPairs: q, k and the weights are bf16 pairs, see pairs_fit().
template <bool kPairs>
class Block {
 public:
  Block(const ForwardParams& params, const ForwardJob& job, void* scratch)
      : p_(params),
        batch_(job.batch),
        kv_head_(job.kv_head),
        first_row_(job.first_row),
        s_(lay_out(params, scratch)),
        scale_(kPairs ? scale_factors_of_pairs(params) : scale_factors(params)),
        softmax_factor_(scale_.of_softmax),
        vector_(hn::Lanes(d_)),
        rows_(std::min(block_lanes(params), static_cast<size_t>(params.end_row() - job.first_row))),
        lanes_(round_up(rows_, vector_)),
        key_block_(key_block(params)),
        copies_values_(copies_values(params, rows_)),
        // Without an output V is not read.
        value_lanes_(params.out.data == nullptr
                         ? 0
                         : round_up(static_cast<size_t>(params.value_width), vector_)),
        captures_weights_(!kPairs && captures_weights(params)),
        stores_means_(stores_means(params)) {
    load_rows();
  }

  // The same rows of another head.
  void move_to(int64_t kv_head) { kv_head_ = kv_head; }

  int64_t first_head() const { return kv_head_ * p_.group(); }
  int64_t head_of(size_t row) const { return first_head() + s_.place[row].member; }

  // The online softmax over all keys, if anything needs it.
  void compute(const ForwardJob* next) {
    load_head();
    if (kPrefetches && !is_small()) look_ahead(next);
    if (!needs_softmax(p_)) return;
    for_weights([&](const ScoreCapture& capture) { hide_unvisited(capture); });
    float* block_m = s_.block_m;
    for_key_blocks(block_, [&](const KeyBlock& block) HWY_ATTR {
      for (Panel& panel : panels()) {
        const rules::KeyRange keys = intersection(block.keys, panel.keys);
        if (!keys.empty() && !mask_empties(panel, keys)) attend(panel, keys, block);
      }
      if (captures_weights_) block_m = std::copy_n(s_.m, lanes_, block_m);
    });
    for (const Panel& panel : panels()) {
      if (!panel.started)
        std::fill_n(s_.out + panel.lane * value_lanes_, panel.lanes * value_lanes_, 0.0F);
    }
  }

  // Normalises and stores what was asked for. Returns false if that needs the f32 scores, which
  // pairs do not have.
  bool finish() {
    if (needs_softmax(p_) && !normalise_and_store()) {
      if constexpr (kPairs) return false;
      second_pass(ScoreStage::kWeights, block_,
                  [&](const Panel& panel, const ScoreTile& tile, const KeyBlock& block)
                      HWY_ATTR { add_visible_values(panel, tile, block); });
      for (size_t row = 0; row < rows_; ++row) {
        if (s_.careful[row] != 0 && p_.out.data != nullptr) store_out(row);
      }
    }
    if (p_.lse.data != nullptr) {
      for (size_t row = 0; row < rows_; ++row) store_lse(row);
    }
    if (p_.dropout_mask.data != nullptr) {
      for (size_t row = 0; row < rows_; ++row) store_dropout_mask(row);
    }
    for (const ScoreCapture& capture : p_.captures) {
      if (capture.stage != ScoreStage::kWeights) store_capture(capture);
    }
    if (captures_weights_) finish_weights();
    return true;
  }

 private:
  struct Panel {
    size_t lane;           // first lane within the block
    size_t lanes, rows;    // with and without padding
    rules::KeyRange keys;  // that any of its rows sees
    rules::KeyRange full;  // that all of its rows see
    bool transposed;       // whether its queries are there
    bool started;          // whether its output holds anything yet
  };
  // Column c of a row lies in strip c / strip_lanes().
  struct Values {
    const float* data;
    ptrdiff_t stride, strip;

    float at(size_t row, size_t column) const {
      const float* from = data + static_cast<ptrdiff_t>(row) * stride;
      return from[static_cast<ptrdiff_t>(column / strip_lanes()) * strip +
                  static_cast<ptrdiff_t>(column % strip_lanes())];
    }
  };
  // Of the products; bf16 is read where it lies, two numbers at a time.
  using Key = std::conditional_t<kPairs, uint16_t, float>;
  struct Keys {
    const Key* data;
    ptrdiff_t stride;
  };
  struct KeyBlock {
    rules::KeyRange keys;
    Keys k;  // row 0 is keys.first
    Values v;
  };
  // Of the keys of a tile, those that each vector of lanes may see; they rise with the vector.
  using Reach = std::array<size_t, TileSize::kPanelVecs>;

  static rules::KeyRange intersection(const rules::KeyRange& a, const rules::KeyRange& b) {
    return {std::max(a.first, b.first), std::min(a.last, b.last)};
  }

  bool sees_a_key(size_t row) const {
    for (int64_t key = s_.first_key[row]; key < s_.last_key[row]; ++key) {
      const bool allowed = !p_.mask.given() || s_.mask[row][key * p_.mask.stride[3]] != 0;
      const bool biased = !p_.bias.given() || s_.bias[row][key * p_.bias.stride[3]] != kNegInf;
      if (allowed && biased) return true;
    }
    return false;
  }

  void load_rows() {
    const rules::EntryVisibility visibility = p_.visibility.of_entry(batch_);
    const int64_t group = p_.group();
    int64_t query = first_row_ / group;
    int64_t member = first_row_ % group;
    for (size_t row = 0; row < lanes_; ++row) {
      s_.place[row] = {static_cast<int32_t>(member), static_cast<int32_t>(query)};
      // Padding lanes repeat the last row.
      if (row + 1 < rows_ && ++member == group) {
        member = 0;
        ++query;
      }
    }
    const auto range_of = [&](size_t row) {
      const rules::KeyRange range = visibility.of_query(s_.place[row].query);
      s_.first_key[row] = static_cast<int32_t>(std::min(range.first, p_.keys));
      s_.last_key[row] = static_cast<int32_t>(range.last);
    };
    range_of(0);
    range_of(lanes_ - 1);
    // Both ends rise with the query. Row by row they take 1 % of bert, whose rows all see the same.
    if (s_.first_key[0] == s_.first_key[lanes_ - 1] && s_.last_key[0] == s_.last_key[lanes_ - 1]) {
      std::fill_n(s_.first_key, lanes_, s_.first_key[0]);
      std::fill_n(s_.last_key, lanes_, s_.last_key[0]);
    } else {
      for (size_t row = 1; row + 1 < lanes_; ++row) range_of(row);
    }
    block_ = {s_.first_key[0], s_.last_key[rows_ - 1]};
    for (size_t lane = 0; lane < lanes_; lane += panel_lanes()) {
      Panel& panel = panels_[panel_count_++];
      panel = {.lane = lane,
               .lanes = std::min(panel_lanes(), lanes_ - lane),
               .rows = std::min(panel_lanes(), rows_ - lane),
               .keys = {},
               .full = {},
               .transposed = false,
               .started = false};
      const size_t last = lane + panel.rows - 1;
      panel.keys = {s_.first_key[lane], s_.last_key[last]};
      panel.full = {s_.first_key[last], s_.last_key[lane]};
    }
  }

  void load_head() {
    std::fill_n(s_.top, lanes_, kNegInf);
    std::fill_n(s_.m, lanes_, kNegInf);
    std::fill_n(s_.l, lanes_, 0.0F);
    for (Panel& panel : panels()) panel.transposed = panel.started = false;
    hn::StoreU(hn::Zero(d_), d_, s_.nan);
    if (p_.mask.given()) {
      for (size_t row = 0; row < lanes_; ++row) {
        s_.mask[row] = p_.mask.row(batch_, head_of(row), s_.place[row].query);
      }
    }
    if (p_.bias.given()) {
      for (size_t row = 0; row < lanes_; ++row) {
        s_.bias[row] = p_.bias.row(batch_, head_of(row), s_.place[row].query);
      }
    }
    if (p_.alibi_slopes != nullptr) {
      const int64_t shift = p_.alibi_shift(batch_);
      for (size_t row = 0; row < lanes_; ++row) {
        s_.alibi_slope[row] = p_.alibi_slopes[head_of(row)];
        s_.alibi_end[row] = static_cast<int32_t>(s_.place[row].query + shift);
      }
    }
  }

  bool is_small() const { return p_.keys * (p_.key_width + p_.value_width) <= kSmall; }

  // Where this block's output goes, and what the next one begins with, spread over the tiles of
  // this one.
  void look_ahead(const ForwardJob* next) {
    ahead_ = RowsAhead();
    const int64_t group = p_.group();
    const StoredRows out{.data = p_.out.data, .element = p_.out.element, .stride = p_.out.stride};
    ahead_.add(out, {.batch = batch_,
                     .head = kv_head_ * group,
                     .group = group,
                     .first = first_row_,
                     .last = first_row_ + static_cast<int64_t>(rows_),
                     .width = p_.value_width});
    if (next != nullptr) {
      ahead_.add(p_.q, {.batch = next->batch,
                        .head = next->kv_head * group,
                        .group = group,
                        .first = next->first_row,
                        .last = std::min(p_.end_row(),
                                         next->first_row + static_cast<int64_t>(block_lanes(p_))),
                        .width = p_.key_width});
      if (next->batch != batch_ || next->kv_head != kv_head_) {
        RowsAhead::Part keys{.batch = next->batch,
                             .head = next->kv_head,
                             .group = 1,
                             .first = 0,
                             .last = std::min(key_block_, p_.keys),
                             .width = p_.key_width};
        ahead_.add(p_.k, keys);
        keys.width = p_.value_width;
        ahead_.add(p_.v, keys);
      }
    }
    // Half of them by the tiles of either product, which take about the same time: 32 at once, more
    // than a core keeps open, lost 1 % of bert.
    const auto share = [&](size_t tiles) {
      return (ahead_.lines() / 2 + tiles) / std::max<size_t>(tiles, 1);
    };
    const auto tiles = [](size_t rows, size_t of_tile, size_t columns, size_t strip) {
      return (rows + of_tile - 1) / of_tile * ((columns + strip - 1) / strip);
    };
    const auto keys = static_cast<size_t>(std::max<int64_t>(block_.last - block_.first, 0));
    const auto step = static_cast<size_t>(std::max<int64_t>(key_block_, 1));
    lines_of_scores_ =
        share(tiles(keys, TileSize::rows(TileSize::kScoreVecs), lanes_, score_lanes()));
    lines_of_values_ =
        share((keys + step - 1) / step *
              tiles(rows_, TileSize::rows(TileSize::kMaxVecs), value_lanes_, strip_lanes()));
  }

  std::span<Panel> panels() { return {panels_.data(), panel_count_}; }
  std::span<const Panel> panels() const { return {panels_.data(), panel_count_}; }

  static constexpr Elements kElements = kPairs ? Elements::kPairs : Elements::kFloats;
  // A row of Q or K in the elements of the products.
  size_t score_depth() const { return static_cast<size_t>(p_.key_width) / (kPairs ? 2 : 1); }

  static const uint16_t* halves_at(const StoredRows& rows, int64_t batch, int64_t head,
                                   int64_t row) {
    return static_cast<const uint16_t*>(rows.data) + row_offset(rows.stride, batch, head, row);
  }

  // Not before they are needed: read in a burst, Q of a whole block keeps the products waiting.
  void transpose_queries(Panel& panel) {
    if (panel.transposed) return;
    panel.transposed = true;
    const auto width = static_cast<size_t>(p_.key_width);
    const bool in_place = is_float(p_.q);
    const auto* const queries = in_place ? static_cast<const float*>(p_.q.data) +
                                               row_offset(p_.q.stride, batch_, first_head(), 0)
                                         : nullptr;
    const int64_t of_member = p_.q.stride[1], of_query = p_.q.stride[2];
    std::array<const Key*, hn::MaxLanes(DF())> rows;
    for (size_t lane = panel.lane; lane < panel.lane + panel.lanes; lane += vector_) {
      for (size_t i = 0; i < vector_; ++i) {
        const RowPlace place = s_.place[lane + i];
        if constexpr (kPairs) {
          rows[i] = halves_at(p_.q, batch_, head_of(lane + i), place.query);
        } else if (in_place) {
          rows[i] = queries + place.member * of_member + place.query * of_query;
        } else {
          rows[i] = read_rows(d_, p_.q, batch_, head_of(lane + i), place.query, 1, width, width,
                              s_.query + i * width)
                        .data;
        }
      }
      float* const strip = s_.queries + lane / score_lanes() * score_lanes() * score_depth();
      float* const to = strip + lane % score_lanes();
      if constexpr (kPairs) {
        transpose_pairs(d_, rows.data(), score_depth(), to, score_lanes());
      } else {
        transpose_rows(d_, rows.data(), score_depth(), scale_.of_queries, to, score_lanes());
      }
    }
  }

  Keys load_keys(int64_t first, size_t count) const {
    if constexpr (kPairs) {
      return {halves_at(p_.k, batch_, kv_head_, first), static_cast<ptrdiff_t>(p_.k.stride[2])};
    } else {
      const auto width = static_cast<size_t>(p_.key_width);
      const FloatRows rows =
          read_rows(d_, p_.k, batch_, kv_head_, first, count, width, width, s_.keys);
      return {rows.data, rows.stride};
    }
  }

  Values load_values(int64_t first, size_t count) const {
    const auto width = static_cast<size_t>(p_.value_width);
    const auto strip = static_cast<ptrdiff_t>(strip_lanes());
    if (value_lanes_ == 0) return {nullptr, 0, 0};
    if (!copies_values_) {
      const FloatRows rows =
          read_rows(d_, p_.v, batch_, kv_head_, first, count, width, width, nullptr);
      return {rows.data, rows.stride, strip};
    }
    const ptrdiff_t from_strip = static_cast<ptrdiff_t>(count) * strip;
    if constexpr (kPairs) {
      const uint16_t* rows = halves_at(p_.v, batch_, kv_head_, first);
      copy_pairs_to_strips<TileSize::kMaxVecs>(d_, rows, static_cast<ptrdiff_t>(p_.v.stride[2]),
                                               count, width, s_.values, from_strip);
      return {s_.values, strip, from_strip};
    }
    const auto copy = [&](const FloatRows& rows, size_t row, size_t rows_count) HWY_ATTR {
      copy_to_strips<TileSize::kMaxVecs>(d_, rows, rows_count, width,
                                         s_.values + row * strip_lanes(), from_strip);
    };
    if (is_float(p_.v)) {
      copy(read_rows(d_, p_.v, batch_, kv_head_, first, count, width, width, nullptr), 0, count);
    } else {
      for (size_t row = 0; row < count; ++row) {
        copy(read_rows(d_, p_.v, batch_, kv_head_, first + static_cast<int64_t>(row), 1, width,
                       width, s_.value),
             row, 1);
      }
    }
    return {s_.values, strip, from_strip};
  }

  template <class Visit>
  HWY_INLINE void for_key_blocks(const rules::KeyRange& keys, const Visit& visit) {
    const int64_t step = key_block_;
    for (int64_t key = keys.first; key < keys.last; key += step) {
      const rules::KeyRange block{key, std::min(key + step, keys.last)};
      const auto count = static_cast<size_t>(block.last - key);
      visit(KeyBlock{block, load_keys(key, count), load_values(key, count)});
    }
  }

  ScoreTile tile_of(const Panel& panel, const rules::KeyRange& keys) const {
    return {.scores = s_.scores,
            .stride = std::min(panel_lanes(), block_lanes(p_)),
            .first_key = keys.first,
            .keys = static_cast<size_t>(keys.last - keys.first),
            .lanes = panel.lanes,
            .rows = panel.rows};
  }

  // Products of the panel's queries, from vector `first` of each strip, with keys
  // [from, to) of the tile.
  Product<Key> scores_of(const Panel& panel, const ScoreTile& tile, const KeyBlock& block,
                         size_t first, size_t from) const {
    const size_t width = score_depth();
    const size_t lane = first * vector_;
    const size_t in_block = panel.lane + lane;
    return {.a = block.k.data +
                 (tile.first_key - block.keys.first + static_cast<int64_t>(from)) * block.k.stride,
            .a_stride = block.k.stride,
            .b = s_.queries + in_block / score_lanes() * score_lanes() * width +
                 in_block % score_lanes(),
            .b_stride = static_cast<ptrdiff_t>(score_lanes()),
            .b_strip = static_cast<ptrdiff_t>(score_lanes() * width),
            .c = tile.scores + from * tile.stride + lane,
            .c_stride = static_cast<ptrdiff_t>(tile.stride),
            .depth = width};
  }
  template <Result kResult>
  HWY_INLINE void score_product(const Product<Key>& p, size_t keys, size_t vecs) {
    product<ALayout::kRowMajor, kElements, TileSize::kScoreVecs, kResult>(
        d_, p, keys, vecs, [&](size_t, size_t) HWY_ATTR {
          if (kPrefetches) ahead_.ask(lines_of_scores_);
          return p.depth;
        });
  }

  void multiply(const Panel& panel, const ScoreTile& tile, const KeyBlock& block, size_t first,
                size_t vecs, size_t from, size_t to, bool raises_top = false) {
    if (from >= to) return;
    Product<Key> p = scores_of(panel, tile, block, first, from);
    if (raises_top) p.top = s_.top + panel.lane + first * vector_;
    score_product<Result::kProduct>(p, to - from, vecs);
  }

  // Weights of a panel that sees all of the tile, relative to the maximum that it had before, in
  // one go with their scores. Returns false where scores exceed it by so much that it has to rise
  // first.
  bool weigh_at_once(const Panel& panel, const ScoreTile& tile, const KeyBlock& block) {
    std::fill_n(s_.sum + panel.lane, panel.lanes, 0.0F);
    Product<Key> p = scores_of(panel, tile, block, 0, 0);
    p.weighing = {.to_log2 = softmax_factor_.to_log2,
                  .reference = s_.m + panel.lane,
                  .sum = s_.sum + panel.lane};
    score_product<Result::kWeights>(p, tile.keys, panel.lanes / vector_);
    // What the sum of a key block does not exceed, none of its weights does.
    auto largest = hn::LoadU(d_, s_.sum + panel.lane);
    for (size_t lane = vector_; lane < panel.lanes; lane += vector_) {
      largest = hn::Max(largest, hn::LoadU(d_, s_.sum + panel.lane + lane));
    }
    if (!hn::AllTrue(d_, hn::Le(largest, hn::Set(d_, kLargestSum)))) return false;
    for (size_t lane = panel.lane; lane < panel.lane + panel.lanes; lane += vector_) {
      hn::StoreU(hn::Add(hn::LoadU(d_, s_.l + lane), hn::LoadU(d_, s_.sum + lane)), d_,
                 s_.l + lane);
    }
    return true;
  }

  Reach reach_of(const Panel& panel, const ScoreTile& tile) const {
    // A tile of four rows beside those of six is as fast.
    constexpr size_t kRows = TileSize::rows(TileSize::kScoreVecs);
    constexpr size_t kUnit = kRows == 6 ? 4 : kRows;
    Reach reach{};
    for (size_t v = 0; v * vector_ < panel.lanes; ++v) {
      const int64_t last = s_.last_key[panel.lane + (v + 1) * vector_ - 1];
      const int64_t seen = std::max<int64_t>(last - tile.first_key, 0);
      reach[v] = std::min(tile.keys, round_up(static_cast<size_t>(seen), kUnit));
    }
    return reach;
  }

  bool plain() const { return !changes_scores(p_) && !p_.mask.given(); }

  // Scores of what the panel's rows see of the tile, hidden ones -inf, and their maxima in top.
  void score_visible(const Panel& panel, const ScoreTile& tile, const KeyBlock& block,
                     const Reach& reach) {
    constexpr size_t kUnit = TileSize::rows(TileSize::kScoreVecs);
    const auto within = [&](int64_t key) {
      return static_cast<size_t>(
          std::clamp<int64_t>(key - tile.first_key, 0, static_cast<int64_t>(tile.keys)));
    };
    const bool is_plain = plain();
    const size_t low = within(panel.full.first);
    const size_t vectors = panel.lanes / vector_;
    // Every row of a strip sees keys [low, open): their maxima are taken as they leave the
    // registers, unless passes are still to change them.
    const auto open_of = [&](size_t strip) HWY_ATTR {
      const size_t seen = within(s_.last_key[panel.lane + strip * score_lanes()]);
      return std::max(low, seen == tile.keys ? seen : seen / kUnit * kUnit);
    };
    for (size_t v = 0; v < vectors; v += TileSize::kScoreVecs) {
      const size_t vecs = std::min(TileSize::kScoreVecs, vectors - v);
      const size_t open = open_of(v / TileSize::kScoreVecs);
      multiply(panel, tile, block, v, vecs, 0, low);
      multiply(panel, tile, block, v, vecs, low, open, is_plain);
      // Then the vectors drop out one by one, but of two: one alone is no faster than both.
      constexpr bool kDrops = TileSize::kScoreVecs > 2;
      size_t key = open;
      for (size_t out = kDrops ? 0 : vecs - 1; out < vecs; ++out) {
        const size_t first = kDrops ? out : 0;
        const size_t end = reach[v + out];
        multiply(panel, tile, block, v + first, vecs - first, key, end);
        key = std::max(key, end);
      }
    }
    if (!is_plain) apply_passes(panel, tile, ScoreStage::kMasked);
    for (size_t v = 0; v < vectors; ++v) {
      const ScoreTile lanes = tile.vector(v * vector_, vector_);
      const size_t first = panel.lane + v * vector_;
      const size_t open = open_of(v / TileSize::kScoreVecs);
      float* const top = s_.top + first;
      const auto hide = [&](size_t from, size_t to) HWY_ATTR {
        if (from >= to) return;
        hide_by_range(d_,
                      lanes.part(tile.first_key + static_cast<int64_t>(from),
                                 tile.first_key + static_cast<int64_t>(to)),
                      s_.first_key + first, s_.last_key + first, is_plain ? top : nullptr);
      };
      hide(0, low);
      // The vector's first row sees the fewest keys.
      const size_t shared = std::min(std::max(within(s_.last_key[first]), open), reach[v]);
      if (is_plain && shared > open) {
        raise_top(d_, lanes.scores + open * tile.stride, tile.stride, shared - open, top);
      }
      hide(shared, reach[v]);
      if (!is_plain) raise_top(d_, lanes.scores, tile.stride, reach[v], top);
    }
  }

  // What changes scores between the products, up to `stage`, but for the visible range.
  void apply_passes(const Panel& panel, const ScoreTile& tile, ScoreStage stage) {
    if (scale_.of_scores != 1.0F) scale_scores(d_, tile, scale_.of_scores);
    if (p_.softcap > 0.0F) cap_scores(d_, tile, p_.softcap);
    if (stage == ScoreStage::kCapped) return;
    if (p_.bias.given()) add_bias(d_, tile, s_.bias + panel.lane, p_.bias.stride[3]);
    if (p_.alibi_slopes != nullptr) {
      add_alibi(d_, tile, s_.alibi_slope + panel.lane, s_.alibi_end + panel.lane);
    }
    if (p_.mask.given()) hide_by_mask(d_, tile, s_.mask + panel.lane, p_.mask.stride[3]);
  }

  // All scores of the panel against `keys` of the block, up to `stage`; hidden ones are -inf from
  // kMasked on.
  ScoreTile score(const Panel& panel, const rules::KeyRange& keys, const KeyBlock& block,
                  ScoreStage stage) {
    const ScoreTile tile = tile_of(panel, keys);
    const size_t vectors = panel.lanes / vector_;
    for (size_t v = 0; v < vectors; v += TileSize::kScoreVecs) {
      multiply(panel, tile, block, v, std::min(TileSize::kScoreVecs, vectors - v), 0, tile.keys);
    }
    if (stage == ScoreStage::kRaw) return tile;
    apply_passes(panel, tile, stage);
    if (stage == ScoreStage::kCapped) return tile;
    hide_by_range(d_, tile, s_.first_key + panel.lane, s_.last_key + panel.lane, nullptr);
    return tile;
  }

  bool mask_empties(const Panel& panel, const rules::KeyRange& keys) const {
    return p_.mask.given() && hides_all(s_.mask + panel.lane, p_.mask.stride[3], panel.rows,
                                        keys.first, static_cast<size_t>(keys.last - keys.first));
  }

  void attend(Panel& panel, const rules::KeyRange& keys, const KeyBlock& block) {
    transpose_queries(panel);
    const ScoreTile tile = tile_of(panel, keys);
    const Reach reach = reach_of(panel, tile);
    bool weighed = false;
    if constexpr (TileSize::kWeighsAtOnce) {
      const bool sees_all = keys.first >= panel.full.first && keys.last <= panel.full.last;
      weighed = sees_all && panel.started && plain() && weigh_at_once(panel, tile, block);
    }
    if (!weighed) score_visible(panel, tile, block, reach);
    for (size_t v = 0; !weighed && v * vector_ < panel.lanes; ++v) {
      if (reach[v] == 0) continue;
      const size_t lane = v * vector_;
      const size_t row = panel.lane + lane;
      const bool rose =
          softmax_lanes(d_, tile.scores + lane, tile.stride, reach[v], softmax_factor_,
                        s_.top + row, s_.m + row, s_.l + row, s_.correction + row);
      if (rose && panel.started) rescale(row);
    }
    if (captures_weights_) store_weights(panel, tile, reach);
    if (value_lanes_ != 0) {
      clear_beyond_reach(panel, tile, reach);
      if (p_.dropout.probability > 0.0F) {
        drop_weights(d_, tile, s_.place + panel.lane, batch_, first_head(), p_.dropout);
      }
      for (size_t v = 0; kPairs && v * vector_ < panel.lanes; ++v) {
        pair_weights(d_, tile.scores + v * vector_, tile.stride, reach[v]);
      }
      weigh(panel, tile, block);
    }
    panel.started = true;
  }

  // Where a tile of rows straddles vectors, it reads weights that the first of them lacks.
  void clear_beyond_reach(const Panel& panel, const ScoreTile& tile, const Reach& reach) {
    constexpr size_t kRows = TileSize::rows(TileSize::kMaxVecs);
    const size_t vectors = panel.lanes / vector_;
    for (size_t v = 0; v < vectors; ++v) {
      const size_t beside = std::min(((v + 1) * vector_ + kRows - 2) / vector_, vectors - 1);
      const size_t end = p_.dropout.probability > 0.0F ? tile.keys : reach[beside];
      for (size_t key = reach[v]; key < end; ++key) {
        hn::StoreU(hn::Zero(d_), d_, tile.scores + key * tile.stride + v * vector_);
      }
    }
  }

  // In correction: 1 / l of a panel's rows.
  void invert_sums(const Panel& panel) {
    for (size_t lane = panel.lane; lane < panel.lane + panel.lanes; lane += vector_) {
      hn::StoreU(hn::Div(hn::Set(d_, 1.0F), hn::LoadU(d_, s_.l + lane)), d_, s_.correction + lane);
    }
  }

  // out (+)= weights * V, and from the last keys the means
  void weigh(const Panel& panel, const ScoreTile& tile, const KeyBlock& block) {
    Product<> p{.a = tile.scores,
                .a_stride = static_cast<ptrdiff_t>(tile.stride),
                .b = block.v.data + (tile.first_key - block.keys.first) * block.v.stride,
                .b_stride = block.v.stride,
                .b_strip = block.v.strip,
                .c = s_.out + panel.lane * value_lanes_,
                .c_stride = static_cast<ptrdiff_t>(value_lanes_),
                .depth = tile.keys,
                .accumulate = panel.started};
    if (stores_means_ && block.keys.last >= panel.keys.last) {
      invert_sums(panel);
      p.means = {.to = out_row<float>(panel.lane),
                 .stride = static_cast<ptrdiff_t>(p_.out.stride[2]),
                 .factor = s_.correction + panel.lane,
                 .nan = s_.nan};
    }
    const int32_t* const last = s_.last_key + panel.lane;
    product<ALayout::kColMajor, kElements>(
        d_, p, panel.rows, value_lanes_ / vector_, [&](size_t row, size_t rows) HWY_ATTR {
          if (kPrefetches) ahead_.ask(lines_of_values_);
          const int64_t seen = last[row + rows - 1] - tile.first_key;
          const auto keys =
              static_cast<size_t>(std::clamp<int64_t>(seen, 0, static_cast<int64_t>(tile.keys)));
          return kPairs ? (keys + 1) / 2 : keys;
        });
  }

  void scale_out(size_t row, float by) {
    float* const out = s_.out + row * value_lanes_;
    scale(out, out + value_lanes_, by);
  }

  // One vector of rows.
  void rescale(size_t first) {
    for (size_t row = first; row < first + vector_; ++row) {
      if (s_.correction[row] != 1.0F) scale_out(row, s_.correction[row]);
    }
  }

  // The sink is one more score, without a value.
  void join_sink(size_t row) {
    const auto factor = static_cast<double>(scale_.of_softmax);
    const auto m = static_cast<double>(s_.m[row]);
    const auto sink = static_cast<double>(p_.sinks[head_of(row)]);
    // Rounded to float before it is used: weights are computed from that maximum.
    const auto joined = static_cast<double>(static_cast<float>(std::max(m, sink / factor)));
    const double kept = std::exp((m - joined) * factor);
    s_.l[row] = static_cast<float>(static_cast<double>(s_.l[row]) * kept +
                                   std::exp(sink - joined * factor));
    s_.m[row] = static_cast<float>(joined);
    scale_out(row, static_cast<float>(kept));
  }

  // Returns false where some row has to be summed again with care.
  bool normalise_and_store() {
    if (p_.sinks != nullptr) {
      for (size_t row = 0; row < rows_; ++row) join_sink(row);
    }
    if (normalise_usual()) return true;
    bool done = true;
    for (size_t row = 0; row < rows_; ++row) {
      s_.careful[row] = normalise_and_store(row) ? 0 : 1;
      done &= s_.careful[row] == 0;
    }
    return done;
  }

  // Whether every row sees something, and no result is NaN: rows as nearly all are, without a
  // branch for each.
  bool normalise_usual() {
    if (!hn::AllTrue(d_, all_sums_positive())) return false;
    if (stores_means_) {
      const auto nan = hn::MaskFromVec(hn::LoadU(d_, s_.nan));
      return hn::AllFalse(d_, nan);
    }
    if (!stores_vectors(p_)) return false;
    for (const Panel& panel : panels()) invert_sums(panel);
    auto nan = hn::MaskFalse(d_);
    // Locals, which the stores cannot change: a third of this loop's time where rows are short.
    const RowPlace* HWY_RESTRICT place = s_.place;
    const float* HWY_RESTRICT inverses = s_.correction;
    const float* HWY_RESTRICT from = s_.out;
    float* const out =
        static_cast<float*>(p_.out.data) + row_offset(p_.out.stride, batch_, first_head(), 0);
    const int64_t of_member = p_.out.stride[1], of_query = p_.out.stride[2];
    const size_t rows = rows_, width = value_lanes_, vector = vector_;
    for (size_t row = 0; row < rows; ++row) {
      float* HWY_RESTRICT to = out + place[row].member * of_member + place[row].query * of_query;
      const auto inverse = hn::Set(d_, inverses[row]);
      for (size_t c = 0; c < width; c += vector, from += vector) {
        const auto mean = hn::Mul(hn::LoadU(d_, from), inverse);
        nan = hn::Or(nan, hn::IsNaN(mean));
        hn::StoreU(mean, d_, to + c);
      }
    }
    return hn::AllFalse(d_, nan);
  }

  hn::Mask<DF> all_sums_positive() const {
    auto positive = hn::Eq(hn::Zero(d_), hn::Zero(d_));
    for (size_t lane = 0; lane < lanes_; lane += vector_) {
      positive = hn::And(positive, hn::Gt(hn::LoadU(d_, s_.l + lane), hn::Zero(d_)));
    }
    return positive;
  }

  // Returns false where the row has to be summed again with care: a hidden value may be NaN or
  // infinite, and its weight of 0 times that is NaN. Looking for it in the result is cheap.
  bool normalise_and_store(size_t row) {
    // Scores that are -inf by overflow, not because they are hidden, have no softmax.
    if (s_.l[row] == 0.0F && sees_a_key(row)) s_.l[row] = std::numeric_limits<float>::quiet_NaN();
    const float sum = s_.l[row];
    float* const out = s_.out + row * value_lanes_;
    float* const to = stores_vectors(p_) ? out_row<float>(row) : out;
    // A sum of 0 is a row that sees nothing: the largest weight of any other is 1 or more.
    const bool nothing = sum == 0.0F;
    const float* const from = stores_means_ ? to : out;
    const auto inverse = hn::Set(d_, stores_means_ && !std::isnan(sum) ? 1.0F : 1.0F / sum);
    auto nan = hn::MaskFalse(d_);
    for (size_t c = 0; c < value_lanes_; c += vector_) {
      const auto mean = hn::Mul(hn::LoadU(d_, from + c), inverse);
      nan = hn::Or(nan, hn::IsNaN(mean));
      hn::StoreU(nothing ? hn::Zero(d_) : mean, d_, to + c);
    }
    if (!nothing && !std::isnan(sum) && !hn::AllFalse(d_, nan)) {
      std::fill_n(out, value_lanes_, 0.0F);
      return false;
    }
    if (to == out && p_.out.data != nullptr) store_out(row);
    return true;
  }

  // Scores once more, now that m and l are known: of every panel against `keys` (and, from
  // kMasked on, what it sees of them). Weights of hidden keys are kHidden.
  template <class Visit>
  HWY_INLINE void second_pass(ScoreStage stage, const rules::KeyRange& keys, const Visit& visit) {
    for_key_blocks(keys, [&](const KeyBlock& block) HWY_ATTR {
      for (Panel& panel : panels()) {
        const rules::KeyRange wanted =
            stage < ScoreStage::kMasked ? block.keys : intersection(block.keys, panel.keys);
        if (wanted.empty() || (stage >= ScoreStage::kMasked && mask_empties(panel, wanted))) {
          continue;
        }
        transpose_queries(panel);
        const ScoreTile tile = score(panel, wanted, block, stage);
        if (stage == ScoreStage::kWeights) to_weights(panel, tile);
        visit(panel, tile, block);
      }
    });
  }

  void to_weights(const Panel& panel, const ScoreTile& tile) {
    const auto neg_inf = hn::Set(d_, kNegInf);
    const ToLog2<DF> to_log2(d_, softmax_factor_);
    for (size_t lane = 0; lane < panel.lanes; lane += vector_) {
      const auto maximum = finite_maximum(d_, hn::LoadU(d_, s_.m + panel.lane + lane));
      const auto sum = hn::LoadU(d_, s_.l + panel.lane + lane);
      const auto one = hn::Set(d_, 1.0F);
      const auto inverse = hn::Div(one, hn::IfThenElse(hn::Eq(sum, hn::Zero(d_)), one, sum));
      for (size_t j = 0; j < tile.keys; ++j) {
        float* at = tile.scores + j * tile.stride + lane;
        const auto scored = hn::LoadU(d_, at);
        const auto weight =
            hn::Mul(exp_of_difference(d_, exp2_table(), scored, maximum, to_log2), inverse);
        const auto hidden = hn::Eq(scored, neg_inf);
        hn::StoreU(hn::IfThenElse(hidden, hn::Set(d_, kHidden), weight), d_, at);
      }
    }
  }

  void add_visible_values(const Panel& panel, const ScoreTile& tile, const KeyBlock& block) {
    for (size_t row = 0; row < panel.rows; ++row) {
      if (s_.careful[panel.lane + row] == 0) continue;
      float* out = s_.out + (panel.lane + row) * value_lanes_;
      const RowPlace place = s_.place[panel.lane + row];
      const int64_t head = head_of(panel.lane + row);
      const uint64_t threshold = rules::dropout_threshold(p_.dropout.probability);
      for (size_t j = 0; j < tile.keys; ++j) {
        float weight = tile.scores[j * tile.stride + row];
        if (weight == kHidden) continue;
        const int64_t key = tile.first_key + static_cast<int64_t>(j);
        if (p_.dropout.probability > 0.0F) {
          const bool kept =
              rules::dropout_keeps(p_.dropout.seed, batch_, head, place.query, key, threshold);
          weight = kept ? weight / (1.0F - p_.dropout.probability) : 0.0F;
        }
        const auto at = static_cast<size_t>(key - block.keys.first);
        for (size_t c = 0; c < static_cast<size_t>(p_.value_width); ++c) {
          out[c] += weight * block.v.at(at, c);
        }
      }
    }
  }

  template <class T>
  T* out_row(size_t row) const {
    return static_cast<T*>(p_.out.data) +
           row_offset(p_.out.stride, batch_, head_of(row), s_.place[row].query);
  }

  void store_out(size_t row) {
    const float* from = s_.out + row * value_lanes_;
    const auto width = static_cast<size_t>(p_.value_width);
    switch (p_.out.element) {
      case Element::kF16:
        return narrow(d_, from, width, out_row<hwy::float16_t>(row));
      case Element::kBF16:
        return narrow(d_, from, width, out_row<hwy::bfloat16_t>(row));
      case Element::kF32:
      case Element::kInt8:
        std::copy_n(from, width, out_row<float>(row));
    }
  }

  void store_lse(size_t row) {
    const auto sum = static_cast<double>(s_.l[row]);
    *p_.lse.row(batch_, head_of(row), s_.place[row].query) =
        sum == 0.0 ? kNegInf
                   : static_cast<float>(static_cast<double>(s_.m[row]) *
                                            static_cast<double>(scale_.of_softmax) +
                                        std::log(sum));
  }

  void store_dropout_mask(size_t row) {
    const uint64_t threshold = rules::dropout_threshold(p_.dropout.probability);
    const int64_t head = head_of(row), query = s_.place[row].query;
    uint8_t* mask = p_.dropout_mask.row(batch_, head, query);
    for (int64_t key = 0; key < p_.keys; key += 4) {
      const auto kept =
          rules::dropout_keeps_four(p_.dropout.seed, batch_, head, query, key / 4, threshold);
      for (int64_t j = key; j < std::min(key + 4, p_.keys); ++j) {
        mask[j] = kept[static_cast<size_t>(j - key)] ? 1 : 0;
      }
    }
  }

  // The row's place in a capture, or null where it is not asked for.
  float* captured_row(const ScoreCapture& capture, size_t row) const {
    const int64_t at = s_.place[row].query - capture.first_row;
    if (at < 0 || at >= capture.out.shape[2]) return nullptr;
    int64_t index = head_of(row);
    if (!capture.heads.empty()) {
      const auto found = std::find(capture.heads.begin(), capture.heads.end(), index);
      if (found == capture.heads.end()) return nullptr;
      index = found - capture.heads.begin();
    }
    const Dims& stride = capture.out.strides;
    return capture.out.data + batch_ * stride[0] + index * stride[1] + at * stride[2];
  }

  // The rows of a vector of lanes in a capture, at `key`; null where they are not asked for.
  using Rows = std::array<float*, hn::MaxLanes(DF())>;
  Rows captured_rows(const ScoreCapture& capture, const Panel& panel, size_t lane,
                     int64_t key) const {
    Rows rows{};
    for (size_t i = 0; i < vector_ && lane + i < panel.rows; ++i) {
      float* const to = captured_row(capture, panel.lane + lane + i);
      if (to != nullptr) rows[i] = to + key;
    }
    return rows;
  }

  // What no pass over the keys comes by is hidden. Returns whether anything is captured at all.
  bool hide_unvisited(const ScoreCapture& capture) const {
    const float hidden = capture.stage == ScoreStage::kWeights ? 0.0F : kNegInf;
    bool any = false;
    for (const Panel& panel : panels()) {
      const bool whole =
          p_.mask.given() || panel.keys.empty() || capture.stage < ScoreStage::kMasked;
      const rules::KeyRange seen = whole ? rules::KeyRange{0, 0} : panel.keys;
      for (size_t row = panel.lane; row < panel.lane + panel.rows; ++row) {
        float* const to = captured_row(capture, row);
        if (to == nullptr) continue;
        any = true;
        std::fill(to, to + seen.first, hidden);
        std::fill(to + seen.last, to + p_.keys, hidden);
      }
    }
    return any;
  }

  // Every capture of weights.
  template <class Visit>
  void for_weights(const Visit& visit) const {
    if (p_.weights.out.data != nullptr) visit(p_.weights);
    for (const ScoreCapture& capture : p_.captures) {
      if (capture.stage == ScoreStage::kWeights) visit(capture);
    }
  }

  // Relative to the maximum so far: finish_weights() makes them whole, which is far less work than
  // their scores once more.
  void store_weights(const Panel& panel, const ScoreTile& tile, const Reach& reach) const {
    for_weights([&](const ScoreCapture& capture) HWY_ATTR {
      for (size_t v = 0; v * vector_ < panel.lanes; ++v) {
        const size_t lane = v * vector_;
        const Rows rows = captured_rows(capture, panel, lane, tile.first_key);
        transpose_back(d_, tile.scores + lane, tile.stride, reach[v], rows.data(),
                       [](auto weight) HWY_ATTR { return weight; });
        for (float* row : rows) {
          if (row != nullptr) std::fill(row + reach[v], row + tile.keys, 0.0F);
        }
      }
    });
  }

  void finish_weights() {
    if (!hn::AllTrue(d_, all_sums_positive())) {
      // A NaN among a row's scores must not reach what is hidden.
      for_weights([&](const ScoreCapture& capture) HWY_ATTR { store_capture(capture); });
      return;
    }
    const int64_t step = key_block_;
    const float* block_m = s_.block_m;
    for (int64_t key = block_.first; key < block_.last; key += step, block_m += lanes_) {
      shares_of_sum(block_m);
      for_weights([&](const ScoreCapture& capture) HWY_ATTR {
        for (const Panel& panel : panels()) {
          const rules::KeyRange keys = intersection({key, key + step}, panel.keys);
          for (size_t row = panel.lane; row < panel.lane + panel.rows; ++row) {
            float* const to = captured_row(capture, row);
            if (to == nullptr || keys.empty()) continue;
            scale(to + keys.first, to + keys.last, s_.correction[row]);
          }
        }
      });
    }
  }

  // In correction: the share of the final sum that a weight of 1 is, relative to such maxima.
  void shares_of_sum(const float* block_m) {
    const auto one = hn::Set(d_, 1.0F);
    const ToLog2<DF> to_log2(d_, softmax_factor_);
    for (size_t lane = 0; lane < lanes_; lane += vector_) {
      const auto then = hn::LoadU(d_, block_m + lane);
      const auto now = hn::LoadU(d_, s_.m + lane);
      const auto grown =
          exp_of_difference(d_, exp2_table(), then, finite_maximum(d_, now), to_log2);
      const auto share = hn::IfThenElse(hn::Eq(then, now), one, grown);
      hn::StoreU(hn::Div(share, hn::LoadU(d_, s_.l + lane)), d_, s_.correction + lane);
    }
  }

  void scale(float* from, float* to, float by) const {
    const auto factor = hn::Set(d_, by);
    for (; from + vector_ <= to; from += vector_) {
      hn::StoreU(hn::Mul(hn::LoadU(d_, from), factor), d_, from);
    }
    for (; from < to; ++from) *from *= by;
  }

  void store_capture(const ScoreCapture& capture) {
    if (!hide_unvisited(capture)) return;
    const bool weights = capture.stage == ScoreStage::kWeights;
    const bool masked = capture.stage >= ScoreStage::kMasked;
    const bool raw = capture.stage == ScoreStage::kRaw;
    const auto unit = hn::Set(d_, scale_.of_softmax * (raw ? scale_.of_scores : 1.0F));
    const auto hidden_weight = hn::Set(d_, kHidden);
    const auto as_asked = [&](auto value) HWY_ATTR {
      return weights ? hn::IfThenZeroElse(hn::Eq(value, hidden_weight), value)
                     : hn::Mul(value, unit);
    };
    second_pass(capture.stage, masked ? block_ : p_.visibility.present(batch_),
                [&](const Panel& panel, const ScoreTile& tile, const KeyBlock&) HWY_ATTR {
                  for (size_t lane = 0; lane < panel.lanes; lane += vector_) {
                    const Rows rows = captured_rows(capture, panel, lane, tile.first_key);
                    transpose_back(d_, tile.scores + lane, tile.stride, tile.keys, rows.data(),
                                   as_asked);
                  }
                });
  }

  const ForwardParams& p_;
  const int64_t batch_;
  int64_t kv_head_;
  const int64_t first_row_;
  const Scratch s_;
  const ScaleFactors scale_;
  const SoftmaxFactor softmax_factor_;
  const DF d_;
  const size_t vector_;  // lanes of a vector
  const size_t rows_, lanes_;
  const int64_t key_block_;
  const bool copies_values_;
  const size_t value_lanes_;
  const bool captures_weights_;  // pairs have no f32 weights, see pairs_fit()
  const bool stores_means_;
  rules::KeyRange block_;  // that any row of the block sees
  std::array<Panel, TileSize::kBlockPanels> panels_;
  size_t panel_count_ = 0;
  RowsAhead ahead_;
  size_t lines_of_scores_ = 0, lines_of_values_ = 0;  // for each tile
};

ForwardLayout layout(const ForwardParams& params) {
  return {.block_rows = static_cast<int64_t>(block_lanes(params)),
          .heads = heads_of_job(params),
          .scratch_bytes = std::max(lay_out(params, nullptr).bytes,
                                    short_fits(params) ? lay_out_short(params, nullptr).bytes : 0)};
}

// The job's first head alone, by products of floats.
void forward_head(const ForwardParams& params, const ForwardJob& job, const ForwardJob* next,
                  void* scratch) {
  Block<false> block(params, job, scratch);
  block.compute(next);
  block.finish();
}

void forward(const ForwardParams& params, const ForwardJob& job, const ForwardJob* next,
             void* scratch) {
  if constexpr (kHasPairs) {
    if (pairs_fit(params)) {
      for (ForwardJob head = job; head.kv_head < job.end_head; ++head.kv_head) {
        Block<true> block(params, head, scratch);
        block.compute(next);
        if (!block.finish()) forward_head(params, head, next, scratch);
      }
      return;
    }
  }
  if (short_fits(params)) {
    ShortHeads heads(params, job, scratch);
    for (ForwardJob head = job; head.kv_head < job.end_head; ++head.kv_head) {
      if (heads.compute(head.kv_head)) continue;
      forward_head(params, head, next, scratch);
      heads.load_rows();
    }
    return;
  }
  Block<false> block(params, job, scratch);
  for (int64_t kv_head = job.kv_head;;) {
    block.compute(next);
    block.finish();
    if (++kv_head == job.end_head) return;
    block.move_to(kv_head);
  }
}

const char* name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

HWY_EXPORT(layout);
HWY_EXPORT(forward);
HWY_EXPORT(name);

ForwardLayout forward_layout(const ForwardParams& params) {
  return HWY_DYNAMIC_DISPATCH(layout)(params);
}

void forward_block(const ForwardParams& params, const ForwardJob& job, const ForwardJob* next,
                   void* scratch) {
  HWY_DYNAMIC_DISPATCH(forward)(params, job, next, scratch);
}

const char* target_name() { return HWY_DYNAMIC_DISPATCH(name)(); }

}  // namespace multihead::cpu
#endif  // HWY_ONCE
