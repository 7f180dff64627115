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
// so K and V are read where they lie. A block is cut into panels: one panel's scores
// against a key block stay in L1, the key block is shared by the panels from L2.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/kernels.h"
#include "rules/dropout_mask.h"
#include "rules/half.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/forward.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/block_layout-inl.h"
#include "cpu/micro_kernel-inl.h"
#include "cpu/score_passes-inl.h"
#include "cpu/simd-inl.h"
#include "cpu/softmax-inl.h"
#include "cpu/stored_rows-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// A hidden key's weight, in the pass that has to tell it from one that underflowed.
constexpr float kHidden = -1.0F;

class Block {
 public:
  Block(const ForwardParams& params, int64_t batch, int64_t kv_head, int64_t first_row,
        void* scratch)
      : p_(params),
        batch_(batch),
        kv_head_(kv_head),
        first_row_(first_row),
        s_(lay_out(params, scratch)),
        folds_scale_(folds_scale(params)),
        factor_(folds_scale_ ? 1.0F : std::abs(params.scale)),
        vector_(hn::Lanes(d_)),
        rows_(std::min(block_lanes(params), static_cast<size_t>(params.end_row() - first_row))),
        lanes_(round_up(rows_, vector_)),
        value_lanes_(round_up(static_cast<size_t>(params.value_width), vector_)) {}

  // The online softmax over all keys, if anything needs it.
  void compute() {
    load_rows();
    transpose_queries();
    if (!needs_softmax(p_)) return;
    for_key_blocks(block_, [&](const KeyBlock& block) HWY_ATTR {
      for (size_t lane = 0; lane < lanes_; lane += panel_lanes()) {
        const Panel panel = panel_at(lane);
        const rules::KeyRange keys = intersection(block.keys, panel.keys);
        if (!keys.empty() && !mask_empties(panel, keys)) attend(panel, keys, block);
      }
    });
  }

  // Normalises and stores what was asked for.
  void finish() {
    bool care = false;
    for (size_t row = 0; row < rows_ && needs_softmax(p_); ++row) {
      if (p_.sinks != nullptr) join_sink(row);
      s_.careful[row] = normalise(row) ? 1 : 0;
      care |= s_.careful[row] != 0;
    }
    if (care) {
      second_pass(ScoreStage::kWeights, block_,
                  [&](const Panel& panel, const ScoreTile& tile, const KeyBlock& block)
                      HWY_ATTR { add_visible_values(panel, tile, block); });
    }
    for (size_t row = 0; row < rows_; ++row) {
      if (p_.out.data != nullptr) store_out(row);
      if (p_.lse.data != nullptr) store_lse(row);
      if (p_.dropout_mask.data != nullptr) store_dropout_mask(row);
    }
    for (const ScoreCapture& capture : p_.captures) store_capture(capture);
    if (p_.weights.out.data != nullptr) store_capture(p_.weights);
  }

 private:
  struct Panel {
    size_t lane;           // first lane within the block
    size_t lanes, rows;    // with and without padding
    rules::KeyRange keys;  // that any of its rows sees
    rules::KeyRange full;  // that all of its rows see
  };
  struct KeyBlock {
    rules::KeyRange keys;
    FloatRows k, v;  // row 0 is keys.first
  };

  static rules::KeyRange intersection(const rules::KeyRange& a, const rules::KeyRange& b) {
    return {std::max(a.first, b.first), std::min(a.last, b.last)};
  }

  int64_t query_of(size_t row) const {
    return (first_row_ + static_cast<int64_t>(row)) / p_.group();
  }
  int64_t head_of(size_t row) const {
    return kv_head_ * p_.group() + (first_row_ + static_cast<int64_t>(row)) % p_.group();
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
    block_ = {p_.keys, 0};
    for (size_t row = 0; row < lanes_; ++row) {
      // Padding lanes repeat the last row's range, and their queries are zero.
      const size_t source = std::min(row, rows_ - 1);
      const int64_t query = query_of(source);
      const int64_t head = head_of(source);
      const rules::KeyRange range = p_.visibility.of_query(batch_, query);
      s_.first_key[row] = static_cast<int32_t>(std::min(range.first, p_.keys));
      s_.last_key[row] = static_cast<int32_t>(range.last);
      s_.place[row] = {static_cast<int32_t>(head), static_cast<int32_t>(query)};
      if (!range.empty()) {
        block_.first = std::min(block_.first, range.first);
        block_.last = std::max(block_.last, range.last);
      }
      s_.m[row] = kNegInf;
      s_.l[row] = 0.0F;
      if (p_.mask.given()) s_.mask[row] = p_.mask.row(batch_, head, query);
      if (p_.bias.given()) s_.bias[row] = p_.bias.row(batch_, head, query);
      if (p_.alibi_slopes != nullptr) {
        s_.alibi_slope[row] = p_.alibi_slopes[head];
        // In a cache every entry ends at its own length.
        const bool cached = p_.visibility.firsts != nullptr;
        const int64_t keys = cached ? p_.visibility.present(batch_).last : p_.keys;
        s_.alibi_end[row] = static_cast<float>(query + keys - p_.queries);
      }
    }
    std::fill_n(s_.out, lanes_ * value_lanes_, 0.0F);
  }

