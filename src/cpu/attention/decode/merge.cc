// Merges results over disjoint keys, by their softmax references and sums: the splits of decoding,
// and the parts of merge_attention().
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "cpu/kernels.h"
#include "cpu/preconditions.h"
#include "rules/element.h"
#include "rules/lse.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention/decode/merge.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/attention/decode/decode_rows-inl.h"
#include "cpu/simd/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

// A row's result over some keys: sum = sum of exp(factor * (score - reference)), and out = sum of
// the same times the values. A part that has seen no key has sum 0.
struct RowPart {
  float reference;
  double sum;
  const float* out;
};

struct RowSum {
  float reference;
  double sum;
};

// Merges part(0) .. part(parts - 1). A sink is one more score without a value; -inf for none. `out`
// may be that of part 0.
template <class Part>
RowSum merge_row(const Part& part, int64_t parts, float factor, float sink, size_t width,
                 float* out) {
  const DF d;
  const size_t vector = hn::Lanes(d);
  float largest = kNegInf;
  for (int64_t i = 0; i < parts; ++i) {
    // In this order a NaN does not become the maximum; it reaches the sum below.
    largest = std::max(largest, part(i).reference);
  }
  double sum = sink == kNegInf ? 0.0 : rules::share_of_sink(sink, largest, factor);
  for (int64_t i = 0; i < parts; ++i) {
    const RowPart from = part(i);
    const double difference = static_cast<double>(from.reference) - static_cast<double>(largest);
    const double share =
        from.reference == largest ? 1.0 : std::exp(difference * static_cast<double>(factor));
    sum += share * from.sum;
    const auto by = hn::Set(d, static_cast<float>(share));
    size_t c = 0;
    for (; c + vector <= width; c += vector) {
      const auto scaled = hn::Mul(by, hn::LoadU(d, from.out + c));
      hn::StoreU(i == 0 ? scaled : hn::Add(hn::LoadU(d, out + c), scaled), d, out + c);
    }
    for (; c < width; ++c) {
      const float scaled = static_cast<float>(share) * from.out[c];
      out[c] = i == 0 ? scaled : out[c] + scaled;
    }
  }
  return {largest, sum};
}

// A sum of 0 means that the row sees nothing: otherwise the largest weight is 1.
void normalize(float* out, size_t width, double sum) {
  if (sum == 0.0) {
    std::fill_n(out, width, 0.0F);
    return;
  }
  const DF d;
  const auto divisor = hn::Set(d, static_cast<float>(sum));
  over_columns(static_cast<int64_t>(width), [&](size_t column, auto lanes) HWY_ATTR {
    lanes.store(hn::Div(lanes.load(out + column), divisor), out + column);
  });
}

void merge_splits(const AttentionParams& p, const SplitTiling& g, int64_t batch, int64_t kv_head,
                  void* partials) {
  const DecodeSizes sizes(p, g);
  const uint64_t step = lay_out_partial(sizes, nullptr).bytes;
  const auto partial_at = [&](int64_t split) {
    return lay_out_partial(sizes,
                           static_cast<char*>(partials) + static_cast<uint64_t>(split) * step);
  };
  const float factor = p.scale.softmax;
  for (size_t r = 0; r < sizes.rows; ++r) {
    const DecodeRow row(p, batch, kv_head, r);
    float* const out = partial_at(0).row(r, sizes.value_lanes);
    const auto part = [&](int64_t split) -> RowPart {
      const DecodePartial partial = partial_at(split);
      return {partial.reference[r], static_cast<double>(partial.row_sum[r]),
              partial.row(r, sizes.value_lanes)};
    };
    const float sink = p.sinks == nullptr ? kNegInf : p.sinks[row.head];
    auto [reference, sum] = merge_row(part, g.splits, factor, sink, sizes.value_lanes, out);
    // If all scores are -inf by overflow, not because keys are hidden, the softmax is undefined.
    if (sum == 0.0 && row.sees_a_key(p)) sum = std::numeric_limits<double>::quiet_NaN();
    if (p.out.data != nullptr) {
      normalize(out, static_cast<size_t>(p.value_dim), sum);
      rules::write_floats(out, p.value_dim, p.out.data, p.out.type,
                          row_offset(p.out.stride, batch, row.head, row.query));
    }
    if (p.lse.data != nullptr) {
      *p.lse.row(batch, row.head, row.query) = rules::lse_of(reference, factor, sum, sink);
    }
  }
}

void merge_pairs(const MergeParams& p, int64_t first, int64_t end) {
  const auto width = static_cast<size_t>(p.width);
  for (int64_t index = first; index < end; ++index) {
    const int64_t batch = index / p.rows / p.heads, head = index / p.rows % p.heads;
    const int64_t row = index % p.rows;
    // Normalized rows are relative to their LSE, with sum 1.
    const auto part_of = [](float lse, const float* out) -> RowPart {
      return {lse, lse == kNegInf ? 0.0 : 1.0, out};
    };
    // Without columns, the address to which an offset would be added may be null.
    float* const out = width == 0 ? nullptr : p.out_a.row(batch, head, row);
    float& lse = *p.lse_a.row(batch, head, row);
    const RowPart a = part_of(lse, out);
    const RowPart b = part_of(*p.lse_b.row(batch, head, row),
                              width == 0 ? nullptr : p.out_b.row(batch, head, row));
    const auto part = [&](int64_t i) -> const RowPart& { return i == 0 ? a : b; };
    const RowSum merged = merge_row(part, 2, 1.0F, kNegInf, width, out);
    normalize(out, width, merged.sum);
    lse = rules::lse_of(merged.reference, 1.0F, merged.sum);
  }
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

HWY_EXPORT(merge_splits);
HWY_EXPORT(merge_pairs);

void decode_merge(const AttentionParams& params, const SplitTiling& tiling, int64_t batch,
                  int64_t kv_head, void* partials) {
  require_head(params, batch, kv_head);
  HWY_DASSERT(tiling.splits > 0 && is_scratch(partials));
  HWY_DYNAMIC_DISPATCH(merge_splits)(params, tiling, batch, kv_head, partials);
}

void merge_rows(const MergeParams& params, int64_t first, int64_t end) {
  require_rows(first, end, params.batch * params.heads * params.rows);
  HWY_DYNAMIC_DISPATCH(merge_pairs)(params, first, end);
}

}  // namespace multihead::cpu
#endif  // HWY_ONCE
