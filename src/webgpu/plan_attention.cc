#include "webgpu/plan_attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/attention/plan.h"
#include "engine/cache/cache_access.h"
#include "engine/cache/cached_rows.h"
#include "engine/error/error.h"
#include "engine/varlen/varlen.h"
#include "rules/attention_params.h"
#include "rules/integers.h"
#include "rules/rope.h"
#include "rules/visibility.h"
#include "webgpu/params.h"
#include "webgpu/planner.h"

namespace multihead::webgpu {
namespace {

using engine::AttentionShape;
using engine::sequence_of;
using rules::AttentionParams;
using rules::RowStrides;
using rules::StoredRows;

constexpr int64_t kMostWidth = 256;
// Of queries, keys and shifts: sums of them have 32 bits.
constexpr int64_t kMostTokens = 1 << 28;
// Rows of a key/value head that are decoded. Beyond that, tiles of rows read K and V less often.
constexpr int64_t kMostDecodeRows = 16;
// Decoding is split until there are so many workgroups, each of which has so many keys at least.
constexpr int64_t kWorkgroups = 512, kLeastSplitKeys = 64;

rules::Visibility visibility_of(const Problem& of, int64_t entry) {
  rules::Visibility rule = of.params.visibility;
  if (of.cu_q.empty()) return rule;
  const auto s = static_cast<size_t>(entry);
  rule.queries = of.cu_q[s + 1] - of.cu_q[s];
  rule.keys = rule.shard_keys = of.cu_k[s + 1] - of.cu_k[s];
  return rule;
}

// Writes what the kernels know of each batch entry: Entry of attention.wgsl.
void put_entries(const Problem& of, Planner& to) {
  for (int64_t b = 0; b < of.params.batch; ++b) {
    const rules::Visibility rule = visibility_of(of, b);
    const bool is_packed = !of.cu_q.empty();
    const int64_t place = is_packed ? 0 : b;
    const rules::EntryVisibility entry = rule.entry(place);
    const auto small = [](int64_t x) {
      return static_cast<int32_t>(rules::limited(x, -2 * kMostTokens, 2 * kMostTokens));
    };
    const int32_t words[ENTRY_WORDS] = {is_packed ? of.cu_q[static_cast<size_t>(b)] : 0,
                                        small(is_packed ? rule.queries : of.params.queries),
                                        is_packed ? of.cu_k[static_cast<size_t>(b)] : 0,
                                        small(entry.present.first),
                                        small(entry.present.last),
                                        small(entry.first_shift),
                                        small(entry.last_shift),
                                        small(rule.alibi_shift(place))};
    to.put(words);
  }
}

// Positions for RoPE: one for each row, or for each row of each batch entry.
std::vector<int32_t> positions_of(const Problem& of, bool of_queries) {
  const auto& given = of_queries ? of.options.rope.q_positions : of.options.rope.k_positions;
  if (!given.empty()) return {given.begin(), given.end()};
  const bool packed = !of.cu_q.empty();
  // With lengths, queries of each entry may have positions of their own.
  const bool differ = packed || (of_queries && of.params.visibility.lengths != nullptr);
  std::vector<int32_t> positions;
  for (int64_t b = 0; b < (differ ? of.params.batch : 1); ++b) {
    const rules::Visibility rule = visibility_of(of, b);
    for (int64_t row = 0; row < (of_queries ? rule.queries : rule.keys); ++row) {
      const int64_t at = of_queries ? rule.position(packed ? 0 : b, row) : row;
      positions.push_back(static_cast<int32_t>(at));
    }
  }
  return positions;
}

// Turns of the pairs at position 1 as fractions of 64 bits, the low word first.
std::vector<uint32_t> turns_of(double base, int64_t rotary) {
  std::vector<uint32_t> words;
  for (int64_t pair = 0; pair < rotary / 2; ++pair) {
    const double turn = rules::rope_frequency(pair, base, rotary) / (2 * std::numbers::pi);
    const auto fraction = static_cast<uint64_t>(std::ldexp(turn - std::floor(turn), 64));
    words.push_back(static_cast<uint32_t>(fraction));
    words.push_back(static_cast<uint32_t>(fraction >> 32U));
  }
  return words;
}

// Positions of all rows, or of those of each batch entry.
void put_rotation(const Rope& rope, std::span<const int32_t> positions, const Extents& e,
                  RowsBlock& block, Planner& planner) {
  const int64_t rotary = rope.rotary_dim != 0 ? rope.rotary_dim : e[3];
  block.pairs = word(rotary / 2);
  block.interleaved = rope.style == Rope::Style::kInterleaved ? 1 : 0;
  block.turns = planner.put(turns_of(rope.base, rotary));
  block.positions = planner.put(positions);
  const bool shared = positions.size() == static_cast<size_t>(e[2]);
  block.position_stride = shared ? 0 : word(e[2]);
}

// Normalizes and rotates queries or keys into scratch memory.
GpuRows transformed(const Problem& of, bool of_queries, const GpuRows& from, Planner& planner) {
  const auto& [norm, rope] = std::pair(of.options.qk_norm, of.options.rope);
  if (!norm.given() && !rope.given()) return from;
  const Extents& e = of_queries ? of.q : of.k;
  GpuRows to = planner.scratch_rows(of_queries ? "q" : "k", e);
  RowsBlock block = as_they_are();
  block.normalize = norm.given() ? 1 : 0;
  block.eps = norm.eps;
  block.gain = planner.put_given(of_queries ? norm.q_gain : norm.k_gain);
  if (rope.given()) put_rotation(rope, positions_of(of, of_queries), e, block, planner);
  planner.move_rows({from, to}, e, block);
  return to;
}

Binding broadcast(const char* argument, const auto& from, const AttentionParams& p, int64_t element,
                  vec4u& block, Planner& planner) {
  std::array<int64_t, 4> strides = from.stride;
  std::array<int64_t, 4> extents{p.batch, p.heads, p.queries, p.keys};
  for (size_t axis = 0; axis < 4; ++axis) {
    if (strides[axis] == 0) extents[axis] = std::min<int64_t>(extents[axis], 1);
  }
  const Binding binding = planner.operand<4>(argument, from.data, extents, strides, 1, element);
  std::transform(strides.begin(), strides.end(), block.begin(),
                 [](int64_t stride) { return word(stride); });
  return binding;
}

uint32_t least_power(int64_t width) { return width <= 64 ? 64 : width <= 128 ? 128 : 256; }

// Plans out, LSE and captures.
class Attention {
 public:
  Attention(const Problem& of, Planner& planner) : of_(of), p_(of.params), planner_(planner) {}

