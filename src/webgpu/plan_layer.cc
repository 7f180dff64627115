#include "webgpu/plan_layer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "nn/graph/probe.h"
#include "webgpu/plan_attention.h"

namespace multihead::webgpu {
namespace {

using nn::kNoValue;
using nn::Operation;
using nn::ValueId;
using Kind = nn::Operation::Kind;
using With = Builder::Pointwise::With;

// The address of a tensor of a plan's operand.
void* address(size_t operand) { return reinterpret_cast<void*>(operand + 1); }

class LayerPlanner {
 public:
  LayerPlanner(const LayerPlan& call, Builder& builder)
      : call_(call),
        builder_(builder),
        graph_(*call.graph),
        p_(*call.parameters),
        places_(graph_.values.size()),
        fused_(graph_.values.size()),
        steps_(graph_.values.size()) {}

  Status run(Rows& stream) {
    place(graph_.input) = stream;
    visit(graph_.input);
    for (size_t at = 0; at < graph_.operations.size();) {
      size_t end = at + 1;  // of the operations that one dispatch computes
      MULTIHEAD_TRY(run(at, end));
      for (size_t id = 0; id < graph_.values.size(); ++id) {
        const int writer = graph_.values[id].writer;
        if (writer >= static_cast<int>(at) && writer < static_cast<int>(end)) {
          visit(static_cast<ValueId>(id));
        }
      }
      at = end;
    }
    stream = place(graph_.output);
    return {};
  }

 private:
  Rows& place(ValueId id) { return places_[static_cast<size_t>(id)]; }
  const Operation& operation(size_t at) const { return graph_.operations[at]; }
  const nn::Value& value(ValueId id) const { return graph_.value(id); }
  bool few() const { return call_.rows() <= Builder::kFewRows; }
  Rows take(ValueId id) { return builder_.new_rows(call_.rows(), value(id).width); }

  Status run(size_t at, size_t& end) {
    const Operation& op = operation(at);
    switch (op.kind) {
      case Kind::kNorm:
        normalize(at);
        return {};
      case Kind::kProject:
        project(at, end);
        return {};
      case Kind::kClamp:
      case Kind::kNormHeads:
      case Kind::kRotate: {
        // attend() computes them.
        std::vector<const Operation*>& steps = steps_[static_cast<size_t>(op.out)];
        steps = steps_[static_cast<size_t>(op.in)];
        if (acts(op)) steps.push_back(&op);
        place(op.out) = place(op.in);
        return {};
      }
      case Kind::kAttend:
        return attend(op);
      case Kind::kScaleHeads: {
        if (call_.head_scales == kNone) {
          place(op.out) = place(op.in);
          return {};
        }
        const nn::Value& heads = value(op.out);
        Builder::Pointwise scale{.with = With::kFactors,
                                 .z = {Builder::kData, call_.head_scales, 0},
                                 .each = word(heads.width / heads.heads)};
        pointwise(op, scale);
        return {};
      }
      case Kind::kScale:
        pointwise(op, {.scale = op.number});
        return {};
      case Kind::kScaleColumns:
        pointwise(op, {.with = With::kFactors, .z = {0, call_.buffers->word_of(p_.*op.vector), 0}});
        return {};
      case Kind::kActivate: {
        Builder::Pointwise activate{.function = function_of(graph_.activation)};
        if (op.in2 != kNoValue) {
          activate.with = With::kTimes;
          activate.z = place(op.in2);
        }
        pointwise(op, activate);
        return {};
      }
      case Kind::kAdd:
        place(op.out) = place(op.in);
        builder_.pointwise(place(op.in2), call_.rows(), word(value(op.out).width),
                           {.with = With::kPlusOutput}, place(op.out));
        return {};
    }
    return {};
  }

  bool acts(const Operation& op) const {
    if (op.kind == Kind::kRotate) return call_.heads.pairs > 0;
    return op.norm == nullptr || (p_.*op.norm).given();
  }

  void pointwise(const Operation& op, const Builder::Pointwise& what) {
    place(op.out) = take(op.out);
    builder_.pointwise(place(op.in), call_.rows(), word(value(op.out).width), what, place(op.out));
  }

  // ---- Norms. ----

  // The value whose memory a sum has: sums are computed where the stream is.
  ValueId root_of(ValueId id) const {
    while (value(id).replaces != kNoValue) id = value(id).replaces;
    return id;
  }

