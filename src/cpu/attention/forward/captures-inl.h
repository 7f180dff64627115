// Captured scores and weights, and rows whose output needs a masked recompute. Both compute the
// scores a second time if they need the final reference and sum.
#if defined(MULTIHEAD_CPU_ATTENTION_FORWARD_CAPTURES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_ATTENTION_FORWARD_CAPTURES_INL_H_
#undef MULTIHEAD_CPU_ATTENTION_FORWARD_CAPTURES_INL_H_
#else
#define MULTIHEAD_CPU_ATTENTION_FORWARD_CAPTURES_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "cpu/attention/block/loading-inl.h"
#include "cpu/attention/block/query_block-inl.h"
#include "cpu/attention/block/scores-inl.h"
#include "cpu/attention/forward/epilogue-inl.h"
#include "cpu/simd/file_namespace.h"
#include "cpu/simd/transpose-inl.h"
#include "hwy/highway.h"
#include "rules/dropout_mask.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

// Marks a hidden key in the second pass, because a visible weight may underflow to 0.
constexpr float kHiddenWeight = -1.0F;

// Computes the scores of every panel against `keys`, up to `stage`, and calls visit(panel, tile,
// block). From kMasked on, only for visible keys; weights of hidden keys are kHiddenWeight.
template <class Products, class Visit>
HWY_INLINE void second_pass(QueryBlock<Products>& b, ScoreStage stage, const rules::KeyRange& keys,
                            const Visit& visit) {
  for_key_blocks(b, keys, [&](const KeyBlock<Products>& block) HWY_ATTR {
    for (Panel& panel : b.panels()) {
      const rules::KeyRange wanted =
          stage < ScoreStage::kMasked ? block.keys : intersection(block.keys, panel.keys);
      if (wanted.empty()) continue;
      if (stage >= ScoreStage::kMasked && mask_hides_tile(b, panel, wanted)) continue;
      transpose_queries(b, panel);
      const ScoreTile tile = score_all(b, panel, wanted, block, stage);
      if (stage == ScoreStage::kWeights) scores_to_weights(b, panel, tile);
      visit(panel, tile, block);
    }
  });
}

template <class Products>
void scores_to_weights(const QueryBlock<Products>& b, const Panel& panel, const ScoreTile& tile) {
  const auto neg_inf = hn::Set(b.d, kNegInf);
  const auto one = hn::Set(b.d, 1.0F);
  const ToLog2<DF> to_log2(b.d, b.softmax);
  for (size_t lane = 0; lane < panel.lanes; lane += b.vector) {
    const auto reference = finite_reference(b.d, hn::LoadU(b.d, b.s.reference + panel.lane + lane));
    const auto sum = hn::LoadU(b.d, b.s.row_sum + panel.lane + lane);
    const auto inverse = hn::Div(one, hn::IfThenElse(hn::Eq(sum, hn::Zero(b.d)), one, sum));
    for (size_t j = 0; j < tile.keys; ++j) {
      float* at = tile.scores + j * tile.stride + lane;
      const auto score = hn::LoadU(b.d, at);
      const auto weight =
          hn::Mul(exp_of_difference(b.d, exp2_table(), score, reference, to_log2), inverse);
      const auto hidden = hn::Eq(score, neg_inf);
      hn::StoreU(hn::IfThenElse(hidden, hn::Set(b.d, kHiddenWeight), weight), b.d, at);
    }
  }
}

template <class Products>
void add_visible_values(const QueryBlock<Products>& b, const Panel& panel, const ScoreTile& tile,
                        const KeyBlock<Products>& block) {
  const AttentionParams& p = b.p;
  for (size_t row = 0; row < panel.rows; ++row) {
    if (b.s.needs_masked_recompute[panel.lane + row] == 0) continue;
    float* const out = b.s.out + (panel.lane + row) * b.value_lanes;
    const int64_t query = b.s.place[panel.lane + row].query;
    const int64_t head = b.head_of(panel.lane + row);
    for (size_t j = 0; j < tile.keys; ++j) {
      float weight = tile.scores[j * tile.stride + row];
      if (weight == kHiddenWeight) continue;
      const int64_t key = tile.first_key + static_cast<int64_t>(j);
      if (p.dropout.given()) {
        const bool kept =
            rules::dropout_keeps(p.dropout.seed, p.first.batch + b.batch, p.first.head + head,
                                 p.first.query + query, p.first.key + key, p.dropout.threshold);
        weight = kept ? weight * p.dropout.scale : 0.0F;
      }
      const auto at = static_cast<size_t>(key - block.keys.first);
      for (size_t c = 0; c < static_cast<size_t>(p.value_dim); ++c) {
        out[c] += weight * block.v.at(at, c);
      }
    }
  }
}

