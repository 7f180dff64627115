// Forward attention of one block of query rows.
//
// FlashAttention-2's order (Dao, arXiv:2307.08691): a block of queries walks along the keys
// and carries its running maximum m, sum l and unnormalised output. Scores are kept
// transposed, queries in the vector lanes:
//
//   Qt[d][query]      the block's queries, transposed once, the scale folded in
//   St[key][query]  = sum over d of K[key][d] * Qt[d][query]         broadcast K, vector Qt
//   online softmax    every lane its own query: no horizontal maximum or sum anywhere
//   O[query][:]    += sum over keys of St[key][query] * V[key][:]    broadcast St, vector V
//
// so K and V are read where they lie. A block is cut into panels: one panel's scores
// against a key block stay in L1, the key block is shared by the panels from L2.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/forward.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/micro_kernel-inl.h"
#include "cpu/score_passes-inl.h"
#include "cpu/simd-inl.h"
#include "cpu/softmax-inl.h"
#include "cpu/tile_size.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;

constexpr size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

// Where everything of a block lies in its scratch memory.
struct Scratch {
  float* queries;      // [group of vectors][key_width][lanes of the group]
  float* scores;       // [key block][lanes of a panel]
  float* out;          // [row][value_lanes], unnormalised
  float* values;       // [key block][value_lanes], where V's rows are no whole vectors
  float* m;            // [row] running maximum
  float* l;            // [row] running sum
  float* correction;   // [row]
  int32_t* first_key;  // [row] visible range
  int32_t* last_key;
  const uint8_t** mask;  // [row] the row's mask, at key 0
  const float** bias;
  size_t bytes;
};

size_t panel_lanes() { return TileSize::kPanelVecs * hn::Lanes(DF()); }

// Few rows (short sequences, decoding) take a smaller block.
size_t block_lanes(const ForwardParams& p) {
  const size_t whole = panel_lanes() * TileSize::kBlockPanels;
  return std::min(whole, round_up(static_cast<size_t>(p.rows()), hn::Lanes(DF())));
}

Scratch lay_out(const ForwardParams& p, void* memory) {
  const size_t lanes = hn::Lanes(DF());
  const size_t rows = block_lanes(p);
  const size_t keys = static_cast<size_t>(std::min(p.keys, TileSize::kKeyBlock));
  const size_t value_lanes = round_up(static_cast<size_t>(p.value_width), lanes);
  const bool pack_values = static_cast<size_t>(p.value_width) != value_lanes;

  Scratch s{};
  auto* const base = static_cast<char*>(memory);
  size_t used = 0;
  const auto take = [&]<class T>(T*& pointer, size_t count) {
    // Sizes are asked for with no memory at all; no pointer is formed then.
    pointer = base == nullptr ? nullptr : reinterpret_cast<T*>(base + used);
    used += round_up(count * sizeof(T), kScratchAlignment);
  };
  take(s.queries, rows * static_cast<size_t>(p.key_width));
  take(s.scores, keys * std::min(rows, panel_lanes()));
  take(s.out, rows * value_lanes);
  take(s.values, pack_values ? keys * value_lanes : 0);
  take(s.m, rows);
  take(s.l, rows);
  take(s.correction, rows);
  take(s.first_key, rows);
  take(s.last_key, rows);
  take(s.mask, p.mask.given() ? rows : 0);
  take(s.bias, p.bias.given() ? rows : 0);
  s.bytes = used;
  return s;
}

template <ScoreUnit kUnit>
class Block {
 public:
  Block(const ForwardParams& params, int64_t batch, int64_t kv_head, int64_t first_row,
        void* scratch)
      : p_(params),
        batch_(batch),
        kv_head_(kv_head),
        first_row_(first_row),
        s_(lay_out(params, scratch)),
        vector_(hn::Lanes(d_)),
        rows_(std::min(block_lanes(params), static_cast<size_t>(params.rows() - first_row))),
        lanes_(round_up(rows_, vector_)),
        value_lanes_(round_up(static_cast<size_t>(params.value_width), vector_)) {}

  // Everything but the stores.
  void compute() {
    load_rows();
    transpose_queries();
    for (int64_t key = block_.first; key < block_.last; key += TileSize::kKeyBlock) {
      const int64_t end = std::min(key + TileSize::kKeyBlock, block_.last);
      const Values values = load_values(key, end);
      for (size_t lane = 0; lane < lanes_; lane += panel_lanes()) {
        const Panel panel = panel_at(lane);
        const rules::KeyRange keys{std::max(key, panel.keys.first), std::min(end, panel.keys.last)};
        if (!keys.empty()) attend(panel, keys, values, key);
      }
    }
  }

