// The results of a block of query rows to memory.
#if defined(MULTIHEAD_CPU_ATTENTION_FORWARD_EPILOGUE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_ATTENTION_FORWARD_EPILOGUE_INL_H_
#undef MULTIHEAD_CPU_ATTENTION_FORWARD_EPILOGUE_INL_H_
#else
#define MULTIHEAD_CPU_ATTENTION_FORWARD_EPILOGUE_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "cpu/attention/block/query_block-inl.h"
#include "cpu/attention/block/scores-inl.h"
#include "cpu/simd/file_namespace.h"
#include "cpu/simd/simd-inl.h"
#include "hwy/highway.h"
#include "rules/dropout_mask.h"
#include "rules/element.h"
#include "rules/lse.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

// ---- Epilogue of a block after its last key: normalized rows, LSE and dropout mask. ----

inline void scale_floats(DF d, float* from, float* to, float by) {
  const size_t vector = hn::Lanes(d);
  const auto factor = hn::Set(d, by);
  for (; from + vector <= to; from += vector) {
    hn::StoreU(hn::Mul(hn::LoadU(d, from), factor), d, from);
  }
  for (; from < to; ++from) *from *= by;
}

template <class Products>
void scale_out_row(const QueryBlock<Products>& b, size_t row, float by) {
  float* const out = b.s.out + row * b.value_lanes;
  scale_floats(b.d, out, out + b.value_lanes, by);
}

// Sets `correction` to 1 / row_sum for a panel's rows.
template <class Products>
void invert_sums(const QueryBlock<Products>& b, const Panel& panel) {
  for (size_t lane = panel.lane; lane < panel.lane + panel.lanes; lane += b.vector) {
    const auto inverse = hn::Div(hn::Set(b.d, 1.0F), hn::LoadU(b.d, b.s.row_sum + lane));
    hn::StoreU(inverse, b.d, b.s.correction + lane);
  }
}

template <class T, class Products>
T* out_row(const QueryBlock<Products>& b, size_t row) {
  return static_cast<T*>(b.p.out.data) +
         row_offset(b.p.out.stride, b.batch, b.head_of(row), b.s.place[row].query);
}

template <class Products>
void store_out_row(const QueryBlock<Products>& b, size_t row) {
  const float* const from = b.s.out + row * b.value_lanes;
  rules::visit_element(b.p.out.type, [&]<class T>(std::type_identity<T>) HWY_ATTR {
    if constexpr (!std::is_same_v<T, int8_t>) {
      using Stored = typename SimdElement<T>::type;
      narrow(b.d, from, static_cast<size_t>(b.p.value_dim), out_row<Stored>(b, row));
    }
  });
}

// Adds the sink, a score without a value, to the sum.
template <class Products>
void join_sink(const QueryBlock<Products>& b, size_t row) {
  float& sum = b.s.row_sum[row];
  sum = static_cast<float>(
      static_cast<double>(sum) +
      rules::share_of_sink(b.p.sinks[b.head_of(row)], b.s.reference[row], b.scale.softmax));
}

template <class Products>
bool all_sums_positive(const QueryBlock<Products>& b) {
  auto positive = hn::Eq(hn::Zero(b.d), hn::Zero(b.d));
  for (size_t lane = 0; lane < b.lanes; lane += b.vector) {
    positive = hn::And(positive, hn::Gt(hn::LoadU(b.d, b.s.row_sum + lane), hn::Zero(b.d)));
  }
  return hn::AllTrue(b.d, positive);
}

// Stores the rows in the usual case, without a branch per row: every row sees a key, and no result
// is NaN. Returns false otherwise.
template <class Products>
bool normalize_usual(const QueryBlock<Products>& b) {
  if (!all_sums_positive(b)) return false;
  if (b.g.stores_normalized) {
    return hn::AllFalse(b.d, hn::MaskFromVec(hn::LoadU(b.d, b.s.nan)));
  }
  if (!b.g.stores_vectors) return false;
  for (const Panel& panel : b.panels()) invert_sums(b, panel);
  auto nan = hn::MaskFalse(b.d);
  // Local copies, which the stores cannot alias, save a third of this loop's time for short rows.
  const RowPlace* HWY_RESTRICT place = b.s.place;
  const float* HWY_RESTRICT inverses = b.s.correction;
  const float* HWY_RESTRICT from = b.s.out;
  float* const out =
      static_cast<float*>(b.p.out.data) + row_offset(b.p.out.stride, b.batch, b.first_head(), 0);
  const int64_t head_stride = b.p.out.stride[1], query_stride = b.p.out.stride[2];
  const size_t rows = b.rows, width = b.value_lanes, vector = b.vector;
  for (size_t row = 0; row < rows; ++row) {
    float* HWY_RESTRICT to =
        out + place[row].head_in_group * head_stride + place[row].query * query_stride;
    const auto inverse = hn::Set(b.d, inverses[row]);
    for (size_t c = 0; c < width; c += vector, from += vector) {
      const auto value = hn::Mul(hn::LoadU(b.d, from), inverse);
      nan = hn::Or(nan, hn::IsNaN(value));
      hn::StoreU(value, b.d, to + c);
    }
  }
  return hn::AllFalse(b.d, nan);
}

