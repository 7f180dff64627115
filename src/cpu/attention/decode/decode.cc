// Attention of few query rows over many keys: the next token, or a few, against a cache.
//
// Every key and value is read once and used for a few rows, so memory bandwidth limits the speed,
// and keys and values are read in the order of memory. Keys are processed in blocks that fit in the
// first-level cache; while some rows are used, the rows a few kilobytes ahead are prefetched. Long
// caches are split among the threads, and the results merged by their maxima and sums (Dao et al.,
// flash-decoding, 2023), see merge.cc.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "cpu/kernels.h"
#include "cpu/preconditions.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention/decode/decode.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/attention/block/score_passes-inl.h"
#include "cpu/attention/decode/decode_kernels-inl.h"
#include "cpu/attention/decode/decode_rows-inl.h"
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/stored_rows-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

// Number of keys whose values are summed first; the result is then added to the sum of the split.
// In one long sum of equal terms every addition rounds in the same direction: the error of a mean
// of 131072 equal values was 1e-5, and is 6e-7 with partial sums, in the same time.
constexpr size_t kRecentKeys = 256;

// One KV split, for all heads of a job.
class KvSplit {
 public:
  KvSplit(const AttentionParams& params, const SplitTiling& tiling, const DecodeJob& job,
          void* partials, void* scratch)
      : p_(params),
        g_(tiling),
        sizes_(params, tiling),
        s_(lay_out_split(sizes_, scratch)),
        score_kernels_(decode_kernels_for<DF>(params.k.type, tiling)),
        value_kernels_(decode_kernels_for<DF>(params.v.type, tiling)),
        batch_(job.batch),
        first_head_(job.kv_head),
        heads_(std::min(tiling.heads, params.kv_heads - job.kv_head)),
        vector_(hn::Lanes(d_)),
        seen_(params.seen_keys(job.batch)),
        keys_{seen_.first + job.split * tiling.split_keys,
              std::min(seen_.first + (job.split + 1) * tiling.split_keys, seen_.last)},
        partials_(static_cast<char*>(partials)),
        partial_step_(static_cast<uint64_t>(tiling.splits) *
                      lay_out_partial(sizes_, nullptr).bytes) {}

  void compute() {
    const size_t lanes = static_cast<size_t>(heads_) * sizes_.tiles * vector_;
    std::fill_n(s_.reference, lanes, kNegInf);
    std::fill_n(s_.row_sum, lanes, 0.0F);
    for (int64_t head = 0; head < heads_; ++head) {
      std::fill_n(result(head).out, sums_of_head(), 0.0F);
      std::fill_n(recent(head, 0), sums_of_head(), 0.0F);
    }
    if (!keys_.empty()) {
      load_queries();
      find_slots(keys_.first, s_.next_slots);
      find_rows(p_.k, s_.next_slots, s_.next_keys);
    }
    for (int64_t key = keys_.first; key < keys_.last; key += block()) {
      std::swap(s_.slots, s_.next_slots);
      std::copy_n(s_.next_keys, sizes_.heads * sizes_.block, s_.keys);
      if (p_.value_dim > 0) find_rows(p_.v, s_.slots, s_.values);
      if (find_slots(key + block(), s_.next_slots)) find_rows(p_.k, s_.next_slots, s_.next_keys);
      mainloop_step(key);
    }
    add_recent();
    for (int64_t head = 0; head < heads_; ++head) store_sums_of(head);
  }

 private:
  int64_t block() const { return static_cast<int64_t>(sizes_.block); }
  DecodePartial result(int64_t head) const {
    return lay_out_partial(sizes_, partials_ + static_cast<uint64_t>(head) * partial_step_);
  }
  size_t sums_of_head() const { return sizes_.padded_rows() * sizes_.value_lanes; }
  float* recent(int64_t head, size_t row) const {
    return s_.recent + static_cast<size_t>(head) * sums_of_head() + row * sizes_.value_lanes;
  }
  float* queries(int64_t head) const {
    return s_.queries + static_cast<size_t>(head) * sizes_.padded_rows() * sizes_.key_lanes;
  }
  // Index of the tile's first lane in reference and row_sum.
  size_t tile_lane(int64_t head, size_t tile) const {
    return (static_cast<size_t>(head) * sizes_.tiles + tile) * vector_;
  }
  float* tile_scores(int64_t head, size_t tile) const {
    return s_.scores + (static_cast<size_t>(head) * sizes_.tiles + tile) * sizes_.tile_scores();
  }
  const char* const* rows_of(const char** rows, int64_t head) const {
    return rows + static_cast<size_t>(head) * sizes_.block;
  }
  DecodeRow row(int64_t head, size_t index) const {
    return {p_, batch_, first_head_ + head, index};
  }

