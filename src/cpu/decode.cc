// Attention of few query rows over many keys: the next token, or some, against a cache.
//
// Every key and value is read once and used for a handful of rows, so memory sets the pace: the
// work is arranged for its stream. Keys are taken in blocks small enough for the first-level
// cache; while a few rows of keys or values are used, those some kilobytes behind them are asked
// for, in the order in which they lie. Long caches are cut into pieces for the threads, whose
// results merge by their maxima and sums (Dao et al., flash-decoding, 2023).
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "cpu/kernels.h"
#include "rules/half.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/decode.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/block_layout-inl.h"
#include "cpu/decode_kernels-inl.h"
#include "cpu/score_passes-inl.h"
#include "cpu/simd-inl.h"
#include "cpu/softmax-inl.h"
#include "cpu/stored_rows-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr auto kMostRows = static_cast<size_t>(kMostDecodeRows);
constexpr size_t kMostTileRows = 4;
// Of the keys and of the values of a block. Beside 32 kB, 64 kB read 64 MB 4 % faster natively, 3
// to 6 % in WebAssembly, which brings each block near before it uses it; 128 kB would win 2 % more
// there where the second-level cache is large, and lose where it is not.
constexpr size_t kBlockBytes = 65536;
// More bytes than a shared cache leaves to a call: then a tile's first row leads, see
// decode_kernels-inl.h, and longer blocks interrupt memory's order less often.
constexpr double kFromMemory = 1 << 24;
constexpr size_t kLedBlockBytes = 262144;
// From the rows in use to those that are asked for. A Zen 4's decode of 64 MB, beside 16 kB: 4 kB
// 74 %, 8 kB 98 %, 32 kB as fast.
constexpr size_t kAheadBytes = 16384;
constexpr int64_t kTokenBytes = 8192;
constexpr size_t kKeyStep = 8;  // a multiple of every DecodeTile::keys()
constexpr size_t kLeastBlock = 16, kMostBlock = 512;
// Values are summed over this many keys first, then added to the sum of the piece. In one long sum
// of equal terms every addition rounds the same way: a mean of 131072 equal values was wrong by
// 1e-5, and is by 6e-7 this way, in the same time.
constexpr size_t kRecentKeys = 256;
// Pieces are made until there are this many jobs, but none of fewer keys.
constexpr int64_t kJobs = 64;
constexpr int64_t kLeastPiece = 512;

struct Sizes {
  size_t rows, tile_rows, tiles;
  size_t key_lanes, value_lanes;  // widths in whole vectors
  size_t block;                   // keys
  size_t row_bytes;               // of K or V, the wider one
  size_t ahead;                   // rows from one in use to one to ask for
  int64_t heads;                  // key/value heads that one job walks along together
  bool leads;                     // whether a tile's first row does, see decode_kernels-inl.h

  size_t padded_rows() const { return tiles * tile_rows; }
  size_t tile_scores() const { return block * tile_rows + hn::MaxLanes(DF()); }
};

// Whether the heads of a token are neighbours in memory, and not the tokens of a head.
bool side_by_side(const StoredRows& rows) {
  return rows.stride[1] > 0 && rows.stride[1] < rows.stride[2];
}