// Returns false if the row needs a masked recompute: a hidden value that is NaN or infinite makes
// the result NaN, because 0 times it is NaN. Checking the result for NaN is cheap.
template <class Products>
bool normalize_row(const QueryBlock<Products>& b, size_t row) {
  float& sum = b.s.row_sum[row];
  // If all scores are -inf by overflow, not because keys are hidden, the softmax is undefined.
  if (sum == 0.0F && sees_a_key(b, row)) sum = std::numeric_limits<float>::quiet_NaN();
  float* const out = b.s.out + row * b.value_lanes;
  float* const to = b.g.stores_vectors ? out_row<float>(b, row) : out;
  // A sum of 0 means that the row sees no key: otherwise the largest weight is 1 or more.
  const bool sees_nothing = sum == 0.0F;
  const float* const from = b.g.stores_normalized ? to : out;
  const auto inverse = hn::Set(b.d, b.g.stores_normalized && !std::isnan(sum) ? 1.0F : 1.0F / sum);
  auto nan = hn::MaskFalse(b.d);
  for (size_t c = 0; c < b.value_lanes; c += b.vector) {
    const auto value = hn::Mul(hn::LoadU(b.d, from + c), inverse);
    nan = hn::Or(nan, hn::IsNaN(value));
    hn::StoreU(sees_nothing ? hn::Zero(b.d) : value, b.d, to + c);
  }
  if (!sees_nothing && !std::isnan(sum) && !hn::AllFalse(b.d, nan)) {
    std::fill_n(out, b.value_lanes, 0.0F);
    return false;
  }
  if (to == out && b.p.out.data != nullptr) store_out_row(b, row);
  return true;
}

// Returns false if some row needs a masked recompute.
template <class Products>
bool normalize_and_store(const QueryBlock<Products>& b) {
  if (b.p.sinks != nullptr) {
    for (size_t row = 0; row < b.rows; ++row) join_sink(b, row);
  }
  if (normalize_usual(b)) return true;
  bool done = true;
  for (size_t row = 0; row < b.rows; ++row) {
    b.s.needs_masked_recompute[row] = normalize_row(b, row) ? 0 : 1;
    done &= b.s.needs_masked_recompute[row] == 0;
  }
  return done;
}

template <class Products>
void store_lse(const QueryBlock<Products>& b) {
  for (size_t row = 0; row < b.rows; ++row) {
    const int64_t head = b.head_of(row);
    const float sink = b.p.sinks == nullptr ? kNegInf : b.p.sinks[head];
    *b.p.lse.row(b.batch, head, b.s.place[row].query) =
        rules::lse_of(b.s.reference[row], b.scale.softmax, b.s.row_sum[row], sink);
  }
}

template <class Products>
void store_dropout_mask(const QueryBlock<Products>& b) {
  const AttentionParams& p = b.p;
  for (size_t row = 0; row < b.rows; ++row) {
    const int64_t head = b.head_of(row), query = b.s.place[row].query;
    uint8_t* const mask = p.dropout_mask.row(b.batch, head, query);
    const int64_t begin = p.first.key, end = begin + p.keys;
    for (int64_t group = begin / 4; group * 4 < end; ++group) {
      const auto kept =
          rules::dropout_keeps_four(p.dropout.seed, p.first.batch + b.batch, p.first.head + head,
                                    p.first.query + query, group, p.dropout.threshold);
      for (int64_t key = std::max(begin, group * 4); key < std::min(end, group * 4 + 4); ++key) {
        mask[key - begin] = kept[static_cast<size_t>(key % 4)] ? 1 : 0;
      }
    }
  }
}

// ---- Captured scores and weights, and rows whose output needs a masked recompute. Both compute
// the scores a second time if they need the final reference and sum.

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

#endif  // MULTIHEAD_CPU_ATTENTION_FORWARD_EPILOGUE_INL_H_