  void load_queries() {
    const auto factor = hn::Set(d_, p_.scale.queries);
    const auto width = static_cast<size_t>(p_.head_dim);
    std::fill_n(s_.queries, static_cast<size_t>(heads_) * sizes_.padded_rows() * sizes_.key_lanes,
                0.0F);
    unmasked_ = {0, p_.keys};
    for (int64_t head = 0; head < heads_; ++head) {
      for (size_t r = 0; r < sizes_.rows; ++r) {
        const DecodeRow of = row(head, r);
        unmasked_.first = std::max(unmasked_.first, of.keys.first);
        unmasked_.last = std::min(unmasked_.last, of.keys.last);
        if (width == 0) continue;
        read_row(d_, p_.q, batch_, of.head, of.query, width, sizes_.key_lanes, s_.row);
        // Store a tile's rows side by side, vector by vector: score_keys() reads in this order.
        const size_t tile = r / sizes_.tile_rows;
        float* to = queries(head) + tile * sizes_.tile_rows * sizes_.key_lanes +
                    r % sizes_.tile_rows * vector_;
        for (size_t c = 0; c < width; c += vector_, to += sizes_.tile_rows * vector_) {
          hn::StoreU(hn::Mul(hn::LoadU(d_, s_.row + c), factor), d_, to);
        }
      }
    }
  }

  // Finds the slots of a block of seen keys. After the last key, its slot is repeated. Returns
  // false if the block has no seen key.
  bool find_slots(int64_t first, int64_t* to) const {
    const int64_t count = std::min(block(), seen_.last - first);
    if (count <= 0) return false;
    fill_slots(p_.k, batch_, first, count, to);
    std::fill(to + count, to + block(), to[count - 1]);
    return true;
  }

  void find_rows(const StoredRows& rows, const int64_t* slots, const char** to) const {
    const int64_t bytes = bytes_of(rows.type);
    const int64_t entry = rows.pages == nullptr ? batch_ : 0;
    const int64_t step = rows.stride[2] * bytes;
    for (int64_t head = 0; head < heads_; ++head, to += sizes_.block) {
      const auto* const base = static_cast<const char*>(rows.data) +
                               row_offset(rows.stride, entry, first_head_ + head, 0) * bytes;
      for (size_t j = 0; j < sizes_.block; ++j) to[j] = base + slots[j] * step;
    }
  }

  void find_scales(const StoredRows& rows, int64_t head) const {
    const int64_t entry = rows.pages == nullptr ? batch_ : 0;
    const float* const base =
        rows.scales + row_offset(rows.scale_stride, entry, first_head_ + head, 0);
    for (size_t j = 0; j < sizes_.block; ++j) {
      s_.scales[j] = base[s_.slots[j] * rows.scale_stride[2]];
    }
  }

  // Processes a block of keys and values.
  void mainloop_step(int64_t first) {
    const auto count = static_cast<size_t>(std::min(block(), keys_.last - first));
    // With several heads, the inner loop is over heads: a token's heads lie side by side, so memory
    // is read in order.
    const size_t step = heads_ == 1 ? round_up(count, static_cast<size_t>(kDecodeKeyStep))
                                    : static_cast<size_t>(kDecodeKeyStep);
    if (!kPrefetches && !g_.first_row_leads) {
      if (p_.value_dim > 0) touch_all(s_.values, p_.v, p_.value_dim, count);
      touch_all(s_.keys, p_.k, p_.head_dim, count);
    }
    for (size_t j = 0; j < count; j += step) {
      for (int64_t head = 0; head < heads_; ++head) {
        if (!mask_hides_block(head, first, count)) score_keys_of(head, j, step);
      }
    }
    for (int64_t head = 0; head < heads_; ++head) {
      if (mask_hides_block(head, first, count)) continue;
      if (p_.k.type == DType::kInt8) scale_tiles(p_.k, head, count);
      const bool hidden = pass_options(head, first, count);
      apply_softmax(head, count);
      if (sizes_.value_lanes == 0) continue;
      if (hidden && !values_are_finite(head, count)) {
        add_seen_values(head, first, count);
        continue;
      }
      if (p_.v.type == DType::kInt8) scale_tiles(p_.v, head, count);
      add_all_values(head, count);
    }
    recent_keys_ += count;
    if (recent_keys_ >= kRecentKeys) add_recent();
  }

  void add_recent() {
    if (recent_keys_ == 0) return;
    recent_keys_ = 0;
    for (int64_t head = 0; head < heads_; ++head) add_recent_of(head);
  }

  void add_recent_of(int64_t head) {
    float* HWY_RESTRICT to = result(head).out;
    float* HWY_RESTRICT from = recent(head, 0);
    for (size_t c = 0; c < sums_of_head(); c += vector_) {
      hn::StoreU(hn::Add(hn::LoadU(d_, to + c), hn::LoadU(d_, from + c)), d_, to + c);
      hn::StoreU(hn::Zero(d_), d_, from + c);
    }
  }