  // True if products alone read the norm of operation `at`, all before its input changes.
  bool is_only_projected(size_t at) const {
    const Operation& norm = operation(at);
    size_t last = at;
    for (size_t next = at + 1; next < graph_.operations.size(); ++next) {
      const Operation& op = operation(next);
      if (op.in2 == norm.out || op.in3 == norm.out) return false;
      if (op.in != norm.out) continue;
      if (op.kind != Kind::kProject) return false;
      last = next;
    }
    if (last == at || value(norm.out).site) return false;
    for (size_t next = at + 1; next < last; ++next) {
      const Operation& op = operation(next);
      if (op.kind == Kind::kAdd && root_of(op.in) == root_of(norm.in)) return false;
    }
    return true;
  }

  void normalize(size_t at) {
    const Operation& op = operation(at);
    place(op.out) = place(op.in);
    if (!acts(op)) return;
    const Norm norm = call_.buffers->norm_of(graph_.norm, p_.*op.norm);
    if (few() && is_only_projected(at)) {
      fused_[static_cast<size_t>(op.out)] = norm;
      return;
    }
    place(op.out) = take(op.out);
    builder_.norm(place(op.in), call_.rows(), word(value(op.out).width), norm, place(op.out));
  }

  // ---- Products. ----

  bool wants(ValueId id) const {
    const auto is_here = [&](const auto& each) {
      return each.layer == call_.layer && value(id).site == each.site;
    };
    return std::any_of(call_.captures.begin(), call_.captures.end(), is_here) ||
           std::any_of(call_.edits.begin(), call_.edits.end(), is_here);
  }

  // With what the next operations do to the product, if they can be a part of its dispatch.
  void project(size_t at, size_t& end) {
    const Operation& op = operation(at);
    const nn::Projection& projection = p_.*op.projection;
    const MatrixForm matrix = ModelBuffers::form_of(projection.weight);
    Builder::Linear linear{.bias = call_.buffers->word_of(projection.bias),
                           .norm = fused_[static_cast<size_t>(op.in)]};
    ValueId product = op.out;
    const auto next = [&](Kind kind) -> const Operation* {
      const bool is_next = end < graph_.operations.size() && operation(end).kind == kind;
      return is_next ? &operation(end) : nullptr;
    };
    Rows y;
    if (const Operation* const scale = next(Kind::kScale);
        scale != nullptr && scale->in == product && value(product).whole == kNoValue) {
      linear.factor = scale->number;
      product = scale->out;
      ++end;
    }
    const Operation* const activate = next(Kind::kActivate);
    const Operation* const add = next(Kind::kAdd);
    if (activate != nullptr && activate->in == product &&
        (activate->in2 == kNoValue || activate->in2 == product)) {
      linear.function = function_of(graph_.activation);
      if (activate->in2 == product) linear.function = times_x(linear.function);
      product = activate->out;
      ++end;
    } else if (activate != nullptr && activate->in2 != kNoValue && few() &&
               value(activate->in).whole == product && value(activate->in2).whole == product &&
               builder_.fits(matrix)) {
      linear.function = function_of(graph_.activation);
      linear.gate_row = word(value(activate->in).column);
      linear.factor_row = word(value(activate->in2).column);
      product = activate->out;
      ++end;
    } else if (add != nullptr && add->in2 == product && !wants(product)) {
      linear.adds = true;
      y = place(add->in);
      product = add->out;
      ++end;
    }
    if (!linear.adds) y = place_of_columns(product);
    place(product) = y;
    // Its parts, of queries, keys and values or of gate and factor.
    for (size_t id = 0; id < graph_.values.size(); ++id) {
      const nn::Value& part = graph_.values[id];
      if (part.whole == product) places_[id] = {y.buffer, y.first + word(part.column), y.stride};
    }
    builder_.linear(place(op.in), call_.rows(), matrix, call_.buffers->number_of(projection.weight),
                    linear, y);
  }

  // Memory for a value, which may be columns of another one.
  Rows place_of_columns(ValueId id) {
    const nn::Value& part = value(id);
    if (part.whole == kNoValue) return take(id);
    Rows& whole = place(part.whole);
    if (whole.stride == 0) whole = take(part.whole);
    return {whole.buffer, whole.first + word(part.column), whole.stride};
  }

  // ---- Attention. ----

  const nn::Value& columns_of(ValueId id) const {
    while (value(id).whole == kNoValue) id = value(id).replaces;
    return value(id);
  }