  void plan() {
    put_entries(of_, planner_);
    fill_block();
    bind_inputs();
    if (!planner_.ok()) return;
    if (p_.captures_weights()) {
      totals_ = planner_.scratch("weights", product({2, p_.batch, p_.kv_heads, p_.end_row()}));
    }
    if (p_.needs_softmax()) plan_softmax();
    if (p_.weights.out.data != nullptr) plan_capture("weights", p_.weights);
    for (const ScoreCapture& capture : p_.captures) plan_capture("capture.out", capture);
  }

 private:
  void fill_block() {
    block_.batch = word(p_.batch);
    block_.heads = word(p_.heads);
    block_.kv_heads = word(p_.kv_heads);
    block_.group = word(p_.group());
    block_.first_row = word(p_.first_row());
    block_.rows = word(p_.end_row());
    block_.splits = 1;
    block_.keys = word(p_.keys);
    block_.dk = word(p_.head_dim);
    block_.slopes = block_.sinks = block_.chosen = kNone;
    const auto of_heads = [&](const float* numbers) {
      return planner_.put(std::span(numbers, static_cast<size_t>(p_.heads)));
    };
    if (p_.alibi_slopes != nullptr) block_.slopes = of_heads(p_.alibi_slopes);
    if (p_.sinks != nullptr) block_.sinks = of_heads(p_.sinks);
    block_.q_scale = p_.scale.queries;
    block_.score_scale = p_.scale.scores;
    block_.softmax_scale = p_.scale.softmax;
    block_.exponent = p_.scale.softmax * std::numbers::log2e_v<float>;
    block_.least = -150.0F / block_.exponent;
    block_.softcap = p_.softcap;
    block_.ring = word(p_.k.ring);
    if (p_.k.pages == nullptr) return;
    block_.page_size = word(p_.k.page_size);
    block_.entry_pages = word(p_.k.pages_per_entry);
    block_.pages =
        planner_.put(std::span(p_.k.pages, static_cast<size_t>(p_.batch * p_.k.pages_per_entry)));
  }