// Recomputes rows whose output became NaN, from the values of visible keys only.
template <class Products>
void recompute_masked(QueryBlock<Products>& b) {
  second_pass(b, ScoreStage::kWeights, b.seen,
              [&](const Panel& panel, const ScoreTile& tile, const KeyBlock<Products>& block)
                  HWY_ATTR { add_visible_values(b, panel, tile, block); });
  for (size_t row = 0; row < b.rows; ++row) {
    if (b.s.needs_masked_recompute[row] != 0 && b.p.out.data != nullptr) store_out_row(b, row);
  }
}

// Address of the row in a capture; null if the row is not captured or rows have no elements.
template <class Products>
float* captured_row(const QueryBlock<Products>& b, const ScoreCapture& capture, size_t row) {
  const int64_t at = b.s.place[row].query - capture.first_row;
  if (at < 0 || at >= capture.out.shape[2] || capture.out.data == nullptr) return nullptr;
  int64_t index = b.head_of(row);
  if (!capture.heads.empty()) {
    const auto found = std::find(capture.heads.begin(), capture.heads.end(), index);
    if (found == capture.heads.end()) return nullptr;
    index = found - capture.heads.begin();
  }
  const Dims& stride = capture.out.strides;
  return capture.out.data + b.batch * stride[0] + index * stride[1] + at * stride[2];
}

// Addresses of captured rows for one vector of lanes, at `key`.
using CapturedRows = std::array<float*, hn::MaxLanes(DF())>;
template <class Products>
CapturedRows captured_rows(const QueryBlock<Products>& b, const ScoreCapture& capture,
                           const Panel& panel, size_t lane, int64_t key) {
  CapturedRows rows{};
  for (size_t i = 0; i < b.vector && lane + i < panel.rows; ++i) {
    float* const to = captured_row(b, capture, panel.lane + lane + i);
    if (to != nullptr) rows[i] = to + key;
  }
  return rows;
}

// Fills keys that no pass visits with the masked value. Returns true if the block has captured
// rows.
template <class Products>
bool fill_unvisited(const QueryBlock<Products>& b, const ScoreCapture& capture) {
  const float masked = capture.stage == ScoreStage::kWeights ? 0.0F : kNegInf;
  bool any = false;
  for (const Panel& panel : b.panels()) {
    const bool whole =
        b.p.mask.given() || panel.keys.empty() || capture.stage < ScoreStage::kMasked;
    const rules::KeyRange seen = whole ? rules::KeyRange{0, 0} : panel.keys;
    for (size_t row = panel.lane; row < panel.lane + panel.rows; ++row) {
      float* const to = captured_row(b, capture, row);
      if (to == nullptr) continue;
      any = true;
      std::fill(to, to + seen.first, masked);
      std::fill(to + seen.last, to + b.p.keys, masked);
    }
  }
  return any;
}

template <class Products, class Visit>
void for_weight_captures(const QueryBlock<Products>& b, const Visit& visit) {
  if (b.p.weights.out.data != nullptr) visit(b.p.weights);
  for (const ScoreCapture& capture : b.p.captures) {
    if (capture.stage == ScoreStage::kWeights) visit(capture);
  }
}