  // Computes what comes between the product of queries, keys and values and attention.
  uint32_t arrange_heads(const Operation& op) {
    const nn::Value &q = columns_of(op.in), &k = columns_of(op.in2), &v = columns_of(op.in3);
    Rows x = place(q.whole);
    const uint32_t rows = call_.rows();
    HeadsBlock heads = call_.heads;
    heads.tokens = rows;
    heads.sequence = call_.tokens;
    heads.width = word(q.width / q.heads);
    heads.eps = graph_.norm.eps;
    heads.q_gain = heads.k_gain = kNone;
    bool rotates = false;
    for (const Operation* const step : steps_[static_cast<size_t>(op.in)]) {
      if (step->kind == Kind::kClamp) heads.most = step->number;
      if (step->kind == Kind::kRotate) rotates = true;
      if (step->kind != Kind::kNormHeads) continue;
      heads.q_gain = call_.buffers->word_of((p_.*step->norm).weight);
      heads.norm_last = rotates ? 1 : 0;
    }
    if (!rotates) heads.pairs = 0;
    for (const Operation* const step : steps_[static_cast<size_t>(op.in2)]) {
      if (step->kind != Kind::kNormHeads) continue;
      heads.k_gain = call_.buffers->word_of((p_.*step->norm).weight);
    }
    if (graph_.norms_all_heads && heads.q_gain != kNone) {
      // The heads of a token are one row.
      const Rows normed = builder_.new_rows(rows, value(q.whole).width);
      const auto in = [](const Rows& all, const nn::Value& columns) {
        return Rows{all.buffer, all.first + word(columns.column), all.stride};
      };
      Norm norm{Norm::Kind::kRms, heads.eps, heads.q_gain};
      builder_.norm(in(x, q), rows, word(q.width), norm, in(normed, q));
      norm.gain = heads.k_gain;
      builder_.norm(in(x, k), rows, word(k.width), norm, in(normed, k));
      builder_.pointwise(in(x, v), rows, word(v.width), {}, in(normed, v));
      heads.q_gain = heads.k_gain = kNone;
      x = normed;
    }
    uint32_t end = 0;
    const auto part = [&](const nn::Value& of) {
      constexpr uint32_t kAlignment = 64;  // of operands
      const uint32_t first = end;
      end = (first + rows * word(of.width) + kAlignment - 1) / kAlignment * kAlignment;
      return vec4u{word(of.column), word(of.head_step), word(of.heads), first};
    };
    heads.q = part(q);
    heads.k = part(k);
    heads.v = part(v);
    const uint32_t y = builder_.scratch(end);
    builder_.heads(x, heads, y);
    place(op.in) = {y, heads.q[3], word(q.width)};
    place(op.in2) = {y, heads.k[3], word(k.width)};
    place(op.in3) = {y, heads.v[3], word(v.width)};
    for (const ValueId id : {op.in, op.in2, op.in3}) {
      arranged_.push_back(id);
      visit(id);
    }
    return y;
  }

  Status attend(const Operation& op) {
    arrange_heads(op);
    place(op.out) = take(op.out);
    const nn::Value &q = value(op.in), &k = value(op.in2);
    const int64_t d = q.width / q.heads, batch = call_.batch, tokens = call_.tokens;
    std::vector<Planner::Place> operands;
    const auto operand = [&](uint32_t buffer, uint32_t first) {
      operands.push_back({buffer, first});
      return address(operands.size() - 1);
    };
    CacheOperands cache;
    if (call_.cache != nullptr) {
      operand(call_.keys, 0);
      operand(call_.values, 0);
      cache = {.keys = 1, .values = 2};
    }
    const auto tensor = [&](ValueId id, int64_t heads) {
      const Rows& rows = place(id);
      const int64_t stride = rows.stride;
      return AnyTensor(operand(rows.buffer, rows.first), DType::kF32, {batch, heads, tokens, d},
                       {tokens * stride, d, stride, 1});
    };
    const ConstAnyTensor queries = tensor(op.in, q.heads), keys = tensor(op.in2, k.heads),
                         values = tensor(op.in3, k.heads);
    AttentionOutputs outputs;
    outputs.out = tensor(op.out, q.heads);
    AttentionOptions options = call_.attention;
    if (call_.mask != kNone) {
      options.mask.data = static_cast<uint8_t*>(operand(Builder::kData, call_.mask));
    }
    if (call_.bias != kNone) {
      options.bias.data = static_cast<float*>(operand(Builder::kData, call_.bias));
    }
    const nn::Probe probe{call_.captures, call_.edits, call_.layer, call_.first_token};
    if (nn::changes_weights(probe, nn::kWeighting)) {
      return attend_changed(op, queries, keys, values, cache, options, std::move(operands));
    }
    std::vector<ScoreCapture> captures;
    std::vector<std::vector<int32_t>> heads;
    for (const models::Site site : {models::Site::kScores, models::Site::kPattern}) {
      each_capture(site, [&](const models::Capture& capture, uint32_t to) {
        heads.emplace_back(capture.heads.begin(), capture.heads.end());
        captures.push_back(
            {.stage = site == models::Site::kScores ? ScoreStage::kMasked : ScoreStage::kWeights,
             .out = {static_cast<float*>(operand(to, 0)), capture.out.shape}});
      });
    }
    for (size_t i = 0; i < captures.size(); ++i) captures[i].heads = heads[i];
    outputs.captures = captures;
    builder_.bind(std::move(operands));
    if (call_.cache == nullptr) {
      return plan_attention({queries, keys, values, options, outputs}, builder_);
    }
    MULTIHEAD_TRY(plan_append(*call_.cache, cache, keys, values, {}, builder_));
    return plan_attend(*call_.cache, cache, queries, options, outputs, builder_);
  }