  void bind_inputs() {
    const auto stored = [&](const char* argument, const StoredRows& rows, Extents e,
                            int64_t width) {
      e[3] = width;
      return planner_.rows(argument, rows.data, rows.type, rows.stride, e);
    };
    q_ = stored("q", p_.q, of_.q, p_.head_dim);
    k_ = stored("k", p_.k, of_.k, p_.head_dim);
    v_ = stored("v", p_.v, of_.k, p_.value_dim);
    q_ = transformed(of_, /*of_queries=*/true, q_, planner_);
    k_ = transformed(of_, /*of_queries=*/false, k_, planner_);
    block_.q = q_.block();
    block_.k = k_.block();
    block_.v = v_.block();
    mask_ = broadcast("mask", p_.mask, p_, 1, block_.mask, planner_);
    bias_ = broadcast("bias", p_.bias, p_, 4, block_.bias, planner_);
    block_.given = (p_.mask.given() ? 1U : 0U) | (p_.bias.given() ? 2U : 0U);
  }

  // FLOATS and HALVES, see load.wgsl.
  std::pair<uint32_t, uint32_t> loads(bool of_values) const {
    const auto fits = [](const GpuRows& rows, int64_t width) {
      return rows.in_fours() && width % 4 == 0;
    };
    const bool values = !of_values || (fits(v_, p_.value_dim) && v_.type == k_.type);
    if (q_.type != DType::kF32 || !fits(q_, p_.head_dim) || !fits(k_, p_.head_dim) || !values) {
      return {0, 0};
    }
    return {1, k_.type == DType::kF32 ? 0 : 1};
  }

  void plan_softmax() {
    const bool halves = p_.out.data != nullptr && p_.out.type != DType::kF32;
    Extents of_out = of_.q;
    of_out[3] = p_.value_dim;
    GpuRows given{.binding = planner_.unread(0)};
    if (p_.out.data != nullptr) {
      given = planner_.rows("out", p_.out.data, p_.out.type, p_.out.stride, of_out);
    }
    const GpuRows out = halves ? planner_.scratch_rows("out", of_out) : given;
    GpuRows lse{.binding = planner_.unread(1)};
    if (p_.lse.data != nullptr) {
      Extents of_lse = of_.q;
      of_lse[3] = 1;
      lse = planner_.rows("lse", p_.lse.data, DType::kF32, p_.lse.stride, of_lse);
    }
    AttentionBlock block = block_;
    block.dv = p_.out.data == nullptr ? 0 : word(p_.value_dim);
    block.out = out.block();
    block.lse = lse.block();
    const auto [floats, vectors_of_halves] = loads(p_.out.data != nullptr);
    const uint32_t width = least_power(std::max<int64_t>(p_.head_dim, block.dv));
    // The kernels combine 8 invocations.
    const uint32_t subgroup = planner_.device().subgroup;
    const uint32_t lanes = subgroup == 4 ? 4 : subgroup >= 8 ? 8 : 0;
    const std::array<uint32_t, Dispatch::kConstants> constants{width, lanes, floats,
                                                               vectors_of_halves};
    std::vector<Binding> bindings{q_.binding,      k_.binding, v_.binding,
                                  planner_.data(), mask_,      bias_};
    const bool totals_wanted = totals_.words != 0;
    if (p_.rows() <= kMostDecodeRows) {
      split_keys(block, width > 128 ? DECODE_ROWS / 2 : DECODE_ROWS);
      const int64_t columns = rules::ceil_div(int64_t{block.dv}, 4) * 4;
      bindings.push_back(planner_.scratch(
          "q", product({p_.batch, p_.kv_heads, p_.end_row(), block.splits, columns + 2})));
      planner_.dispatch(Kernel::kDecode, constants, heads() * block.tiles * block.splits, bindings,
                        block);
      merge(block, bindings.back(), out.binding, lse.binding, totals_);
    } else {
      block.tiles = word(rules::ceil_div(p_.rows(), width > 128 ? WIDE_ROWS : NARROW_ROWS));
      block.lse[3] = totals_wanted ? 1 : 0;
      bindings.push_back(out.binding);
      bindings.push_back(totals_wanted ? totals_ : lse.binding);
      planner_.dispatch(Kernel::kForward, constants, heads() * block.tiles, bindings, block);
      if (totals_wanted && p_.lse.data != nullptr) {
        block.dv = 0;
        merge(block, totals_, planner_.unread(0), lse.binding, {});
      }
    }
    if (halves) planner_.move_rows({out, given}, of_out, as_they_are());
  }