// Stores weights relative to the current reference. finish_weights() normalizes them, which is much
// cheaper than computing their scores again.
template <class Products>
void store_weights(const QueryBlock<Products>& b, const Panel& panel, const ScoreTile& tile,
                   const VisibleEnds& visible_end) {
  for_weight_captures(b, [&](const ScoreCapture& capture) HWY_ATTR {
    for (size_t v = 0; v * b.vector < panel.lanes; ++v) {
      const size_t lane = v * b.vector;
      const CapturedRows rows = captured_rows(b, capture, panel, lane, tile.first_key);
      transpose_back(b.d, tile.scores + lane, tile.stride, visible_end[v], rows.data(),
                     [](auto weight) HWY_ATTR { return weight; });
      for (float* row : rows) {
        if (row != nullptr) std::fill(row + visible_end[v], row + tile.keys, 0.0F);
      }
    }
  });
}

// Sets `correction` to exp(factor * (block_reference - reference)) / row_sum, which normalizes
// weights relative to block_reference.
template <class Products>
void shares_of_sum(const QueryBlock<Products>& b, const float* block_reference) {
  const auto one = hn::Set(b.d, 1.0F);
  const ToLog2<DF> to_log2(b.d, b.softmax);
  for (size_t lane = 0; lane < b.lanes; lane += b.vector) {
    const auto then = hn::LoadU(b.d, block_reference + lane);
    const auto now = hn::LoadU(b.d, b.s.reference + lane);
    const auto grown =
        exp_of_difference(b.d, exp2_table(), then, finite_reference(b.d, now), to_log2);
    const auto share = hn::IfThenElse(hn::Eq(then, now), one, grown);
    hn::StoreU(hn::Div(share, hn::LoadU(b.d, b.s.row_sum + lane)), b.d, b.s.correction + lane);
  }
}

template <class Products>
void store_capture(QueryBlock<Products>& b, const ScoreCapture& capture) {
  if (!fill_unvisited(b, capture)) return;
  const bool weights = capture.stage == ScoreStage::kWeights;
  const bool masked = capture.stage >= ScoreStage::kMasked;
  const bool raw = capture.stage == ScoreStage::kRaw;
  const auto unit = hn::Set(b.d, b.scale.softmax * (raw ? b.scale.scores : 1.0F));
  const auto hidden_weight = hn::Set(b.d, kHiddenWeight);
  const auto as_asked = [&](auto value) HWY_ATTR {
    return weights ? hn::IfThenZeroElse(hn::Eq(value, hidden_weight), value) : hn::Mul(value, unit);
  };
  second_pass(b, capture.stage, masked ? b.seen : b.p.visibility.present(b.batch),
              [&](const Panel& panel, const ScoreTile& tile, const KeyBlock<Products>&) HWY_ATTR {
                for (size_t lane = 0; lane < panel.lanes; lane += b.vector) {
                  const CapturedRows rows = captured_rows(b, capture, panel, lane, tile.first_key);
                  transpose_back(b.d, tile.scores + lane, tile.stride, tile.keys, rows.data(),
                                 as_asked);
                }
              });
}

// Normalizes the weights that store_weights() stored.
template <class Products>
void finish_weights(QueryBlock<Products>& b) {
  if (!all_sums_positive(b)) {
    // Compute these captures again: a NaN in a row's scores must not reach the weights of hidden
    // keys.
    for_weight_captures(b,
                        [&](const ScoreCapture& capture) HWY_ATTR { store_capture(b, capture); });
    return;
  }
  const int64_t step = b.g.key_block;
  const float* block_reference = b.s.block_reference;
  for (int64_t key = b.seen.first; key < b.seen.last; key += step, block_reference += b.lanes) {
    shares_of_sum(b, block_reference);
    for_weight_captures(b, [&](const ScoreCapture& capture) HWY_ATTR {
      for (const Panel& panel : b.panels()) {
        const rules::KeyRange keys = intersection({key, key + step}, panel.keys);
        for (size_t row = panel.lane; row < panel.lane + panel.rows; ++row) {
          float* const to = captured_row(b, capture, row);
          if (to == nullptr || keys.empty()) continue;
          scale_floats(b.d, to + keys.first, to + keys.last, b.s.correction[row]);
        }
      }
    });
  }
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_ATTENTION_FORWARD_CAPTURES_INL_H_