Sizes sizes_of(const ForwardParams& p) {
  Sizes s{};
  s.rows = static_cast<size_t>(p.end_row() - p.first_row());
  s.tile_rows = s.rows <= DecodeTile::kFewRows ? s.rows : s.rows <= 2 ? 1 : kMostTileRows;
  s.tiles = (s.rows + s.tile_rows - 1) / s.tile_rows;
  const size_t vector = hn::Lanes(DF());
  s.key_lanes = round_up(static_cast<size_t>(p.key_width), vector);
  s.value_lanes = round_up(static_cast<size_t>(p.value_width), vector);
  s.row_bytes = static_cast<size_t>(std::max(
      {int64_t{1}, p.key_width * bytes_of(p.k.element), p.value_width * bytes_of(p.v.element)}));
  const bool interleaved = side_by_side(p.k);
  const double bytes = 2.0 * static_cast<double>(p.batch) * static_cast<double>(p.kv_heads) *
                       static_cast<double>(p.keys) * static_cast<double>(s.row_bytes);
  s.leads = !kPrefetches && s.tiles == 1 && s.tile_rows == kMostTileRows && !interleaved &&
            p.k.element == Element::kF32 && bytes >= kFromMemory;
  s.block =
      std::clamp((s.leads ? kLedBlockBytes : kBlockBytes) / s.row_bytes, kLeastBlock, kMostBlock) /
      16 * 16;
  // Where a token's heads lie side by side, a head alone would touch every page of memory.
  if (interleaved) s.block = kPrefetches ? 32 : 16;
  s.heads = interleaved ? std::clamp(kTokenBytes / static_cast<int64_t>(s.row_bytes), int64_t{1},
                                     p.kv_heads)
                        : 1;
  s.ahead = interleaved
                ? static_cast<size_t>(s.heads) * s.block
                : std::clamp(kAheadBytes / s.row_bytes / kKeyStep * kKeyStep, kKeyStep, s.block);
  return s;
}

// Everything is in floats, in this order.
struct Partial {
  Partial(const Sizes& sizes, void* memory)
      : m(static_cast<float*>(memory)), l(m + kMostRows), out(l + kMostRows), sizes_(sizes) {}

  static uint64_t bytes(const Sizes& s) {
    const uint64_t floats = 2 * kMostRows + s.padded_rows() * s.value_lanes;
    return (floats * sizeof(float) + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
  }
  float* row(size_t row) const { return out + row * sizes_.value_lanes; }

  float *m, *l;  // [row]
  float* out;    // [row][value_lanes], unnormalised

 private:
  const Sizes& sizes_;
};

struct PieceScratch {
  float* queries;          // [head][tile][vector of the width][row of the tile][lane]
  float* m;                // [head][tile][lane]
  float* l;                // likewise
  float* scores;           // [head][tile][block][row of the tile]
  float* scales;           // [block] of K, then of V; kInt8 only
  float* row;              // one of Q or V on its way
  float* recent;           // [head][row][value_lanes] sums of the last keys
  int64_t* slots;          // [block]
  int64_t* next_slots;     // [block]
  const char** keys;       // [head][block]; these three one behind the other, as they are needed
  const char** values;     // likewise
  const char** next_keys;  // likewise
  uint64_t bytes;
};

PieceScratch lay_out_piece(const Sizes& s, void* memory) {
  PieceScratch scratch{};
  Arena take(memory);
  const auto heads = static_cast<uint64_t>(s.heads);
  const size_t vector = hn::Lanes(DF());
  take(scratch.queries, heads * s.padded_rows() * s.key_lanes);
  take(scratch.m, heads * s.tiles * vector);
  take(scratch.l, heads * s.tiles * vector);
  take(scratch.scores, heads * s.tiles * s.tile_scores());
  take(scratch.scales, s.block + vector);
  take(scratch.row, std::max(s.key_lanes, s.value_lanes));
  take(scratch.recent, heads * s.padded_rows() * s.value_lanes);
  take(scratch.slots, s.block);
  take(scratch.next_slots, s.block);
  // One more, see ListedRowsAhead.
  take(scratch.keys, 3 * heads * s.block + 1);
  if (memory != nullptr) {
    scratch.values = scratch.keys + heads * s.block;
    scratch.next_keys = scratch.values + heads * s.block;
  }
  scratch.bytes = take.bytes();
  return scratch;
}

// Keys that any of the queries sees.
rules::KeyRange seen_keys(const ForwardParams& p, int64_t batch) {
  rules::KeyRange seen{p.keys, 0};
  for (int64_t query = p.first_query; query < p.end_query; ++query) {
    const rules::KeyRange range = p.visibility.of_query(batch, query);
    if (range.empty()) continue;
    seen.first = std::min(seen.first, range.first);
    seen.last = std::max(seen.last, range.last);
  }
  return seen;
}

// One query row's options.
struct Row {
  int64_t head, query;
  rules::KeyRange keys;
  const uint8_t* mask;  // at key 0
  const float* bias;