  size_t group_lanes() const { return TileSize::kScoreVecs * vector_; }

  void transpose_queries() {
    const float factor = folds_scale_ ? p_.scale : std::copysign(1.0F, p_.scale);
    const auto width = static_cast<size_t>(p_.key_width);
    for (size_t lane = 0; lane < lanes_; lane += group_lanes()) {
      const size_t columns = std::min(group_lanes(), lanes_ - lane);
      float* group = s_.queries + lane * width;
      for (size_t column = 0; column < columns; ++column) {
        if (lane + column >= rows_) {
          for (size_t c = 0; c < width; ++c) group[c * columns + column] = 0.0F;
          continue;
        }
        const float* q = read_rows(d_, p_.q, batch_, head_of(lane + column),
                                   query_of(lane + column), 1, width, width, s_.query)
                             .data;
        for (size_t c = 0; c < width; ++c) group[c * columns + column] = q[c] * factor;
      }
    }
  }

  Panel panel_at(size_t lane) const {
    Panel panel{.lane = lane,
                .lanes = std::min(panel_lanes(), lanes_ - lane),
                .rows = std::min(panel_lanes(), rows_ - lane),
                .keys = {p_.keys, 0},
                .full = {0, p_.keys}};
    for (size_t row = lane; row < lane + panel.rows; ++row) {
      const rules::KeyRange range{s_.first_key[row], s_.last_key[row]};
      panel.full.first = std::max(panel.full.first, range.first);
      panel.full.last = std::min(panel.full.last, range.last);
      if (range.empty()) continue;
      panel.keys.first = std::min(panel.keys.first, range.first);
      panel.keys.last = std::max(panel.keys.last, range.last);
    }
    return panel;
  }

  template <class Visit>
  HWY_INLINE void for_key_blocks(const rules::KeyRange& keys, const Visit& visit) {
    const auto key_width = static_cast<size_t>(p_.key_width);
    const auto value_width = static_cast<size_t>(p_.value_width);
    for (int64_t key = keys.first; key < keys.last; key += TileSize::kKeyBlock) {
      KeyBlock block{.keys = {key, std::min(key + TileSize::kKeyBlock, keys.last)},
                     .k = {nullptr, 0},
                     .v = {nullptr, 0}};
      const auto count = static_cast<size_t>(block.keys.last - key);
      block.k = read_rows(d_, p_.k, batch_, kv_head_, key, count, key_width, key_width, s_.keys);
      if (value_width > 0) {
        block.v =
            read_rows(d_, p_.v, batch_, kv_head_, key, count, value_width, value_lanes_, s_.values);
      }
      visit(block);
    }
  }

