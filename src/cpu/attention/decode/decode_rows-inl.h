// Memory of one KV split of decoding, and the query rows of one key/value head with their options.
#if defined(MULTIHEAD_CPU_ATTENTION_DECODE_DECODE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_ATTENTION_DECODE_DECODE_ROWS_INL_H_
#undef MULTIHEAD_CPU_ATTENTION_DECODE_DECODE_ROWS_INL_H_
#else
#define MULTIHEAD_CPU_ATTENTION_DECODE_DECODE_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/attention/block/score_passes-inl.h"
#include "cpu/kernels.h"
#include "cpu/simd/file_namespace.h"
#include "cpu/simd/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

// SplitTiling as size_t, with widths in whole vectors.
struct DecodeSizes {
  size_t rows, tile_rows, tiles, heads, block, prefetch_rows;
  size_t key_lanes, value_lanes;
  size_t row_bytes;  // bytes of the wider row of K and V

  DecodeSizes(const AttentionParams& p, const SplitTiling& g)
      : rows(static_cast<size_t>(g.rows)),
        tile_rows(static_cast<size_t>(g.tile_rows)),
        tiles(static_cast<size_t>(g.tiles)),
        heads(static_cast<size_t>(g.heads)),
        block(static_cast<size_t>(g.key_block)),
        prefetch_rows(static_cast<size_t>(g.prefetch_rows)),
        key_lanes(round_up(static_cast<size_t>(p.head_dim), hn::Lanes(DF()))),
        value_lanes(round_up(static_cast<size_t>(p.value_dim), hn::Lanes(DF()))),
        row_bytes(static_cast<size_t>(g.row_bytes)) {}

  size_t padded_rows() const { return tiles * tile_rows; }
  size_t tile_scores() const { return block * tile_rows + hn::MaxLanes(DF()); }
};

// The result of one head and split, before it is merged.
struct DecodePartial {
  float* reference;  // [row] score that row_sum and out are relative to
  float* row_sum;    // [row] sum of exp(score - reference)
  float* out;        // [row][value_lanes], not normalized
  uint64_t bytes;

  float* row(size_t row, size_t value_lanes) const { return out + row * value_lanes; }
};

inline DecodePartial lay_out_partial(const DecodeSizes& sizes, void* memory) {
  DecodePartial partial{};
  rules::Arena take(memory);
  take(partial.reference, sizes.rows);
  take(partial.row_sum, sizes.rows);
  take(partial.out, sizes.padded_rows() * sizes.value_lanes);
  partial.bytes = take.bytes();
  return partial;
}

struct DecodeScratch {
  float* queries;       // [head][tile][vector of d_k][row of the tile][lane]
  float* reference;     // [head][tile][lane]
  float* row_sum;       // [head][tile][lane]
  float* scores;        // [head][tile][block][row of the tile]
  float* scales;        // [block] scales of K, then of V; kInt8 only
  float* row;           // one row of Q or V as floats
  float* recent;        // [head][row][value_lanes] sums over the most recent keys
  int64_t* slots;       // [block]
  int64_t* next_slots;  // [block]
  // [head][block] addresses of rows. The three arrays are contiguous, in the order of their use.
  const char** keys;
  const char** values;
  const char** next_keys;
  uint64_t bytes;
};

inline DecodeScratch lay_out_split(const DecodeSizes& sizes, void* memory) {
  DecodeScratch s{};
  rules::Arena take(memory);
  const size_t vector = hn::Lanes(DF());
  take(s.queries, sizes.heads * sizes.padded_rows() * sizes.key_lanes);
  take(s.reference, sizes.heads * sizes.tiles * vector);
  take(s.row_sum, sizes.heads * sizes.tiles * vector);
  take(s.scores, sizes.heads * sizes.tiles * sizes.tile_scores());
  take(s.scales, sizes.block + vector);
  take(s.row, std::max(sizes.key_lanes, sizes.value_lanes));
  take(s.recent, sizes.heads * sizes.padded_rows() * sizes.value_lanes);
  take(s.slots, sizes.block);
  take(s.next_slots, sizes.block);
  // One extra entry, which PrefetchedList needs.
  take(s.keys, 3 * sizes.heads * sizes.block + 1);
  if (memory != nullptr) {
    s.values = s.keys + sizes.heads * sizes.block;
    s.next_keys = s.values + sizes.heads * sizes.block;
  }
  s.bytes = take.bytes();
  return s;
}