  Row(const ForwardParams& p, int64_t batch, int64_t kv_head, size_t row)
      : head(kv_head * p.group() + (p.first_row() + static_cast<int64_t>(row)) % p.group()),
        query((p.first_row() + static_cast<int64_t>(row)) / p.group()),
        keys(p.visibility.of_query(batch, query)),
        mask(p.mask.given() ? p.mask.row(batch, head, query) : nullptr),
        bias(p.bias.given() ? p.bias.row(batch, head, query) : nullptr) {}

  bool sees(const ForwardParams& p, int64_t key) const {
    return keys.contains(key) && (mask == nullptr || mask[key * p.mask.stride[3]] != 0) &&
           (bias == nullptr || bias[key * p.bias.stride[3]] != kNegInf);
  }
  bool sees_a_key(const ForwardParams& p) const {
    for (int64_t key = keys.first; key < keys.last; ++key) {
      if (sees(p, key)) return true;
    }
    return false;
  }
};

class Piece {
 public:
  Piece(const ForwardParams& params, const DecodeLayout& layout, const DecodeJob& job,
        void* partials, void* scratch)
      : p_(params),
        sizes_(sizes_of(params)),
        s_(lay_out_piece(sizes_, scratch)),
        score_kernels_(kernels_for(params.k.element, sizes_)),
        value_kernels_(kernels_for(params.v.element, sizes_)),
        batch_(job.batch),
        first_head_(job.kv_head),
        heads_(std::min(sizes_.heads, params.kv_heads - job.kv_head)),
        vector_(hn::Lanes(d_)),
        scale_(scale_factors(params)),
        seen_(seen_keys(params, job.batch)),
        keys_{seen_.first + job.piece * layout.piece_keys,
              std::min(seen_.first + (job.piece + 1) * layout.piece_keys, seen_.last)},
        partials_(static_cast<char*>(partials)),
        partial_step_(static_cast<uint64_t>(layout.pieces) * layout.partial_bytes) {}

  void compute() {
    const size_t lanes = static_cast<size_t>(heads_) * sizes_.tiles * vector_;
    std::fill_n(s_.m, lanes, kNegInf);
    std::fill_n(s_.l, lanes, 0.0F);
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
      std::copy_n(s_.next_keys, static_cast<size_t>(sizes_.heads) * sizes_.block, s_.keys);
      if (p_.value_width > 0) find_rows(p_.v, s_.slots, s_.values);
      if (find_slots(key + block(), s_.next_slots)) find_rows(p_.k, s_.next_slots, s_.next_keys);
      attend(key);
    }
    add_recent();
    for (int64_t head = 0; head < heads_; ++head) store_sums_of(head);
  }

 private:
  static DecodeKernels<DF> kernels_for(Element element, const Sizes& s) {
    switch (element) {
      case Element::kF16:
        return decode_kernels<hwy::float16_t, DF>(s.tile_rows, s.leads);
      case Element::kBF16:
        return decode_kernels<hwy::bfloat16_t, DF>(s.tile_rows, s.leads);
      case Element::kInt8:
        return decode_kernels<int8_t, DF>(s.tile_rows, s.leads);
      case Element::kF32:
        break;
    }
    return decode_kernels<float, DF>(s.tile_rows, s.leads);
  }