  // As nn::attend_changed(): scores are changed, become weights, are changed again and multiply the
  // values. Attention of queries and keys of zeros, with the scores as its bias, makes the weights.
  Status attend_changed(const Operation& op, const ConstAnyTensor& q, ConstAnyTensor k,
                        ConstAnyTensor v, const CacheOperands& cache,
                        const AttentionOptions& options, std::vector<Planner::Place> operands) {
    const int64_t heads = q.shape[1], tokens = call_.tokens;
    const int64_t keys = tokens + (call_.cache == nullptr ? 0 : call_.first_token);
    const Dims shape{call_.batch, heads, tokens, keys};
    const auto operand = [&](uint32_t buffer, uint32_t first) {
      operands.push_back({buffer, first});
      return static_cast<float*>(address(operands.size() - 1));
    };
    const auto array = [&] {
      return Rows{builder_.scratch(static_cast<uint64_t>(shape.elements())), 0, word(keys)};
    };
    const Rows scores = array(), weights = array();
    float* const to_scores = operand(scores.buffer, 0);
    float* const to_weights = operand(weights.buffer, 0);
    constexpr int64_t kLeast = 4;  // columns
    const void* const zero = operand(Builder::kData, builder_.data(std::vector<float>(kLeast)));
    const auto zeros = [&](int64_t rows) {
      return ConstAnyTensor(zero, DType::kF32, {call_.batch, heads, rows, kLeast}, {0, 0, 0, 1});
    };
    builder_.bind(std::move(operands));
    if (call_.cache != nullptr) {
      MULTIHEAD_TRY(plan_append(*call_.cache, cache, k, v, {}, builder_));
      const auto stored = [&](uint32_t number, ConstAnyTensor& rows) {
        const KVCacheConfig& config = call_.cache->config();
        Dims all{1, rows.shape[1], config.capacity, rows.shape[3]};
        const Dims strides = contiguous_strides(all);
        all[2] = keys;
        rows = {address(number - 1), config.type, all, strides};
      };
      stored(cache.keys, k);
      stored(cache.values, v);
    }
    MULTIHEAD_TRY(plan_scores(q, k, options,
                              {.stage = ScoreStage::kMasked, .out = {to_scores, shape}}, builder_));
    change_weights(models::Site::kScores, scores, scores, shape);
    MULTIHEAD_TRY(plan_scores(zeros(tokens), zeros(keys), {.bias = {to_scores, shape}},
                              {.stage = ScoreStage::kWeights, .out = {to_weights, shape}},
                              builder_));
    change_weights(models::Site::kPattern, weights, scores, shape);
    const Extents extents{v.shape[0], v.shape[1], keys, v.shape[3]};
    const GpuRows values =
        builder_.rows("v", v.data, v.dtype, {v.strides[0], v.strides[1], v.strides[2]}, extents);
    builder_.weighted(weights, values,
                      {.rows = call_.rows(),
                       .tokens = word(tokens),
                       .keys = word(keys),
                       .heads = word(heads),
                       .group = word(heads / v.shape[1]),
                       .width = word(v.shape[3])},
                      place(op.out));
    return builder_.status();
  }