  // Scores of the panel against `keys` of the block, up to `stage`; hidden ones are -inf from
  // kMasked on.
  ScoreTile score(const Panel& panel, const rules::KeyRange& keys, const KeyBlock& block,
                  ScoreStage stage) {
    const ScoreTile tile{.scores = s_.scores,
                         .stride = std::min(panel_lanes(), block_lanes(p_)),
                         .first_key = keys.first,
                         .keys = static_cast<size_t>(keys.last - keys.first),
                         .lanes = panel.lanes,
                         .rows = panel.rows};
    const auto width = static_cast<size_t>(p_.key_width);
    for (size_t lane = 0; lane < panel.lanes; lane += group_lanes()) {
      const size_t columns = std::min(group_lanes(), panel.lanes - lane);
      const Product product_of_group{
          .a = block.k.data + (keys.first - block.keys.first) * block.k.stride,
          .a_stride = block.k.stride,
          .b = s_.queries + (panel.lane + lane) * width,
          .b_stride = static_cast<ptrdiff_t>(columns),
          .c = tile.scores + lane,
          .c_stride = static_cast<ptrdiff_t>(tile.stride),
          .depth = width};
      product<ALayout::kRowMajor, Store::kOverwrite, TileSize::kScoreRows, TileSize::kScoreVecs>(
          d_, product_of_group, tile.keys, columns / vector_);
    }
    if (stage == ScoreStage::kRaw) return tile;
    if (p_.softcap > 0.0F) cap_scores(d_, tile, p_.softcap);
    if (stage == ScoreStage::kCapped) return tile;
    if (p_.bias.given()) add_bias(d_, tile, s_.bias + panel.lane, p_.bias.stride[3]);
    if (p_.alibi_slopes != nullptr) {
      add_alibi(d_, tile, s_.alibi_slope + panel.lane, s_.alibi_end + panel.lane);
    }
    if (p_.mask.given()) hide_by_mask(d_, tile, s_.mask + panel.lane, p_.mask.stride[3]);
    // Only keys that some row of the panel does not see: with causal, those near the diagonal.
    const int64_t full = std::min(panel.full.first, keys.last);
    hide_keys(panel, tile, keys.first, full);
    hide_keys(panel, tile, std::max({keys.first, full, panel.full.last}), keys.last);
    return tile;
  }

  bool mask_empties(const Panel& panel, const rules::KeyRange& keys) const {
    return p_.mask.given() && hides_all(s_.mask + panel.lane, p_.mask.stride[3], panel.rows,
                                        keys.first, static_cast<size_t>(keys.last - keys.first));
  }

  void hide_keys(const Panel& panel, const ScoreTile& tile, int64_t first, int64_t last) {
    if (first >= last) return;
    hide_by_range(d_, tile.part(first, last), s_.first_key + panel.lane, s_.last_key + panel.lane);
  }

  void attend(const Panel& panel, const rules::KeyRange& keys, const KeyBlock& block) {
    const ScoreTile tile = score(panel, keys, block, ScoreStage::kMasked);
    for (size_t lane = 0; lane < panel.lanes; lane += vector_) {
      const size_t row = panel.lane + lane;
      const bool rose =
          softmax_lanes(d_, tile.scores + lane, tile.stride, tile.keys, factor_ * kLog2E,
                        s_.m + row, s_.l + row, s_.correction + row);
      if (rose) rescale(row);
    }
    if (value_lanes_ == 0) return;
    if (p_.dropout.probability > 0.0F) {
      drop_weights(d_, tile, s_.place + panel.lane, batch_, p_.dropout);
    }
    const Product product_of_panel{
        .a = tile.scores,
        .a_stride = static_cast<ptrdiff_t>(tile.stride),
        .b = block.v.data + (keys.first - block.keys.first) * block.v.stride,
        .b_stride = block.v.stride,
        .c = s_.out + panel.lane * value_lanes_,
        .c_stride = static_cast<ptrdiff_t>(value_lanes_),
        .depth = tile.keys};
    product<ALayout::kColMajor, Store::kAccumulate, TileSize::kValueRows, TileSize::kValueVecs>(
        d_, product_of_panel, panel.rows, value_lanes_ / vector_);
  }

  void scale_out(size_t row, float by) {
    const auto factor = hn::Set(d_, by);
    float* out = s_.out + row * value_lanes_;
    for (size_t c = 0; c < value_lanes_; c += vector_) {
      hn::StoreU(hn::Mul(hn::LoadU(d_, out + c), factor), d_, out + c);
    }
  }

  // One vector of rows.
  void rescale(size_t first) {
    for (size_t row = first; row < first + vector_; ++row) {
      if (s_.correction[row] != 1.0F) scale_out(row, s_.correction[row]);
    }
  }

  // The sink is one more score, without a value.
  void join_sink(size_t row) {
    const auto factor = static_cast<double>(factor_);
    const auto m = static_cast<double>(s_.m[row]);
    const auto sink = static_cast<double>(p_.sinks[s_.place[row].head]);
    // Rounded to float before it is used: weights are computed from that maximum.
    const auto joined = static_cast<double>(static_cast<float>(std::max(m, sink / factor)));
    const double kept = std::exp((m - joined) * factor);
    s_.l[row] = static_cast<float>(static_cast<double>(s_.l[row]) * kept +
                                   std::exp(sink - joined * factor));
    s_.m[row] = static_cast<float>(joined);
    scale_out(row, static_cast<float>(kept));
  }

