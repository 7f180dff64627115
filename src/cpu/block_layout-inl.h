// How one forward block is cut into panels, and where everything of it lies in scratch memory.
#if defined(MULTIHEAD_CPU_BLOCK_LAYOUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_BLOCK_LAYOUT_INL_H_
#undef MULTIHEAD_CPU_BLOCK_LAYOUT_INL_H_
#else
#define MULTIHEAD_CPU_BLOCK_LAYOUT_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cpu/kernels.h"
#include "cpu/score_passes-inl.h"
#include "cpu/simd-inl.h"
#include "cpu/tile_size.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;

constexpr size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

// Gives out memory piece by piece. Without any memory, for its size alone, pointers are null.
class Arena {
 public:
  explicit Arena(void* memory) : base_(static_cast<char*>(memory)) {}

  template <class T>
  void operator()(T*& pointer, uint64_t count) {
    pointer = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += (count * sizeof(T) + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
  }
  uint64_t bytes() const { return bytes_; }

 private:
  char* base_;
  // In 64 bits, so that a size that a 32-bit machine cannot address is refused, not wrapped.
  uint64_t bytes_ = 0;
};

// Where everything of a block lies in its scratch memory.
struct Scratch {
  float* queries;        // [strip][key_width][score_lanes()], transposed
  float* query;          // [lanes of a vector][key_width] on their way there, where not f32
  float* scores;         // [key block][lanes of a panel]
  float* out;            // [row][value_lanes], unnormalised until finish()
  float* keys;           // [key block][key_width], where K is not f32 in order
  float* values;         // [strip][key block][strip_lanes()], where V is not read in place
  float* value;          // [value_width] on its way there, where not f32
  float* top;            // [row] largest score so far
  float* m;              // [row] score that l and out are relative to, see softmax_lanes()
  float* l;              // [row] running sum
  float* sum;            // [row] of a key block's weights, where scores become them at once
  float* correction;     // [row]
  float* nan;            // a vector of flags: lanes where a result was NaN
  float* block_m;        // [key block][row] the m that its weights are relative to, where captured
  int32_t* first_key;    // [row] visible range
  int32_t* last_key;     //
  RowPlace* place;       // [row]
  float* alibi_slope;    // [row]
  int32_t* alibi_end;    // [row] position among keys aligned at the end
  const uint8_t** mask;  // [row] the row's mask, at key 0
  const float** bias;    // [row]
  uint8_t* careful;      // [row] whether hidden values may have touched it
  uint64_t bytes;
};

inline size_t score_lanes() { return TileSize::kScoreVecs * hn::Lanes(DF()); }
inline size_t strip_lanes() { return TileSize::kMaxVecs * hn::Lanes(DF()); }
inline size_t panel_lanes() { return TileSize::kPanelVecs * hn::Lanes(DF()); }

// Rows whose attention takes as long as what a call sets up: that of 32 tokens of some heads.
inline uint64_t rows_worth_a_call(const ForwardParams& p) {
  constexpr uint64_t kMultiplyAdds = uint64_t{1} << 17;
  // Divided one by one: their product may be too large for an integer.
  return kMultiplyAdds / static_cast<uint64_t>(std::max<int64_t>(1, p.keys)) /
         static_cast<uint64_t>(std::max<int64_t>(1, p.key_width + p.value_width));
}

// Few rows (short sequences, decoding) take a smaller block, as do few heads, so that many threads
// have work. By the shape alone: results are the same bits whatever the number of threads.
inline size_t block_lanes(const ForwardParams& p) {
  constexpr uint64_t kJobs = HWY_ARCH_WASM ? 1 : 16;
  const auto rows = static_cast<size_t>(p.end_row() - p.first_row());
  const uint64_t of_job = static_cast<uint64_t>(p.batch * p.kv_heads) * rows / kJobs;
  const size_t most = panel_lanes() * TileSize::kBlockPanels;
  const uint64_t least = std::max(of_job + 1, rows_worth_a_call(p));
  const size_t enough =
      round_up(static_cast<size_t>(std::min<uint64_t>(least, most)), panel_lanes());
  return std::min({most, enough, round_up(rows, hn::Lanes(DF()))});
}

// Small heads share a call.
inline int64_t heads_of_job(const ForwardParams& p) {
  const auto rows = static_cast<uint64_t>(std::max<int64_t>(1, p.end_row() - p.first_row()));
  const auto heads = static_cast<int64_t>(rows_worth_a_call(p) / rows);
  return std::clamp<int64_t>(heads, 1, std::max<int64_t>(1, p.kv_heads));
}

// Keys are cut evenly, so that no block is left with a few.
inline int64_t key_block(const ForwardParams& p) {
  constexpr int64_t kUnit = 8;
  const int64_t blocks = (p.keys + TileSize::kKeyBlock - 1) / TileSize::kKeyBlock;
  if (blocks == 0) return 0;
  return ((p.keys + blocks - 1) / blocks + kUnit - 1) / kUnit * kUnit;
}

// Few rows do not pay for a copy of V that is not strictly needed.
constexpr size_t kRowsWorthACopy = 32;
constexpr int64_t kSmall = 2048;  // floats that the first-level cache holds wherever they lie

inline bool is_float(const StoredRows& rows) {
  return rows.element == Element::kF32 && rows.in_order();
}

// Rows far apart, as with heads interleaved (B, N, H, d), share few sets of the first-level cache,
// as does a strip that is narrower than V's rows: copied, a block of V is read faster than where it
// lies, unless it is small. K, of which a tile needs a few rows at a time, is not: 2-6 % of bert
// with heads interleaved. Rows that end within a vector need zeros behind them.
inline bool copies_values(const ForwardParams& p, size_t rows) {
  const auto width = static_cast<size_t>(p.value_width);
  return !is_float(p.v) || width % hn::Lanes(DF()) != 0 ||
         (rows >= kRowsWorthACopy && p.keys * p.value_width > kSmall &&
          (p.v.stride[2] != p.value_width || width > strip_lanes()));
}

inline bool captures_weights(const ForwardParams& p) {
  return p.weights.out.data != nullptr ||
         std::any_of(p.captures.begin(), p.captures.end(), [](const ScoreCapture& capture) {
           return capture.stage == ScoreStage::kWeights;
         });
}

inline bool needs_softmax(const ForwardParams& p) {
  return p.out.data != nullptr || p.lse.data != nullptr || captures_weights(p);
}

// Whether rows of the output are whole vectors of floats, which can be stored where they belong.
inline bool stores_vectors(const ForwardParams& p) {
  return p.out.data != nullptr && p.out.element == Element::kF32 &&
         static_cast<size_t>(p.value_width) % hn::Lanes(DF()) == 0;
}

// Whether they leave the registers normalised, from the last keys that they see: they are evenly
// spaced, and nothing is still to change them.
inline bool stores_means(const ForwardParams& p) {
  return stores_vectors(p) && p.group() == 1 && !p.mask.given() && p.sinks == nullptr;
}

inline Scratch lay_out(const ForwardParams& p, void* memory) {
  const uint64_t rows = block_lanes(p);
  // The longest block of any length, so that long sequences all take the same.
  const auto keys = std::min<uint64_t>(static_cast<uint64_t>(TileSize::kKeyBlock),
                                       round_up(static_cast<size_t>(p.keys), 8));
  const auto key_width = static_cast<uint64_t>(p.key_width);
  const auto value_width = static_cast<uint64_t>(p.value_width);
  const uint64_t value_lanes = round_up(static_cast<size_t>(p.value_width), hn::Lanes(DF()));
  const uint64_t vector = hn::Lanes(DF());

  Scratch s{};
  Arena take(memory);
  take(s.queries, round_up(rows, score_lanes()) * key_width);
  take(s.query, is_float(p.q) ? 0 : vector * key_width);
  take(s.scores, keys * std::min<uint64_t>(rows, panel_lanes()));
  take(s.out, rows * value_lanes);
  take(s.keys, is_float(p.k) ? 0 : keys * key_width);
  const bool copies = copies_values(p, rows);
  take(s.values, copies ? keys * round_up(value_lanes, strip_lanes()) : 0);
  take(s.value, copies && !is_float(p.v) ? value_width : 0);
  take(s.top, rows);
  take(s.m, rows);
  take(s.l, rows);
  take(s.sum, TileSize::kWeighsAtOnce ? rows : 0);
  take(s.correction, rows);
  take(s.nan, vector);
  const auto block = static_cast<uint64_t>(std::max<int64_t>(1, key_block(p)));
  const uint64_t blocks = (static_cast<uint64_t>(p.keys) + block - 1) / block;
  take(s.block_m, captures_weights(p) ? blocks * rows : 0);
  take(s.first_key, rows);
  take(s.last_key, rows);
  take(s.place, rows);
  take(s.alibi_slope, p.alibi_slopes != nullptr ? rows : 0);
  take(s.alibi_end, p.alibi_slopes != nullptr ? rows : 0);
  take(s.mask, p.mask.given() ? rows : 0);
  take(s.bias, p.bias.given() ? rows : 0);
  take(s.careful, rows);
  s.bytes = take.bytes();
  return s;
}

// The scale as a product of three factors, so that nothing overflows unless the scaled score does.
// The last two are positive.
struct ScaleFactors {
  float of_queries;  // before the products
  float of_scores;   // after them, by a pass of its own; 1 for none
  float of_softmax;  // inside of the exponentials
};

inline bool changes_scores(const ForwardParams& p) {
  return p.softcap > 0.0F || p.bias.given() || p.alibi_slopes != nullptr;
}

inline ScaleFactors scale_factors(const ForwardParams& p) {
  const float size = std::abs(p.scale);
  const float sign = std::copysign(1.0F, p.scale);
  if (changes_scores(p)) {
    // Something is added to scaled scores. Queries shrink before the products, scores grow after.
    return size > 1.0F ? ScaleFactors{sign, size, 1.0F} : ScaleFactors{p.scale, 1.0F, 1.0F};
  }
  // The exponentials take the product of the factor and log2(e), which has to stay finite.
  constexpr float kMost = 0x1p126F;
  if (size > kMost) return {sign * (size / kMost), 1.0F, kMost};
  if (size >= 1.0F) return {sign, 1.0F, size};
  if (size == 0.0F) return {0.0F, 1.0F, 1.0F};
  // Only a power of two goes into the queries: any other factor rounds them, an error that all
  // products of a query share (1e-5 in the output for inputs of +-1 and a scale of 1).
  int exponent = 0;
  const float fraction = std::frexp(size, &exponent);
  return {std::ldexp(sign, exponent - 1), 1.0F, 2.0F * fraction};
}

// Queries that are pairs cannot be multiplied: the whole scale goes into the softmax.
inline ScaleFactors scale_factors_of_pairs(const ForwardParams& p) { return {1.0F, 1.0F, p.scale}; }

// Whether the products may be of bf16 pairs: that was asked for, and nothing needs more, be it
// f32 scores once more, a scale inside them or a block that begins at an odd key.
inline bool pairs_fit(const ForwardParams& p) {
  const auto fits = [](const StoredRows& rows) {
    return rows.element == Element::kBF16 && rows.in_order();
  };
  return kHasPairs && p.bf16_products && fits(p.q) && fits(p.k) && fits(p.v) &&
         p.key_width % 2 == 0 && !changes_scores(p) && p.scale >= 1.0F / 1024.0F &&
         p.scale <= 1024.0F && p.captures.empty() && p.weights.out.data == nullptr &&
         p.visibility.left < 0 && p.visibility.firsts == nullptr;
}

}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_BLOCK_LAYOUT_INL_H_