  bool mask_hides_block(int64_t head, int64_t first, size_t count) const {
    if (!p_.mask.given()) return false;
    std::array<const uint8_t*, static_cast<size_t>(kMostDecodeRows)> masks;
    for (size_t r = 0; r < sizes_.rows; ++r) masks[r] = row(head, r).mask;
    return hides_all(masks.data(), p_.mask.stride[3], sizes_.rows, first, count);
  }

  // Scores keys j .. j + count - 1 of the block.
  void score_keys_of(int64_t head, size_t j, size_t count) {
    for (size_t tile = 0; tile < sizes_.tiles; ++tile) {
      score_kernels_.score_keys(
          d_, {.q = queries(head) + tile * sizes_.tile_rows * sizes_.key_lanes,
               .keys = rows_of(s_.keys, head) + j,
               .count = count,
               .width = static_cast<size_t>(p_.head_dim),
               .scores = tile_scores(head, tile) + j * sizes_.tile_rows,
               .prefetched = tile > 0 || p_.value_dim == 0
                                 ? nullptr
                                 : rows_of(s_.keys, head) + j + sizes_.prefetch_rows,
               .prefetched_bytes = sizes_.row_bytes});
    }
  }

  void touch_all(const char** rows, const StoredRows& stored, int64_t width, size_t count) {
    const int64_t bytes = width * bytes_of(stored.type);
    if (stored.heads_side_by_side()) {
      const int64_t others = (heads_ - 1) * stored.stride[1] * bytes_of(stored.type);
      touched_ += score_kernels_.touch(rows, count, static_cast<size_t>(others + bytes));
      return;
    }
    for (int64_t head = 0; head < heads_; ++head) {
      touched_ += score_kernels_.touch(rows_of(rows, head), count, static_cast<size_t>(bytes));
    }
  }

  // Multiplies scores or weights by the scales of int8 rows.
  void scale_tiles(const StoredRows& rows, int64_t head, size_t count) {
    find_scales(rows, head);
    for (size_t tile = 0; tile < sizes_.tiles; ++tile) {
      score_kernels_.scale_keys(d_, tile_scores(head, tile), s_.scales, count);
    }
  }

  // Applies the options. Returns true if any key of the block may be hidden from any row.
  bool pass_options(int64_t head, int64_t first, size_t count) {
    const int64_t end = first + static_cast<int64_t>(count);
    const bool clipped = first < unmasked_.first || end > unmasked_.last;
    for (size_t tile = 0; tile < sizes_.tiles; ++tile) {
      const ScoreTile scores{.scores = tile_scores(head, tile),
                             .stride = vector_,
                             .first_key = first,
                             .keys = round_up(count * sizes_.tile_rows, vector_) / vector_,
                             .lanes = vector_,
                             .rows = vector_};
      if (p_.scale.scores != 1.0F) scale_scores(d_, scores, p_.scale.scores);
      if (p_.softcap > 0.0F) cap_scores(d_, scores, p_.softcap);
    }
    const bool hides = clipped || p_.mask.given() || p_.bias.given();
    if (!hides && p_.alibi_slopes == nullptr) return false;
    const DecodeRowOptions options(p_, sizes_, batch_, first_head_ + head);
    for (size_t tile = 0; tile < sizes_.tiles; ++tile) {
      const size_t first_row = tile * sizes_.tile_rows;
      score_kernels_.pass_row_options(p_, options, first_row,
                                      {.scores = tile_scores(head, tile),
                                       .stride = sizes_.tile_rows,
                                       .first_key = first,
                                       .keys = count,
                                       .lanes = sizes_.tile_rows,
                                       .rows = std::min(sizes_.tile_rows, sizes_.rows - first_row)},
                                      clipped);
    }
    return hides;
  }

  float* score(int64_t head, size_t row, size_t j) const {
    return tile_scores(head, row / sizes_.tile_rows) + j * sizes_.tile_rows +
           row % sizes_.tile_rows;
  }

  // Turns scores into weights.
  void apply_softmax(int64_t head, size_t count) {
    const size_t scores = count * sizes_.tile_rows;
    const size_t padded = round_up(scores, vector_);
    std::array<float, kMostTileRows> correction;
    for (size_t tile = 0; tile < sizes_.tiles; ++tile) {
      float* tile_start = tile_scores(head, tile);
      std::fill(tile_start + scores, tile_start + padded, kNegInf);
      const size_t lane = tile_lane(head, tile);
      const bool rose =
          score_kernels_.softmax(d_, tile_start, padded, p_.scale.softmax, s_.reference + lane,
                                 s_.row_sum + lane, correction.data());
      for (size_t r = 0; r < sizes_.tile_rows && rose; ++r) {
        const size_t row = tile * sizes_.tile_rows + r;
        scale_row(result(head).row(row, sizes_.value_lanes), correction[r]);
        scale_row(recent(head, row), correction[r]);
      }
    }
  }

