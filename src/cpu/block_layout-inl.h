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
#include "cpu/tile_size.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;

constexpr size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

// Where everything of a block lies in its scratch memory.
struct Scratch {
  float* queries;        // [group of vectors][key_width][lanes of the group]
  float* query;          // [key_width] one query on its way there
  float* scores;         // [key block][lanes of a panel]
  float* out;            // [row][value_lanes], unnormalised until finish()
  float* keys;           // [key block][key_width], where K is not read in place
  float* values;         // [key block][value_lanes], likewise V
  float* m;              // [row] running maximum
  float* l;              // [row] running sum
  float* correction;     // [row]
  int32_t* first_key;    // [row] visible range
  int32_t* last_key;     //
  RowPlace* place;       // [row]
  float* alibi_slope;    // [row]
  float* alibi_end;      // [row] position among keys aligned at the end
  const uint8_t** mask;  // [row] the row's mask, at key 0
  const float** bias;    // [row]
  uint8_t* careful;      // [row] whether hidden values may have touched it
  uint64_t bytes;
};

inline size_t panel_lanes() { return TileSize::kPanelVecs * hn::Lanes(DF()); }

// Few rows (short sequences, decoding) take a smaller block.
inline size_t block_lanes(const ForwardParams& p) {
  const size_t whole = panel_lanes() * TileSize::kBlockPanels;
  const auto rows = static_cast<size_t>(p.end_row() - p.first_row());
  return std::min(whole, round_up(rows, hn::Lanes(DF())));
}

inline bool in_place(const StoredRows& rows, uint64_t width, uint64_t padded) {
  return rows.element == Element::kF32 && rows.in_order() && width == padded;
}

inline Scratch lay_out(const ForwardParams& p, void* memory) {
  const uint64_t rows = block_lanes(p);
  const auto keys = static_cast<uint64_t>(std::min(p.keys, TileSize::kKeyBlock));
  const auto key_width = static_cast<uint64_t>(p.key_width);
  const auto value_width = static_cast<uint64_t>(p.value_width);
  const uint64_t value_lanes = round_up(static_cast<size_t>(p.value_width), hn::Lanes(DF()));

  Scratch s{};
  auto* const base = static_cast<char*>(memory);
  // In 64 bits, so that a size that a 32-bit machine cannot address is refused, not wrapped.
  uint64_t used = 0;
  const auto take = [&]<class T>(T*& pointer, uint64_t count) {
    // Sizes are asked for with no memory at all; no pointer is formed then.
    pointer = base == nullptr ? nullptr : reinterpret_cast<T*>(base + used);
    used += (count * sizeof(T) + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
  };
  take(s.queries, rows * key_width);
  take(s.query, key_width);
  take(s.scores, keys * std::min<uint64_t>(rows, panel_lanes()));
  take(s.out, rows * value_lanes);
  take(s.keys, in_place(p.k, key_width, key_width) ? 0 : keys * key_width);
  take(s.values, in_place(p.v, value_width, value_lanes) ? 0 : keys * value_lanes);
  take(s.m, rows);
  take(s.l, rows);
  take(s.correction, rows);
  take(s.first_key, rows);
  take(s.last_key, rows);
  take(s.place, rows);
  take(s.alibi_slope, p.alibi_slopes != nullptr ? rows : 0);
  take(s.alibi_end, p.alibi_slopes != nullptr ? rows : 0);
  take(s.mask, p.mask.given() ? rows : 0);
  take(s.bias, p.bias.given() ? rows : 0);
  take(s.careful, rows);
  s.bytes = used;
  return s;
}

inline bool needs_softmax(const ForwardParams& p) {
  return p.out.data != nullptr || p.lse.data != nullptr || p.weights.out.data != nullptr ||
         std::any_of(p.captures.begin(), p.captures.end(), [](const ScoreCapture& capture) {
           return capture.stage == ScoreStage::kWeights;
         });
}

// Whether the scale goes into Q, not into the softmax: where something is added to scaled
// scores, and where it is so far from 1 that a maximum divided by it might overflow (0 among
// those).
inline bool folds_scale(const ForwardParams& p) {
  const float size = std::abs(p.scale);
  return p.bias.given() || p.alibi_slopes != nullptr || p.softcap > 0.0F ||
         !(size >= 1.0F / 1024.0F && size <= 1024.0F);
}

}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_BLOCK_LAYOUT_INL_H_