  int64_t block() const { return static_cast<int64_t>(sizes_.block); }
  Partial result(int64_t head) const {
    return {sizes_, partials_ + static_cast<uint64_t>(head) * partial_step_};
  }
  size_t sums_of_head() const { return sizes_.padded_rows() * sizes_.value_lanes; }
  float* recent(int64_t head, size_t row) const {
    return s_.recent + static_cast<size_t>(head) * sums_of_head() + row * sizes_.value_lanes;
  }
  float* queries(int64_t head) const {
    return s_.queries + static_cast<size_t>(head) * sizes_.padded_rows() * sizes_.key_lanes;
  }
  // Of the first lane in m and l.
  size_t tile_lane(int64_t head, size_t tile) const {
    return (static_cast<size_t>(head) * sizes_.tiles + tile) * vector_;
  }
  float* tile_scores(int64_t head, size_t tile) const {
    return s_.scores + (static_cast<size_t>(head) * sizes_.tiles + tile) * sizes_.tile_scores();
  }
  const char* const* rows_of(const char** rows, int64_t head) const {
    return rows + static_cast<size_t>(head) * sizes_.block;
  }
  Row row(int64_t head, size_t index) const { return {p_, batch_, first_head_ + head, index}; }

  void load_queries() {
    const auto factor = hn::Set(d_, scale_.of_queries);
    const auto width = static_cast<size_t>(p_.key_width);
    std::fill_n(s_.queries, static_cast<size_t>(heads_) * sizes_.padded_rows() * sizes_.key_lanes,
                0.0F);
    full_ = {0, p_.keys};
    for (int64_t head = 0; head < heads_; ++head) {
      for (size_t r = 0; r < sizes_.rows; ++r) {
        const Row of = row(head, r);
        full_.first = std::max(full_.first, of.keys.first);
        full_.last = std::min(full_.last, of.keys.last);
        if (width == 0) continue;
        read_row(d_, p_.q, batch_, of.head, of.query, width, sizes_.key_lanes, s_.row);
        // A tile's rows side by side, vector by vector, as score_keys() reads them.
        const size_t tile = r / sizes_.tile_rows;
        float* to = queries(head) + tile * sizes_.tile_rows * sizes_.key_lanes +
                    r % sizes_.tile_rows * vector_;
        for (size_t c = 0; c < width; c += vector_, to += sizes_.tile_rows * vector_) {
          hn::StoreU(hn::Mul(hn::LoadU(d_, s_.row + c), factor), d_, to);
        }
      }
    }
  }

  // Slots of a block of seen keys; behind the end the last one is repeated. Returns false if
  // there is no such key.
  bool find_slots(int64_t first, int64_t* to) const {
    const int64_t count = std::min(block(), seen_.last - first);
    if (count <= 0) return false;
    for (int64_t j = 0; j < count;) {
      int64_t slot = slot_of(p_.k, batch_, first + j);
      const int64_t run = p_.k.ring != 0          ? p_.k.ring - slot
                          : p_.k.pages != nullptr ? p_.k.page_size - (first + j) % p_.k.page_size
                                                  : count;
      for (const int64_t end = std::min(j + run, count); j < end; ++j) to[j] = slot++;
    }
    std::fill(to + count, to + block(), to[count - 1]);
    return true;
  }