  void scale_row(float* out, float by) const {
    if (by == 1.0F) return;
    for (size_t c = 0; c < sizes_.value_lanes; c += vector_) {
      hn::StoreU(hn::Mul(hn::LoadU(d_, out + c), hn::Set(d_, by)), d_, out + c);
    }
  }

  // Checks for NaN and infinities, which a weight of 0 of a hidden key would turn into NaN. They
  // are rare: checking costs less than skipping every hidden value.
  bool values_are_finite(int64_t head, size_t count) const {
    if (p_.v.type == DType::kInt8) {
      find_scales(p_.v, head);
      return std::all_of(s_.scales, s_.scales + count,
                         [](float scale) { return std::isfinite(scale); });
    }
    return value_kernels_.all_finite(d_, rows_of(s_.values, head), count,
                                     static_cast<size_t>(p_.value_dim));
  }

  void add_seen_values(int64_t head, int64_t first, size_t count) {
    const auto width = static_cast<size_t>(p_.value_dim);
    for (size_t j = 0; j < count; ++j) {
      const int64_t key = first + static_cast<int64_t>(j);
      value_kernels_.read_floats(d_, rows_of(s_.values, head)[j], width, s_.row);
      // s_.scales holds the scales of V since values_are_finite().
      const float scale = p_.v.type == DType::kInt8 ? s_.scales[j] : 1.0F;
      for (size_t r = 0; r < sizes_.rows; ++r) {
        if (!row(head, r).sees(p_, key)) continue;
        const float weight = *score(head, r, j) * scale;
        float* out = recent(head, r);
        for (size_t c = 0; c < width; ++c) out[c] += weight * s_.row[c];
      }
    }
  }

  void add_all_values(int64_t head, size_t count) {
    // With several tiles, all of them use a few rows while these are in the first-level cache.
    const size_t step = sizes_.tiles == 1 ? kRecentKeys : 4 * static_cast<size_t>(kDecodeKeyStep);
    for (size_t j = 0; j < count; j += step) {
      if (j > 0 && j % kRecentKeys == 0) add_recent_of(head);
      for (size_t tile = 0; tile < sizes_.tiles; ++tile) {
        value_kernels_.add_values(
            d_,
            {.weights = tile_scores(head, tile) + j * sizes_.tile_rows,
             .keys = std::min(step, count - j),
             .values = rows_of(s_.values, head) + j,
             .width = static_cast<size_t>(p_.value_dim),
             .out = recent(head, tile * sizes_.tile_rows),
             .out_stride = sizes_.value_lanes,
             .prefetched = tile > 0 ? nullptr : rows_of(s_.values, head) + j + sizes_.prefetch_rows,
             .prefetched_bytes = sizes_.row_bytes});
      }
    }
  }

  void store_sums_of(int64_t head) {
    const DecodePartial to = result(head);
    for (size_t r = 0; r < sizes_.rows; ++r) {
      const size_t lane = tile_lane(head, r / sizes_.tile_rows) + r % sizes_.tile_rows;
      to.reference[r] = s_.reference[lane];
      to.row_sum[r] = 0.0F;
      for (size_t i = 0; i < vector_; i += sizes_.tile_rows) to.row_sum[r] += s_.row_sum[lane + i];
    }
  }

  const AttentionParams& p_;
  const SplitTiling& g_;
  const DF d_;
  const DecodeSizes sizes_;
  DecodeScratch s_;
  const DecodeKernels<DF> score_kernels_, value_kernels_;
  const int64_t batch_, first_head_, heads_;
  const size_t vector_;         // lanes per vector
  const rules::KeyRange seen_;  // keys that at least one query sees
  const rules::KeyRange keys_;  // keys of this split
  rules::KeyRange unmasked_;    // keys that all queries see
  unsigned touched_ = 0;
  size_t recent_keys_ = 0;
  char* const partials_;  // result of the first head
  const uint64_t partial_step_;
};

void compute_split(const AttentionParams& params, const SplitTiling& tiling, const DecodeJob& job,
                   void* partials, void* scratch) {
  KvSplit(params, tiling, job, partials, scratch).compute();
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

HWY_EXPORT(compute_split);

void decode_split(const AttentionParams& params, const SplitTiling& tiling, const DecodeJob& job,
                  void* partials, void* scratch) {
  require_split(params, tiling, job, partials, scratch);
  HWY_DYNAMIC_DISPATCH(compute_split)(params, tiling, job, partials, scratch);
}

}  // namespace multihead::cpu
#endif  // HWY_ONCE