  // Changes an array of scores or weights, then copies it. `scores` tell which keys are hidden.
  void change_weights(models::Site site, const Rows& array, const Rows& scores, const Dims& shape) {
    const int64_t heads = shape[1], tokens = shape[2], map = tokens * shape[3];
    for (const models::Edit& edit : call_.edits) {
      if (edit.layer != call_.layer || edit.site != site) continue;
      const uint32_t rows = word(shape[0] * heads * tokens);
      change(edit, shape, contiguous_strides(shape), array, rows, array.stride);
      if (site == models::Site::kScores) continue;
      builder_.pointwise(scores, rows, array.stride, {.with = With::kHidden}, array);
    }
    each_capture(site, [&](const models::Capture& capture, uint32_t to) {
      const int64_t count = capture.out.shape[1];
      for (int64_t i = 0; i < call_.batch * count; ++i) {
        const int64_t chosen =
            capture.heads.empty() ? i % count : capture.heads[static_cast<size_t>(i % count)];
        builder_.pointwise({array.buffer, word((i / count * heads + chosen) * map), array.stride},
                           word(tokens), array.stride, {}, {to, word(i * map), array.stride});
      }
    });
  }

  // ---- Edits and captures. ----

  // Calls run(capture, its buffer) for each of a site of this layer.
  template <class Run>
  void each_capture(models::Site site, const Run& run) const {
    for (size_t at = 0; at < call_.captures.size(); ++at) {
      const models::Capture& capture = call_.captures[at];
      if (capture.layer != call_.layer || capture.site != site) continue;
      run(capture, call_.first_capture + static_cast<uint32_t>(at));
    }
  }

  // Changes a value that was just computed, then copies it.
  void visit(ValueId id) {
    const nn::Value& from = value(id);
    if (!from.site) return;
    // Queries, keys and values are complete at attention.
    const bool is_head = *from.site >= models::Site::kQ && *from.site <= models::Site::kV;
    if (is_head && std::find(arranged_.begin(), arranged_.end(), id) == arranged_.end()) return;
    const int64_t width = from.width, d = width / from.heads, tokens = call_.tokens;
    for (const models::Edit& edit : call_.edits) {
      if (edit.layer != call_.layer || edit.site != *from.site) continue;
      change(edit, {call_.batch, from.heads, tokens, d}, {tokens * width, d, width, 1}, place(id),
             call_.rows(), word(width));
    }
    copy_captures(id);
  }

  // The CPU's edit of ones and zeros says what becomes of each number.
  void change(const models::Edit& edit, const Dims& shape, const Dims& strides, const Rows& y,
              uint32_t rows, uint32_t width) {
    const auto edited = [&](const models::Edit& how, float before) {
      std::vector<float> numbers(size_t{rows} * width, before);
      nn::apply_edit(how, {numbers.data(), shape, strides}, call_.first_token);
      return Rows{Builder::kData, builder_.data(numbers), width};
    };
    Rows x;
    Builder::Pointwise how{.keeps_hidden = edit.site == models::Site::kScores};
    switch (edit.action) {
      case models::Edit::Action::kScale:
        how.with = With::kTimesOutput;
        x = edited(edit, 1.0F);
        break;
      case models::Edit::Action::kAdd:
        how.with = With::kPlusOutput;
        x = edited(edit, 0.0F);
        break;
      case models::Edit::Action::kSet:
      case models::Edit::Action::kReplace: {
        models::Edit mute = edit;
        mute.action = models::Edit::Action::kScale;
        mute.factor = 0.0F;
        how.with = With::kWhereZero;
        how.z = edited(mute, 1.0F);
        x = edited(edit, 0.0F);
        break;
      }
    }
    builder_.pointwise(x, rows, width, how, y);
  }

  void copy_captures(ValueId id) {
    const nn::Value& from = value(id);
    const Rows& x = place(id);
    each_capture(*from.site, [&](const models::Capture& capture, uint32_t to) {
      const bool all = capture.heads.empty();
      const uint32_t count = all ? 1 : static_cast<uint32_t>(capture.heads.size());
      const uint32_t d = word(all ? from.width : from.width / from.heads);
      for (uint32_t i = 0; i < count; ++i) {
        const uint32_t head = all ? 0 : word(capture.heads[i]);
        builder_.pointwise({x.buffer, x.first + head * d, x.stride}, call_.rows(), d, {},
                           {to, i * d, count * d});
      }
    });
  }

  const LayerPlan& call_;
  Builder& builder_;
  const nn::Graph& graph_;
  const nn::LayerParameters& p_;
  std::vector<Rows> places_;  // of values
  std::vector<Norm> fused_;   // norms of values that are computed where they are read
  std::vector<std::vector<const Operation*>> steps_;  // of queries and keys, until attention
  std::vector<ValueId> arranged_;
};

}  // namespace

Status plan_layer(const LayerPlan& layer, Builder& builder, Rows& stream) {
  return LayerPlanner(layer, builder).run(stream);
}

}  // namespace multihead::webgpu