  double heads() const { return product({p_.batch, p_.kv_heads}); }

  // Divides the rows of decoding into tiles, and the keys.
  void split_keys(AttentionBlock& block, int64_t tile) const {
    block.tiles = word(rules::ceil_div(p_.rows(), tile));
    const int64_t keys = std::max<int64_t>(p_.keys, 1);
    const double wanted = std::ceil(static_cast<double>(kWorkgroups) / (heads() * block.tiles));
    const int64_t most = rules::ceil_div(keys, kLeastSplitKeys);
    const int64_t split = rules::ceil_div(keys, std::min(most, static_cast<int64_t>(wanted)));
    block.split_keys = word(rules::ceil_div(split, int64_t{TILE}) * TILE);
    block.splits = word(rules::ceil_div(keys, int64_t{block.split_keys}));
  }

  void merge(AttentionBlock block, const Binding& partials, const Binding& out, const Binding& lse,
             const Binding& totals) {
    block.lse[3] = totals.words != 0 ? 1 : 0;
    planner_.dispatch(
        Kernel::kMerge, {}, heads() * block.rows,
        {partials, planner_.data(), out, lse, totals.words != 0 ? totals : planner_.unread(2)},
        block);
  }

  void plan_capture(const char* argument, const ScoreCapture& capture) {
    if (capture.out.shape.elements() == 0) return;
    const auto [batch, heads, rows, keys] =
        Extents{capture.out.shape[0], capture.out.shape[1], capture.out.shape[2], p_.keys};
    const Dims& strides = capture.out.strides;
    const GpuRows out =
        planner_.rows(argument, capture.out.data, DType::kF32, {strides[0], strides[1], strides[2]},
                      {batch, heads, rows, keys});
    AttentionBlock block = block_;
    block.out = out.block();
    block.stage = static_cast<uint32_t>(capture.stage);
    block.chosen = planner_.put_given(capture.heads);
    block.first_query = word(capture.first_row);
    block.out_rows = word(rows);
    block.out_heads = word(heads);
    block.tiles = word(rules::ceil_div(keys, int64_t{64}));
    const auto [floats, halves] = loads(/*of_values=*/false);
    planner_.dispatch(Kernel::kScores, {floats, halves}, product({batch, heads, rows, block.tiles}),
                      {q_.binding, k_.binding, totals_.words != 0 ? totals_ : planner_.data(),
                       planner_.data(), mask_, bias_, out.binding},
                      block);
  }