  void store() {
    for (size_t row = 0; row < rows_; ++row) store_row(row);
    if (p_.weights.data != nullptr) store_weights();
  }

  // Whether scores beyond 3.4e38 / log2(e) may have become infinite in base 2, although they
  // are finite: a row then has a NaN sum, or an empty one although it sees a key.
  bool may_have_overflowed() const {
    for (size_t row = 0; row < rows_; ++row) {
      if (std::isnan(s_.l[row]) || (s_.l[row] == 0.0F && sees_a_key(row))) return true;
    }
    return false;
  }

 private:
  struct Panel {
    size_t lane;           // first lane within the block
    size_t lanes, rows;    // with and without padding
    rules::KeyRange keys;  // that any of its rows sees
    rules::KeyRange full;  // that all of its rows see
  };
  struct Values {
    const float* data;  // of the key block's first key
    size_t stride;
  };

  int64_t query_of(size_t row) const {
    return (first_row_ + static_cast<int64_t>(row)) / p_.group();
  }
  int64_t head_of(size_t row) const {
    return kv_head_ * p_.group() + (first_row_ + static_cast<int64_t>(row)) % p_.group();
  }

  bool sees_a_key(size_t row) const {
    if (!p_.mask.given()) return s_.first_key[row] < s_.last_key[row];
    for (int64_t key = s_.first_key[row]; key < s_.last_key[row]; ++key) {
      if (s_.mask[row][key * p_.mask.stride[3]] != 0) return true;
    }
    return false;
  }

  void load_rows() {
    block_ = {p_.keys, 0};
    for (size_t row = 0; row < lanes_; ++row) {
      // Padding lanes repeat the last row's range, and their queries are zero.
      const size_t source = std::min(row, rows_ - 1);
      const int64_t query = query_of(source);
      const rules::KeyRange range = p_.visibility.of_query(query);
      s_.first_key[row] = static_cast<int32_t>(range.first);
      s_.last_key[row] = static_cast<int32_t>(range.last);
      block_.first = std::min(block_.first, range.first);
      block_.last = std::max(block_.last, range.last);
      s_.m[row] = kNegInf;
      s_.l[row] = 0.0F;
      if (p_.mask.given()) s_.mask[row] = p_.mask.row(batch_, head_of(source), query);
      if (p_.bias.given()) s_.bias[row] = p_.bias.row(batch_, head_of(source), query);
    }
    std::fill_n(s_.out, lanes_ * value_lanes_, 0.0F);
  }

  size_t group_lanes() const { return TileSize::kScoreVecs * vector_; }