  void find_rows(const StoredRows& rows, const int64_t* slots, const char** to) const {
    const int64_t bytes = bytes_of(rows.element);
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

  // A block of keys and values.
  void attend(int64_t first) {
    const auto count = static_cast<size_t>(std::min(block(), keys_.last - first));
    // Heads inside keys: where a token's heads lie side by side, so are they read.
    const size_t step = heads_ == 1 ? round_up(count, kKeyStep) : kKeyStep;
    if (!kPrefetches && !sizes_.leads) {
      if (p_.value_width > 0) touch_all(s_.values, p_.v, p_.value_width, count);
      touch_all(s_.keys, p_.k, p_.key_width, count);
    }
    for (size_t j = 0; j < count; j += step) {
      for (int64_t head = 0; head < heads_; ++head) {
        if (!mask_empties(head, first, count)) score_keys_of(head, j, step);
      }
    }
    for (int64_t head = 0; head < heads_; ++head) {
      if (mask_empties(head, first, count)) continue;
      if (p_.k.element == Element::kInt8) scale_tiles(p_.k, head, count);
      const bool hidden = pass_options(head, first, count);
      soften(head, count);
      if (sizes_.value_lanes == 0) continue;
      if (hidden && !values_are_finite(head, count)) {
        add_seen_values(head, first, count);
        continue;
      }
      if (p_.v.element == Element::kInt8) scale_tiles(p_.v, head, count);
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

  bool mask_empties(int64_t head, int64_t first, size_t count) const {
    if (!p_.mask.given()) return false;
    std::array<const uint8_t*, kMostRows> masks;
    for (size_t r = 0; r < sizes_.rows; ++r) masks[r] = row(head, r).mask;
    return hides_all(masks.data(), p_.mask.stride[3], sizes_.rows, first, count);
  }

  // Of keys j .. j + count - 1 of the block.
  void score_keys_of(int64_t head, size_t j, size_t count) {
    for (size_t tile = 0; tile < sizes_.tiles; ++tile) {
      score_kernels_.score_keys(
          d_, {.q = queries(head) + tile * sizes_.tile_rows * sizes_.key_lanes,
               .keys = rows_of(s_.keys, head) + j,
               .count = count,
               .width = static_cast<size_t>(p_.key_width),
               .scores = tile_scores(head, tile) + j * sizes_.tile_rows,
               .ahead = tile > 0 || p_.value_width == 0 ? nullptr
                                                        : rows_of(s_.keys, head) + j + sizes_.ahead,
               .ahead_bytes = sizes_.row_bytes});
    }
  }

  void touch_all(const char** rows, const StoredRows& stored, int64_t width, size_t count) {
    const int64_t bytes = width * bytes_of(stored.element);
    if (side_by_side(stored)) {
      const int64_t others = (heads_ - 1) * stored.stride[1] * bytes_of(stored.element);
      touched_ += score_kernels_.touch(rows, count, static_cast<size_t>(others + bytes));
      return;
    }
    for (int64_t head = 0; head < heads_; ++head) {
      touched_ += score_kernels_.touch(rows_of(rows, head), count, static_cast<size_t>(bytes));
    }
  }

  // By the factors of int8 rows.
  void scale_tiles(const StoredRows& rows, int64_t head, size_t count) {
    find_scales(rows, head);
    for (size_t tile = 0; tile < sizes_.tiles; ++tile) {
      score_kernels_.scale_keys(d_, tile_scores(head, tile), s_.scales, count);
    }
  }

  // Returns whether any key of the block may be hidden from any row.
  bool pass_options(int64_t head, int64_t first, size_t count) {
    const int64_t end = first + static_cast<int64_t>(count);
    const bool clipped = first < full_.first || end > full_.last;
    for (size_t tile = 0; tile < sizes_.tiles; ++tile) {
      const ScoreTile scores{.scores = tile_scores(head, tile),
                             .stride = vector_,
                             .first_key = first,
                             .keys = round_up(count * sizes_.tile_rows, vector_) / vector_,
                             .lanes = vector_,
                             .rows = vector_};
      if (scale_.of_scores != 1.0F) scale_scores(d_, scores, scale_.of_scores);
      if (p_.softcap > 0.0F) cap_scores(d_, scores, p_.softcap);
    }
    if (!clipped && !p_.mask.given() && !p_.bias.given() && p_.alibi_slopes == nullptr) {
      return false;
    }
    for (size_t r = 0; r < sizes_.rows; ++r) {
      const Row of = row(head, r);
      const ScoreTile scores{.scores = score(head, r, 0),
                             .stride = sizes_.tile_rows,
                             .first_key = first,
                             .keys = count,
                             .lanes = 1,
                             .rows = 1};
      if (p_.bias.given()) add_bias_row(scores, of.bias, p_.bias.stride[3]);
      if (p_.alibi_slopes != nullptr) subtract_distances(scores, of);
      if (p_.mask.given()) hide_row_by_mask(scores, of.mask, p_.mask.stride[3]);
      if (clipped) hide_by_range(scores, of.keys);
    }
    return clipped || p_.mask.given() || p_.bias.given();
  }

  float* score(int64_t head, size_t row, size_t j) const {
    return tile_scores(head, row / sizes_.tile_rows) + j * sizes_.tile_rows +
           row % sizes_.tile_rows;
  }

  void subtract_distances(const ScoreTile& scores, const Row& of) const {
    const float slope = p_.alibi_slopes[of.head];
    const int64_t distance = of.query + p_.alibi_shift(batch_) - scores.first_key;
    for (size_t j = 0; j < scores.keys; ++j) {
      const auto of_key = static_cast<float>(distance - static_cast<int64_t>(j));
      scores.scores[j * scores.stride] -= slope * std::abs(of_key);
    }
  }

  // One row, where those of score_passes-inl.h take a vector of rows.
  static void add_bias_row(const ScoreTile& scores, const float* bias, int64_t stride) {
    bias += scores.first_key * stride;
    for (size_t j = 0; j < scores.keys; ++j, bias += stride) {
      float& score = scores.scores[j * scores.stride];
      score = *bias == kNegInf ? kNegInf : score + *bias;
    }
  }

  static void hide_row_by_mask(const ScoreTile& scores, const uint8_t* mask, int64_t stride) {
    mask += scores.first_key * stride;
    for (size_t j = 0; j < scores.keys; ++j, mask += stride) {
      if (*mask == 0) scores.scores[j * scores.stride] = kNegInf;
    }
  }

  static void hide_by_range(const ScoreTile& scores, const rules::KeyRange& seen) {
    for (size_t j = 0; j < scores.keys; ++j) {
      if (seen.contains(scores.first_key + static_cast<int64_t>(j))) continue;
      scores.scores[j * scores.stride] = kNegInf;
    }
  }

  // Scores become weights.
  void soften(int64_t head, size_t count) {
    const size_t scores = count * sizes_.tile_rows;
    const size_t padded = round_up(scores, vector_);
    std::array<float, kMostTileRows> correction;
    for (size_t tile = 0; tile < sizes_.tiles; ++tile) {
      float* of_tile = tile_scores(head, tile);
      std::fill(of_tile + scores, of_tile + padded, kNegInf);
      const size_t lane = tile_lane(head, tile);
      const bool rose = score_kernels_.softmax(d_, of_tile, padded, scale_.of_softmax, s_.m + lane,
                                               s_.l + lane, correction.data());
      for (size_t r = 0; r < sizes_.tile_rows && rose; ++r) {
        const size_t row = tile * sizes_.tile_rows + r;
        scale_row(result(head).row(row), correction[r]);
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

  // A hidden value's weight of 0 times NaN or infinity is NaN. Such values are rare; looking for
  // them costs less than leaving out every hidden one.
  bool values_are_finite(int64_t head, size_t count) const {
    if (p_.v.element == Element::kInt8) {
      find_scales(p_.v, head);
      return std::all_of(s_.scales, s_.scales + count,
                         [](float scale) { return std::isfinite(scale); });
    }
    return value_kernels_.all_finite(d_, rows_of(s_.values, head), count,
                                     static_cast<size_t>(p_.value_width));
  }

  void add_seen_values(int64_t head, int64_t first, size_t count) {
    const auto width = static_cast<size_t>(p_.value_width);
    for (size_t j = 0; j < count; ++j) {
      const int64_t key = first + static_cast<int64_t>(j);
      value_kernels_.read_floats(d_, rows_of(s_.values, head)[j], width, s_.row);
      // Those of the values, since values_are_finite() looked.
      const float scale = p_.v.element == Element::kInt8 ? s_.scales[j] : 1.0F;
      for (size_t r = 0; r < sizes_.rows; ++r) {
        if (!row(head, r).sees(p_, key)) continue;
        const float weight = *score(head, r, j) * scale;
        float* out = recent(head, r);
        for (size_t c = 0; c < width; ++c) out[c] += weight * s_.row[c];
      }
    }
  }

  void add_all_values(int64_t head, size_t count) {
    // Several tiles share rows while they are in the first-level cache.
    const size_t step = sizes_.tiles == 1 ? kRecentKeys : 4 * kKeyStep;
    for (size_t j = 0; j < count; j += step) {
      if (j > 0 && j % kRecentKeys == 0) add_recent_of(head);
      for (size_t tile = 0; tile < sizes_.tiles; ++tile) {
        value_kernels_.add_values(
            d_, {.weights = tile_scores(head, tile) + j * sizes_.tile_rows,
                 .keys = std::min(step, count - j),
                 .values = rows_of(s_.values, head) + j,
                 .width = static_cast<size_t>(p_.value_width),
                 .out = recent(head, tile * sizes_.tile_rows),
                 .out_stride = sizes_.value_lanes,
                 .ahead = tile > 0 ? nullptr : rows_of(s_.values, head) + j + sizes_.ahead,
                 .ahead_bytes = sizes_.row_bytes});
      }
    }
  }

  void store_sums_of(int64_t head) {
    const Partial to = result(head);
    for (size_t r = 0; r < sizes_.rows; ++r) {
      const size_t lane = tile_lane(head, r / sizes_.tile_rows) + r % sizes_.tile_rows;
      to.m[r] = s_.m[lane];
      to.l[r] = 0.0F;
      for (size_t i = 0; i < vector_; i += sizes_.tile_rows) to.l[r] += s_.l[lane + i];
    }
  }

  const ForwardParams& p_;
  const DF d_;
  const Sizes sizes_;
  PieceScratch s_;
  const DecodeKernels<DF> score_kernels_, value_kernels_;
  const int64_t batch_, first_head_, heads_;
  const size_t vector_;  // lanes of a vector
  const ScaleFactors scale_;
  const rules::KeyRange seen_;  // by any query
  const rules::KeyRange keys_;  // of this piece
  rules::KeyRange full_;        // that all queries see
  int touched_ = 0;
  size_t recent_keys_ = 0;
  char* const partials_;  // of the first head
  const uint64_t partial_step_;
};

void piece(const ForwardParams& params, const DecodeLayout& layout, const DecodeJob& job,
           void* partials, void* scratch) {
  Piece(params, layout, job, partials, scratch).compute();
}

void store_row(const ForwardParams& p, int64_t batch, const Row& row, const float* from) {
  const int64_t at = row_offset(p.out.stride, batch, row.head, row.query);
  const auto store = [&]<class T>(T* to, auto convert) {
    for (int64_t c = 0; c < p.value_width; ++c) to[c] = convert(from[c]);
  };
  switch (p.out.element) {
    case Element::kF16:
      return store(static_cast<Float16*>(p.out.data) + at, rules::to_float16);
    case Element::kBF16:
      return store(static_cast<BFloat16*>(p.out.data) + at, rules::to_bfloat16);
    case Element::kF32:
    case Element::kInt8:
      std::copy_n(from, p.value_width, static_cast<float*>(p.out.data) + at);
  }
}

void merge(const ForwardParams& p, const DecodeLayout& layout, int64_t batch, int64_t kv_head,
           void* partials) {
  const Sizes sizes = sizes_of(p);
  const DF d;
  const auto factor = static_cast<double>(scale_factors(p).of_softmax);
  const auto partial_at = [&](int64_t piece) {
    return Partial(
        sizes, static_cast<char*>(partials) + static_cast<uint64_t>(piece) * layout.partial_bytes);
  };
  for (size_t r = 0; r < sizes.rows; ++r) {
    const Row row(p, batch, kv_head, r);
    float largest = kNegInf;
    for (int64_t i = 0; i < layout.pieces; ++i) {
      largest = std::max(largest, partial_at(i).m[r]);
    }
    // The sink is one more score, without a value. Rounded to float: weights are computed from
    // that maximum.
    const double sink = p.sinks == nullptr ? 0.0 : static_cast<double>(p.sinks[row.head]);
    if (p.sinks != nullptr) largest = std::max(largest, static_cast<float>(sink / factor));
    const auto m = static_cast<double>(largest);
    double sum = p.sinks == nullptr ? 0.0 : std::exp(sink - m * factor);
    float* out = partial_at(0).row(r);
    for (int64_t i = 0; i < layout.pieces; ++i) {
      const Partial part = partial_at(i);
      // Nothing but zeros, if it has seen no key.
      const double share =
          part.m[r] == largest ? 1.0 : std::exp((static_cast<double>(part.m[r]) - m) * factor);
      sum += share * static_cast<double>(part.l[r]);
      const auto by = hn::Set(d, static_cast<float>(share));
      for (size_t c = 0; c < sizes.value_lanes; c += hn::Lanes(d)) {
        const auto scaled = hn::Mul(by, hn::LoadU(d, part.row(r) + c));
        hn::StoreU(i == 0 ? scaled : hn::Add(hn::LoadU(d, out + c), scaled), d, out + c);
      }
    }
    // Scores that are -inf by overflow, not because they are hidden, have no softmax.
    if (sum == 0.0 && row.sees_a_key(p)) sum = std::numeric_limits<double>::quiet_NaN();
    if (p.out.data != nullptr) {
      for (int64_t c = 0; c < p.value_width; ++c) {
        // A sum of 0 is a row that sees nothing: the largest weight of any other is 1.
        out[c] = sum == 0.0 ? 0.0F : out[c] / static_cast<float>(sum);
      }
      store_row(p, batch, row, out);
    }
    if (p.lse.data != nullptr) {
      *p.lse.row(batch, row.head, row.query) =
          sum == 0.0 ? kNegInf : static_cast<float>(m * factor + std::log(sum));
    }
  }
}

DecodeLayout layout(const ForwardParams& p) {
  int64_t longest = 0;
  for (int64_t batch = 0; batch < p.batch; ++batch) {
    const rules::KeyRange seen = seen_keys(p, batch);
    if (!seen.empty()) longest = std::max(longest, seen.last - seen.first);
  }
  const Sizes sizes = sizes_of(p);
  const auto block = static_cast<int64_t>(sizes.block);
  const int64_t heads = std::max<int64_t>(1, p.batch * p.kv_heads);
  const auto wanted_of = [&](int64_t keys) {
    return std::clamp((kJobs + heads - 1) / heads, int64_t{1},
                      std::max<int64_t>(1, keys / kLeastPiece));
  };
  const int64_t wanted = wanted_of(longest);
  DecodeLayout result{};
  result.most_pieces = wanted_of(p.keys);
  result.piece_keys = ((longest + wanted - 1) / wanted + block - 1) / block * block;
  result.pieces = longest == 0 ? 1 : (longest + result.piece_keys - 1) / result.piece_keys;
  result.heads = sizes.heads;
  result.partial_bytes = Partial::bytes(sizes);
  result.scratch_bytes = lay_out_piece(sizes, nullptr).bytes;
  return result;
}

}  // namespace
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

HWY_EXPORT(layout);
HWY_EXPORT(piece);
HWY_EXPORT(merge);

bool decode_fits(const ForwardParams& p) {
  return p.end_row() - p.first_row() <= kMostDecodeRows && p.captures.empty() &&
         p.weights.out.data == nullptr && p.dropout_mask.data == nullptr &&
         p.dropout.probability == 0.0F;
}

DecodeLayout decode_layout(const ForwardParams& params) {
  return HWY_DYNAMIC_DISPATCH(layout)(params);
}

void decode_piece(const ForwardParams& params, const DecodeLayout& layout, const DecodeJob& job,
                  void* partials, void* scratch) {
  HWY_DYNAMIC_DISPATCH(piece)(params, layout, job, partials, scratch);
}

void decode_merge(const ForwardParams& params, const DecodeLayout& layout, int64_t batch,
                  int64_t kv_head, void* partials) {
  HWY_DYNAMIC_DISPATCH(merge)(params, layout, batch, kv_head, partials);
}

}  // namespace multihead::cpu
#endif  // HWY_ONCE