  const Problem& of_;
  const AttentionParams& p_;
  Planner& planner_;
  AttentionBlock block_;
  GpuRows q_, k_, v_;
  Binding mask_, bias_, totals_;
};

}  // namespace

Status plan_problem(const Problem& of, Planner& to) {
  const AttentionParams& p = of.params;
  for (const auto& [argument, name, width, rows] :
       {std::tuple{"q", "d_k", p.head_dim, of.q[2]}, {"v", "d_v", p.value_dim, of.k[2]}}) {
    if (width > kMostWidth) {
      return {StatusCode::kShape, argument, std::string(name) + " up to 256 on a GPU",
              std::to_string(width) + ": wider heads are computed on the CPU"};
    }
    if (rows >= kMostTokens) {
      return {StatusCode::kShape, argument, "fewer than 2^28 rows on a GPU", std::to_string(rows)};
    }
  }
  if (p.dropout_mask.data != nullptr || (p.dropout.given() && p.out.data != nullptr)) {
    return {StatusCode::kOption, "dropout.probability", "0 on a GPU",
            "another: dropout is computed on the CPU"};
  }
  if (!p.writes_anything()) return {};
  const rules::Range near{-kMostTokens, kMostTokens};
  const int64_t first = p.visibility.position(0, 0);
  if (of.options.rope.given() && of.options.rope.q_positions.empty() && !near.contains(first)) {
    return {StatusCode::kOption, "rope.q_positions", "positions within 2^28 on a GPU",
            "none, and a query at " + std::to_string(first)};
  }
  to.begin_data();
  Attention(of, to).plan();
  return to.status();
}

namespace {

Problem problem_of(const engine::ForwardCall& call, const AttentionShape& shape) {
  return {.params = engine::attention_params({.q = engine::stored_rows(call.q),
                                              .k = engine::stored_rows(call.k),
                                              .v = engine::stored_rows(call.v)},
                                             shape, call.options, call.outputs),
          .options = call.options,
          .q = extents_of(shape, true),
          .k = extents_of(shape, false)};
}

}  // namespace

Status plan_attention(const engine::ForwardCall& call, Planner& to) {
  AttentionShape shape;
  MULTIHEAD_TRY(engine::validate_call(call, shape));
  return plan_problem(problem_of(call, shape), to);
}

Status plan_varlen(const engine::ForwardCall& call, std::span<const int32_t> cu_q,
                   std::span<const int32_t> cu_k, Planner& to) {
  const auto& [q, k, v, options, outputs] = call;
  MULTIHEAD_TRY(engine::validate_varlen(q, k, v, cu_q, cu_k, options));
  MULTIHEAD_TRY(engine::validate_varlen_outputs(q, v, outputs));
  AttentionShape shape;
  const AttentionOutputs nothing{.out = sequence_of(outputs.out, 0, 0)};
  MULTIHEAD_TRY(engine::validate_call(
      {sequence_of(q, 0, 0), sequence_of(k, 0, 0), sequence_of(v, 0, 0), options, nothing}, shape));
  shape.queries = q.shape[0];
  shape.keys = k.shape[0];
  AttentionOutputs all{.out = sequence_of(outputs.out, 0, shape.queries)};
  if (outputs.lse.given()) all.lse = engine::lse_of(outputs.lse, 0, shape.queries);
  const ConstAnyTensor all_q = sequence_of(q, 0, shape.queries);
  const ConstAnyTensor all_k = sequence_of(k, 0, shape.keys);
  const ConstAnyTensor all_v = sequence_of(v, 0, shape.keys);
  Problem problem = problem_of({all_q, all_k, all_v, options, all}, shape);
  problem.cu_q = cu_q;
  problem.cu_k = cu_k;
  AttentionParams& p = problem.params;
  p.batch = static_cast<int64_t>(cu_q.size()) - 1;
  p.queries = p.keys = 0;
  for (size_t s = 0; s + 1 < cu_q.size(); ++s) {
    p.queries = std::max<int64_t>(p.queries, cu_q[s + 1] - cu_q[s]);
    p.keys = std::max<int64_t>(p.keys, cu_k[s + 1] - cu_k[s]);
  }
  p.end_query = p.queries;
  return plan_problem(problem, to);
}

Status plan_scores(const ConstAnyTensor& q, const ConstAnyTensor& k,
                   const AttentionOptions& options, const ScoreCapture& capture, Planner& to) {
  ConstAnyTensor v = k;  // keys without values
  v.data = nullptr;
  if (k.shape.rank() == 4) v.shape[3] = 0;
  AttentionShape shape;
  MULTIHEAD_TRY(engine::validate_inputs(q, k, v, shape));
  MULTIHEAD_TRY(engine::validate_options(options, shape));
  MULTIHEAD_TRY(engine::validate_capture(capture, shape));
  const AttentionOutputs outputs{.captures = {&capture, 1}};
  Problem problem = problem_of({q, k, v, options, outputs}, shape);
  problem.params.first_query = capture.first_row;
  problem.params.end_query = capture.first_row + capture.out.shape[2];
  return plan_problem(problem, to);
}

Status plan_rotate(const ConstTensor& x, std::span<const int32_t> positions, const Rope& rope,
                   const Tensor& y, Planner& to) {
  MULTIHEAD_TRY(engine::validate_rotate(x, positions, rope, y));
  const Extents e{x.shape[0], x.shape[1], x.shape[2], x.shape[3]};
  if (e[3] > kMostWidth) {
    return {StatusCode::kOption, "x",
            "a width of at most " + std::to_string(kMostWidth) + " on a GPU", std::to_string(e[3])};
  }
  RowsBlock block = as_they_are();
  put_rotation(rope, positions, e, block, to);
  const auto strides = [](const Dims& all) { return rules::RowStrides{all[0], all[1], all[2]}; };
  to.move_rows({.from = to.rows("x", x.data, DType::kF32, strides(x.strides), e),
                .to = to.rows("y", y.data, DType::kF32, strides(y.strides), e)},
               e, block);
  return to.status();
}

}  // namespace multihead::webgpu