  void transpose_queries() {
    const float factor = kUnit == ScoreUnit::kBase2 ? p_.scale * kLog2E : p_.scale;
    const auto width = static_cast<size_t>(p_.key_width);
    for (size_t lane = 0; lane < lanes_; lane += group_lanes()) {
      const size_t columns = std::min(group_lanes(), lanes_ - lane);
      float* group = s_.queries + lane * width;
      for (size_t column = 0; column < columns; ++column) {
        if (lane + column >= rows_) {
          for (size_t c = 0; c < width; ++c) group[c * columns + column] = 0.0F;
          continue;
        }
        const float* q = p_.q.row(batch_, head_of(lane + column), query_of(lane + column));
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
      panel.keys.first = std::min<int64_t>(panel.keys.first, s_.first_key[row]);
      panel.keys.last = std::max<int64_t>(panel.keys.last, s_.last_key[row]);
      panel.full.first = std::max<int64_t>(panel.full.first, s_.first_key[row]);
      panel.full.last = std::min<int64_t>(panel.full.last, s_.last_key[row]);
    }
    return panel;
  }

  // Vectors may not read past the last value of V: rows that are no whole vectors are copied.
  Values load_values(int64_t key, int64_t end) {
    const float* source = p_.v.row(batch_, kv_head_, key);
    const auto width = static_cast<size_t>(p_.value_width);
    if (width == value_lanes_) return {source, static_cast<size_t>(p_.v.stride[2])};
    for (int64_t row = 0; row < end - key; ++row) {
      float* target = s_.values + static_cast<size_t>(row) * value_lanes_;
      std::memcpy(target, source + row * p_.v.stride[2], width * sizeof(float));
      std::fill(target + width, target + value_lanes_, 0.0F);
    }
    return {s_.values, value_lanes_};
  }

  // Scores of the panel against `keys`, hidden ones -inf.
  ScoreTile score(const Panel& panel, const rules::KeyRange& keys) {
    ScoreTile tile{.scores = s_.scores,
                   .stride = std::min(panel_lanes(), block_lanes(p_)),
                   .first_key = keys.first,
                   .keys = static_cast<size_t>(keys.last - keys.first),
                   .lanes = panel.lanes,
                   .rows = panel.rows};
    const auto width = static_cast<size_t>(p_.key_width);
    for (size_t lane = 0; lane < panel.lanes; lane += group_lanes()) {
      const size_t columns = std::min(group_lanes(), panel.lanes - lane);
      const Product product_of_group{.a = p_.k.row(batch_, kv_head_, keys.first),
                                     .a_stride = static_cast<size_t>(p_.k.stride[2]),
                                     .b = s_.queries + (panel.lane + lane) * width,
                                     .b_stride = columns,
                                     .c = tile.scores + lane,
                                     .c_stride = tile.stride,
                                     .depth = width};
      product<ALayout::kRowMajor, Store::kOverwrite, TileSize::kScoreRows, TileSize::kScoreVecs>(
          d_, product_of_group, tile.keys, columns / vector_);
    }
    if (p_.bias.given()) add_bias(d_, tile, s_.bias + panel.lane, p_.bias.stride[3]);
    if (p_.mask.given()) hide_by_mask(d_, tile, s_.mask + panel.lane, p_.mask.stride[3]);
    // Only keys that some row of the panel does not see: with causal, those near the diagonal.
    hide_keys(panel, tile, keys.first, std::min(keys.last, panel.full.first));
    hide_keys(panel, tile, std::max(keys.first, panel.full.last), keys.last);
    return tile;
  }

  void hide_keys(const Panel& panel, const ScoreTile& tile, int64_t first, int64_t last) {
    if (first >= last) return;
    ScoreTile part = tile;
    part.scores += static_cast<size_t>(first - tile.first_key) * tile.stride;
    part.first_key = first;
    part.keys = static_cast<size_t>(last - first);
    hide_by_range(d_, part, s_.first_key + panel.lane, s_.last_key + panel.lane);
  }

  void attend(const Panel& panel, const rules::KeyRange& keys, const Values& values,
              int64_t block_key) {
    const ScoreTile tile = score(panel, keys);
    for (size_t lane = 0; lane < panel.lanes; lane += vector_) {
      const size_t row = panel.lane + lane;
      const bool rose = softmax_lanes<kUnit>(d_, tile.scores + lane, tile.stride, tile.keys,
                                             s_.m + row, s_.l + row, s_.correction + row);
      if (rose) rescale(row);
    }
    const Product product_of_panel{
        .a = tile.scores,
        .a_stride = tile.stride,
        .b = values.data + static_cast<size_t>(keys.first - block_key) * values.stride,
        .b_stride = values.stride,
        .c = s_.out + panel.lane * value_lanes_,
        .c_stride = value_lanes_,
        .depth = tile.keys};
    product<ALayout::kColMajor, Store::kAccumulate, TileSize::kValueRows, TileSize::kValueVecs>(
        d_, product_of_panel, panel.rows, value_lanes_ / vector_);
  }

  // One vector of rows.
  void rescale(size_t first) {
    for (size_t row = first; row < first + vector_; ++row) {
      if (s_.correction[row] == 1.0F) continue;
      const auto factor = hn::Set(d_, s_.correction[row]);
      float* out = s_.out + row * value_lanes_;
      for (size_t c = 0; c < value_lanes_; c += vector_) {
        hn::StoreU(hn::Mul(hn::LoadU(d_, out + c), factor), d_, out + c);
      }
    }
  }

  void store_row(size_t row) {
    const int64_t query = query_of(row);
    const int64_t head = head_of(row);
    const float sum = s_.l[row];
    const float* source = s_.out + row * value_lanes_;
    float* out = p_.out.row(batch_, head, query);
    // A sum of 0 is a row that sees nothing: the largest weight of any other is 1.
    const bool sees_nothing = sum == 0.0F;
    bool nan = false;
    for (int64_t c = 0; c < p_.value_width; ++c) {
      const float value = sees_nothing ? 0.0F : source[c] / sum;
      out[c] = value;
      nan |= std::isnan(value);
    }
    if (nan && !std::isnan(sum)) store_row_with_care(row, out);
    if (p_.lse.data != nullptr) {
      const double unit = kUnit == ScoreUnit::kBase2 ? 1.0 / static_cast<double>(kLog2E) : 1.0;
      *p_.lse.row(batch_, head, query) =
          sees_nothing ? kNegInf
                       : static_cast<float>(static_cast<double>(s_.m[row]) * unit +
                                            std::log(static_cast<double>(sum)));
    }
  }

  // A hidden value may be NaN or infinite, and its weight of 0 times that is NaN. Testing
  // outputs for it costs nothing; such a row is then summed again over visible keys alone.
  void store_row_with_care(size_t row, float* out) {
    const int64_t head = head_of(row);
    const int64_t query = query_of(row);
    const float* q = p_.q.row(batch_, head, query);
    std::fill_n(out, p_.value_width, 0.0F);
    for (int64_t key = s_.first_key[row]; key < s_.last_key[row]; ++key) {
      if (p_.mask.given() && p_.mask.at(batch_, head, query, key) == 0) continue;
      const float bias = p_.bias.given() ? p_.bias.at(batch_, head, query, key) : 0.0F;
      if (bias == kNegInf) continue;
      const float* k = p_.k.row(batch_, kv_head_, key);
      const float* v = p_.v.row(batch_, kv_head_, key);
      float score = 0.0F;
      for (int64_t c = 0; c < p_.key_width; ++c) score += q[c] * k[c];
      score = score * p_.scale + bias;
      const float maximum = kUnit == ScoreUnit::kBase2 ? s_.m[row] / kLog2E : s_.m[row];
      const float weight = std::exp(score - maximum) / s_.l[row];
      for (int64_t c = 0; c < p_.value_width; ++c) out[c] += weight * v[c];
    }
  }

  // The softmax itself, for those who ask: scores once more, since m and l are known only now.
  void store_weights() {
    for (size_t lane = 0; lane < lanes_; lane += panel_lanes()) {
      const Panel panel = panel_at(lane);
      for (size_t row = 0; row < panel.rows; ++row) {
        float* weights = weights_row(lane + row);
        std::fill(weights, weights + std::min(panel.keys.first, p_.keys), 0.0F);
        std::fill(weights + std::max<int64_t>(panel.keys.last, 0), weights + p_.keys, 0.0F);
      }
      for (int64_t key = panel.keys.first; key < panel.keys.last; key += TileSize::kKeyBlock) {
        store_weights_of(panel, {key, std::min(key + TileSize::kKeyBlock, panel.keys.last)});
      }
    }
  }

  void store_weights_of(const Panel& panel, const rules::KeyRange& keys) {
    const ScoreTile tile = score(panel, keys);
    for (size_t lane = 0; lane < panel.lanes; lane += vector_) {
      const auto maximum = finite_maximum(d_, hn::LoadU(d_, s_.m + panel.lane + lane));
      const auto sum = hn::LoadU(d_, s_.l + panel.lane + lane);
      const auto divisor = hn::IfThenElse(hn::Eq(sum, hn::Zero(d_)), hn::Set(d_, 1.0F), sum);
      for (size_t j = 0; j < tile.keys; ++j) {
        float* at = tile.scores + j * tile.stride + lane;
        const auto weight = exp_of_difference<kUnit>(d_, hn::LoadU(d_, at), maximum);
        hn::StoreU(hn::Div(weight, divisor), d_, at);
      }
    }
    for (size_t row = 0; row < panel.rows; ++row) {
      float* weights = weights_row(panel.lane + row) + keys.first;
      for (size_t j = 0; j < tile.keys; ++j) weights[j] = tile.scores[j * tile.stride + row];
    }
  }

  float* weights_row(size_t row) const {
    return p_.weights.row(batch_, head_of(row), query_of(row));
  }

  const ForwardParams& p_;
  const int64_t batch_, kv_head_, first_row_;
  const Scratch s_;
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
  if (!params.bias.given()) {
    Block<ScoreUnit::kBase2> block(params, batch, kv_head, first_row, scratch);
    block.compute();
    if (HWY_LIKELY(!block.may_have_overflowed())) {
      block.store();
      return;
    }
  }
  Block<ScoreUnit::kNatural> block(params, batch, kv_head, first_row, scratch);
  block.compute();
  block.store();
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