  // Returns whether the row has to be summed again with care: a hidden value may be NaN or
  // infinite, and its weight of 0 times that is NaN. Looking for it in the result is cheap.
  bool normalise(size_t row) {
    // Scores that are -inf by overflow, not because they are hidden, have no softmax.
    if (s_.l[row] == 0.0F && sees_a_key(row)) s_.l[row] = std::numeric_limits<float>::quiet_NaN();
    const float sum = s_.l[row];
    float* out = s_.out + row * value_lanes_;
    bool nan = false;
    for (int64_t c = 0; c < p_.value_width; ++c) {
      // A sum of 0 is a row that sees nothing: the largest weight of any other is 1.
      out[c] = sum == 0.0F ? 0.0F : out[c] / sum;
      nan |= std::isnan(out[c]);
    }
    if (!nan || std::isnan(sum)) return false;
    std::fill_n(out, value_lanes_, 0.0F);
    return true;
  }

  // Scores once more, now that m and l are known: of every panel against `keys` (and, from
  // kMasked on, what it sees of them). Weights of hidden keys are kHidden.
  template <class Visit>
  HWY_INLINE void second_pass(ScoreStage stage, const rules::KeyRange& keys, const Visit& visit) {
    for_key_blocks(keys, [&](const KeyBlock& block) HWY_ATTR {
      for (size_t lane = 0; lane < lanes_; lane += panel_lanes()) {
        const Panel panel = panel_at(lane);
        const rules::KeyRange wanted =
            stage < ScoreStage::kMasked ? block.keys : intersection(block.keys, panel.keys);
        if (wanted.empty() || (stage >= ScoreStage::kMasked && mask_empties(panel, wanted))) {
          continue;
        }
        const ScoreTile tile = score(panel, wanted, block, stage);
        if (stage == ScoreStage::kWeights) to_weights(panel, tile);
        visit(panel, tile, block);
      }
    });
  }