inline constexpr auto kMostTileRows = static_cast<size_t>(kDecodeTileRows);
// Missing rows of the last tile repeat the last row.
inline constexpr size_t kMostPaddedRows =
    round_up(static_cast<size_t>(kMostDecodeRows), kMostTileRows);

// One query row: its head, its query, and its visible keys.
struct DecodeRow {
  int64_t head, query;
  rules::KeyRange keys;
  const uint8_t* mask;  // mask at key 0
  const float* bias;    // bias at key 0

  DecodeRow(const AttentionParams& p, int64_t batch, int64_t kv_head, size_t row)
      : head(kv_head * p.group() + (p.first_row() + static_cast<int64_t>(row)) % p.group()),
        query((p.first_row() + static_cast<int64_t>(row)) / p.group()),
        keys(p.visibility.seen_by(batch, query)),
        mask(p.mask.given() ? p.mask.row(batch, head, query) : nullptr),
        bias(p.bias.given() ? p.bias.row(batch, head, query) : nullptr) {}

  bool sees(const AttentionParams& p, int64_t key) const {
    return keys.contains(key) && (mask == nullptr || mask[key * p.mask.stride[3]] != 0) &&
           (bias == nullptr || bias[key * p.bias.stride[3]] != kNegInf);
  }
  bool sees_a_key(const AttentionParams& p) const {
    for (int64_t key = keys.first; key < keys.last; ++key) {
      if (sees(p, key)) return true;
    }
    return false;
  }
};

// The options of all rows of a head, as the passes of score_passes-inl.h read them.
struct DecodeRowOptions {
  const uint8_t* mask[kMostPaddedRows];
  const float* bias[kMostPaddedRows];
  float alibi_slope[kMostPaddedRows];
  int32_t alibi_position[kMostPaddedRows];
  int32_t first_key[kMostPaddedRows], last_key[kMostPaddedRows];

  DecodeRowOptions(const AttentionParams& p, const DecodeSizes& sizes, int64_t batch,
                   int64_t kv_head) {
    const auto shift = static_cast<int32_t>(p.visibility.alibi_shift(batch));
    for (size_t r = 0; r < sizes.padded_rows(); ++r) {
      const DecodeRow row(p, batch, kv_head, std::min(r, sizes.rows - 1));
      mask[r] = row.mask;
      bias[r] = row.bias;
      alibi_slope[r] = p.alibi_slopes == nullptr ? 0.0F : p.alibi_slopes[row.head];
      alibi_position[r] = static_cast<int32_t>(row.query) + shift;
      first_key[r] = static_cast<int32_t>(std::min(row.keys.first, p.keys));
      last_key[r] = static_cast<int32_t>(row.keys.last);
    }
  }
};

// Applies the passes that differ between rows to a tile of kRows rows, beginning with row
// `first_row`. Scale and softcap, equal for all rows, were applied to whole vectors before.
template <size_t kRows>
HWY_NOINLINE void pass_row_options(const AttentionParams& p, const DecodeRowOptions& rows,
                                   size_t first_row, const ScoreTile& tile, bool clipped) {
  const hn::CappedTag<float, kRows> d;
  if (p.bias.given()) add_bias(d, tile, rows.bias + first_row, p.bias.stride[3]);
  if (p.alibi_slopes != nullptr) {
    add_alibi(d, tile, rows.alibi_slope + first_row, rows.alibi_position + first_row);
  }
  if (p.mask.given()) hide_by_mask(d, tile, rows.mask + first_row, p.mask.stride[3]);
  if (clipped) {
    hide_by_range(d, tile, rows.first_key + first_row, rows.last_key + first_row, nullptr);
  }
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_ATTENTION_DECODE_DECODE_ROWS_INL_H_
