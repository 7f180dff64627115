// Epilogue of a block after its last key: normalized rows, LSE and dropout mask.
#if defined(MULTIHEAD_CPU_ATTENTION_FORWARD_EPILOGUE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_ATTENTION_FORWARD_EPILOGUE_INL_H_
#undef MULTIHEAD_CPU_ATTENTION_FORWARD_EPILOGUE_INL_H_
#else
#define MULTIHEAD_CPU_ATTENTION_FORWARD_EPILOGUE_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "cpu/attention/block/query_block-inl.h"
#include "cpu/simd/file_namespace.h"
#include "hwy/highway.h"
#include "rules/dropout_mask.h"
#include "rules/element.h"
#include "rules/lse.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

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

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_ATTENTION_FORWARD_EPILOGUE_INL_H_