  void to_weights(const Panel& panel, const ScoreTile& tile) {
    const auto neg_inf = hn::Set(d_, kNegInf);
    const auto to_log2 = hn::Set(d_, factor_ * kLog2E);
    for (size_t lane = 0; lane < panel.lanes; lane += vector_) {
      const auto maximum = finite_maximum(d_, hn::LoadU(d_, s_.m + panel.lane + lane));
      const auto sum = hn::LoadU(d_, s_.l + panel.lane + lane);
      const auto divisor = hn::IfThenElse(hn::Eq(sum, hn::Zero(d_)), hn::Set(d_, 1.0F), sum);
      for (size_t j = 0; j < tile.keys; ++j) {
        float* at = tile.scores + j * tile.stride + lane;
        const auto scored = hn::LoadU(d_, at);
        const auto weight = hn::Div(exp_of_difference(d_, scored, maximum, to_log2), divisor);
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
      const uint64_t threshold = rules::dropout_threshold(p_.dropout.probability);
      for (size_t j = 0; j < tile.keys; ++j) {
        float weight = tile.scores[j * tile.stride + row];
        if (weight == kHidden) continue;
        const int64_t key = tile.first_key + static_cast<int64_t>(j);
        if (p_.dropout.probability > 0.0F) {
          const bool kept = rules::dropout_keeps(p_.dropout.seed, batch_, place.head, place.query,
                                                 key, threshold);
          weight = kept ? weight / (1.0F - p_.dropout.probability) : 0.0F;
        }
        const float* v = block.v.data + (key - block.keys.first) * block.v.stride;
        for (int64_t c = 0; c < p_.value_width; ++c) out[c] += weight * v[c];
      }
    }
  }

  void store_out(size_t row) {
    const float* from = s_.out + row * value_lanes_;
    const int64_t at = row_offset(p_.out.stride, batch_, head_of(row), query_of(row));
    const auto store = [&]<class T>(T* to, auto convert) {
      for (int64_t c = 0; c < p_.value_width; ++c) to[c] = convert(from[c]);
    };
    switch (p_.out.element) {
      case Element::kF16:
        return store(static_cast<Float16*>(p_.out.data) + at, rules::to_float16);
      case Element::kBF16:
        return store(static_cast<BFloat16*>(p_.out.data) + at, rules::to_bfloat16);
      case Element::kF32:
      case Element::kInt8:
        std::copy_n(from, p_.value_width, static_cast<float*>(p_.out.data) + at);
    }
  }

  void store_lse(size_t row) {
    const auto sum = static_cast<double>(s_.l[row]);
    *p_.lse.row(batch_, head_of(row), query_of(row)) =
        sum == 0.0
            ? kNegInf
            : static_cast<float>(static_cast<double>(s_.m[row]) * static_cast<double>(factor_) +
                                 std::log(sum));
  }

  void store_dropout_mask(size_t row) {
    const uint64_t threshold = rules::dropout_threshold(p_.dropout.probability);
    const RowPlace place = s_.place[row];
    uint8_t* mask = p_.dropout_mask.row(batch_, place.head, place.query);
    for (int64_t key = 0; key < p_.keys; key += 4) {
      const auto kept = rules::dropout_keeps_four(p_.dropout.seed, batch_, place.head, place.query,
                                                  key / 4, threshold);
      for (int64_t j = key; j < std::min(key + 4, p_.keys); ++j) {
        mask[j] = kept[static_cast<size_t>(j - key)] ? 1 : 0;
      }
    }
  }

  // The row's place in a capture, or null where it is not asked for.
  float* captured_row(const ScoreCapture& capture, size_t row) const {
    const RowPlace place = s_.place[row];
    const int64_t at = place.query - capture.first_row;
    if (at < 0 || at >= capture.out.shape[2]) return nullptr;
    int64_t index = place.head;
    if (!capture.heads.empty()) {
      const auto found = std::find(capture.heads.begin(), capture.heads.end(), place.head);
      if (found == capture.heads.end()) return nullptr;
      index = found - capture.heads.begin();
    }
    const Dims& stride = capture.out.strides;
    return capture.out.data + batch_ * stride[0] + index * stride[1] + at * stride[2];
  }

  void store_capture(const ScoreCapture& capture) {
    const bool weights = capture.stage == ScoreStage::kWeights;
    const float unit = weights ? 1.0F : factor_;
    bool any = false;
    for (size_t row = 0; row < rows_; ++row) {
      float* to = captured_row(capture, row);
      if (to == nullptr) continue;
      any = true;
      std::fill_n(to, p_.keys, weights ? 0.0F : kNegInf);
    }
    if (!any) return;
    const rules::KeyRange keys =
        capture.stage < ScoreStage::kMasked ? p_.visibility.present(batch_) : block_;
    second_pass(capture.stage, keys,
                [&](const Panel& panel, const ScoreTile& tile, const KeyBlock&) HWY_ATTR {
                  for (size_t row = 0; row < panel.rows; ++row) {
                    float* to = captured_row(capture, panel.lane + row);
                    if (to == nullptr) continue;
                    to += tile.first_key;
                    for (size_t j = 0; j < tile.keys; ++j) {
                      const float value = tile.scores[j * tile.stride + row];
                      to[j] = weights && value == kHidden ? 0.0F : value * unit;
                    }
                  }
                });
  }

  const ForwardParams& p_;
  const int64_t batch_, kv_head_, first_row_;
  const Scratch s_;
  const bool folds_scale_;
  const float factor_;  // a score of the softmax is factor_ times one of a tile
  const DF d_;
  const size_t vector_;  // lanes of a vector
  const size_t rows_, lanes_, value_lanes_;
  rules::KeyRange block_;  // that any row of the block sees
};

ForwardLayout layout(const ForwardParams& params) {
  return {.block_rows = static_cast<int64_t>(block_lanes(params)),
          .scratch_bytes = lay_out(params, nullptr).bytes};
}

void forward(const ForwardParams& params, int64_t batch, int64_t kv_head, int64_t first_row,
             void* scratch) {
  Block block(params, batch, kv_head, first_row, scratch);
  block.compute();
  block.finish();
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

void forward_block(const ForwardParams& params, int64_t batch, int64_t kv_head, int64_t first_row,
                   void* scratch) {
  HWY_DYNAMIC_DISPATCH(forward)(params, batch, kv_head, first_row, scratch);
}

const char* target_name() { return HWY_DYNAMIC_DISPATCH(name)(); }

}  // namespace multihead::cpu
#endif  // HWY_ONCE
