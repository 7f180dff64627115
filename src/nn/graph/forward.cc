// Plays the operations of a layer in order.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/cache/cache_access.h"
#include "engine/error/error.h"
#include "engine/layers/elementwise.h"
#include "engine/runtime/team.h"
#include "multihead/attention.h"
#include "multihead/elementwise.h"
#include "nn/graph/call.h"
#include "nn/graph/probe.h"
#include "rules/rope.h"

namespace multihead::nn {
namespace {

class Forward {
 public:
  Forward(const Graph& graph, const Frame& frame, const LayerCall& call, Context& context)
      : graph_(graph), frame_(frame), call_(call), context_(context) {}

  Status run(const Operation& op) const {
    switch (op.kind) {
      case Operation::Kind::kNorm:
        return normalize(graph_.norm, frame_.rows(op.in), call_.parameters->*op.norm,
                         frame_.rows(op.out), context_);
      case Operation::Kind::kProject: {
        const engine::KeepOwnOutputs own(keeps_own_outputs(op) ? engine::team_of(context_)
                                                               : nullptr);
        return project(frame_.rows(op.in), call_.parameters->*op.projection, frame_.rows(op.out),
                       context_);
      }
      case Operation::Kind::kNormHeads:
        return normalize_heads(op);
      case Operation::Kind::kRotate:
        rotate_heads(call_.rotation, frame_.heads(op.in), frame_.heads(op.out), context_);
        return {};
      case Operation::Kind::kAttend:
        return attend(op);
      case Operation::Kind::kScaleHeads:
        if (!frame_.same_place(op.in, op.out)) {
          engine::copy_rows(frame_.heads(op.in), frame_.heads(op.out), context_);
        }
        engine::scale_heads(frame_.heads(op.out), call_.scales_of(op), context_);
        return {};
      case Operation::Kind::kScale:
        if (!frame_.same_place(op.in, op.out)) {
          engine::copy_rows(frame_.heads(op.in), frame_.heads(op.out), context_);
        }
        engine::scale_heads(frame_.heads(op.out), {&op.number, 1}, context_);
        return {};
      case Operation::Kind::kScaleColumns:
        scale_columns(frame_.rows(op.in), call_.parameters->*op.vector, frame_.rows(op.out));
        return {};
      case Operation::Kind::kClamp:
        over_heads(frame_.heads(op.in), frame_.heads(op.out),
                   [&](float in, float& out) { out = std::clamp(in, -op.number, op.number); });
        return {};
      case Operation::Kind::kActivate:
        return activate(op);
      case Operation::Kind::kAdd:
        engine::add(frame_.data(op.in), frame_.data(op.in2), frame_.data(op.out),
                    call_.rows() * graph_.value(op.out).width, context_);
        return {};
    }
    return {};
  }

 private:
  void scale_columns(const Tensor& from, const Vector& factors, const Tensor& to) const {
    engine::over_rows(from.shape[0], factors.size, context_, [&](int64_t first, int64_t end) {
      for (int64_t row = first; row < end; ++row) {
        const float* const in = from.data + row * from.strides[0];
        float* const out = to.data + row * to.strides[0];
        for (int64_t c = 0; c < factors.size; ++c) out[c] = in[c] * factors.data[c];
      }
    });
  }

  // True if this member of a team computes the columns of the MLP's hidden layer alone that its
  // activation then uses.
  bool hidden_is_share() const {
    const LayerParameters& p = *call_.parameters;
    return engine::team_of(context_) != nullptr && p.up.is_share &&
           (!p.gate.given() || p.gate.is_share);
  }

  // True if this member of a team computes the queries, keys and values of exactly the heads that
  // it caches and attends with. It then needs none of another member.
  bool heads_are_own(const engine::Team& team) const {
    const LayerParameters& p = *call_.parameters;
    if (graph_.norms_all_heads && p.q_norm.given()) return false;
    for (const Operation& op : graph_.operations) {
      if (op.kind != Operation::Kind::kAttend || op.cross) continue;
      const Value &q = graph_.value(op.in), &k = graph_.value(op.in2);
      return p.q.is_share && p.k.is_share && p.v.is_share && call_.cache != nullptr &&
             KVCache::Internals::is_share(*call_.cache) && team.computes_own(k.heads, q.width) &&
             team.computes_own(k.heads, k.width);
    }
    return false;
  }

  bool keeps_own_outputs(const Operation& op) const {
    const engine::Team* const team = engine::team_of(context_);
    if (team == nullptr || op.share == Operation::Share::kNone) return false;
    // Edits and captures see all heads.
    if (op.share == Operation::Share::kHeads) return call_.probe == nullptr && heads_are_own(*team);
    return hidden_is_share();
  }

  Status normalize_heads(const Operation& op) const {
    const NormParameters& norm = call_.parameters->*op.norm;
    const NormKind kind{.rms = true, .eps = graph_.norm.eps};
    if (graph_.norms_all_heads) {
      return normalize(kind, frame_.rows(op.in), norm, frame_.rows(op.out), context_);
    }
    const Tensor from = frame_.heads(op.in), to = frame_.heads(op.out);
    const auto rows_of = [&](const Tensor& heads, int64_t head) {
      return Tensor(heads.data + head * heads.strides[1], {call_.rows(), heads.shape[3]},
                    {heads.strides[2], 1});
    };
    for (int64_t head = 0; head < from.shape[1]; ++head) {
      MULTIHEAD_TRY(normalize(kind, rows_of(from, head), norm, rows_of(to, head), context_));
    }
    return {};
  }

  Status activate(const Operation& op) const {
    const Tensor hidden = frame_.rows(op.out);
    engine::Team* const team = hidden_is_share() ? engine::team_of(context_) : nullptr;
    // A member activates the columns that it computes, so that one exchange is enough.
    const int64_t width = hidden.shape[1];
    const int64_t begin = team == nullptr ? 0 : team->first_output(width);
    const int64_t end = team == nullptr ? width : team->end_output(width);
    const auto columns = [&](ValueId id) {
      const Tensor all = frame_.rows(id);
      return Tensor(all.data + begin, {all.shape[0], end - begin}, all.strides);
    };
    if (begin < end) {
      const Tensor to = columns(op.out);
      MULTIHEAD_TRY(
          op.in2 == kNoValue
              ? multihead::activate(columns(op.in), graph_.activation, to, context_)
              : activate_gated(columns(op.in), columns(op.in2), graph_.activation, to, context_));
    }
    if (team == nullptr) return {};
    return team->exchange_outputs(hidden.data, hidden.shape[0], hidden.strides[0], width);
  }

  Status attend(const Operation& op) const {
    const Tensor q = frame_.heads(op.in), k = frame_.heads(op.in2), v = frame_.heads(op.in3);
    const Tensor z = frame_.heads(op.out);
    AttentionOptions options = op.cross ? call_.source.attention : call_.attention;
    if (op.cross && call_.source.cache != nullptr) {
      KVCache& cache = *call_.source.cache;
      if (!call_.source.is_cached()) MULTIHEAD_TRY(cache.append(k, v, {}, &context_));
      return cache.attend(q, options, {.out = z}, context_);
    }
    if (!op.cross && call_.cache != nullptr) return attend_cached(q, k, v, z);
    if (!op.cross && call_.content.given()) {
      MULTIHEAD_TRY(add_content(q, call_.parameters->k, true));
      MULTIHEAD_TRY(add_content(k, call_.parameters->q, false));
      options.bias = {call_.content.bias, {q.shape[0], q.shape[1], q.shape[2], q.shape[2]}};
    }
    const Weighting sites = op.cross ? kCrossWeighting : kWeighting;
    if (call_.probe != nullptr && changes_weights(*call_.probe, sites)) {
      return attend_changed(*call_.probe, sites, q, k, v, options, z, context_);
    }
    std::vector<ScoreCapture> captures;
    std::vector<int32_t> heads;
    if (call_.probe != nullptr) list_captures(*call_.probe, sites, captures, heads);
    const Tensor lse = op.cross ? Tensor() : frame_.lse();
    return attention(q, k, v, options, {.out = z, .lse = lse, .captures = captures}, context_);
  }

  // Writes the products of queries and relative positions to the bias, or adds the products of
  // keys.
  Status add_content(const Tensor& of, const Projection& projection, bool of_queries) const {
    const RelativeContent& content = call_.content;
    const int64_t heads = of.shape[1], tokens = of.shape[2], width = of.shape[3];
    const int64_t rows = content.rows, all = heads * width;
    MULTIHEAD_TRY(project({content.embeddings, {rows, projection.weight.columns}}, projection,
                          {content.projected, {rows, all}}, context_));
    const Tensor positions(content.projected, {1, heads, rows, width}, {rows * all, width, all, 1});
    for (int64_t b = 0; b < of.shape[0]; ++b) {
      const Tensor one(of.data + b * of.strides[0], {1, heads, tokens, width}, of.strides);
      const Tensor products(content.products, {1, heads, tokens, rows});
      MULTIHEAD_TRY(attention_scores(one, positions, {.scale = call_.attention.scale},
                                     {.stage = ScoreStage::kRaw, .out = products}, context_));
      for (int64_t row = 0; row < heads * tokens; ++row) {
        const float* const from = content.products + row * rows;
        const int64_t token = row % tokens;
        float* to = content.bias + (b * heads * tokens + (of_queries ? row : row - token)) * tokens;
        if (of_queries) {
          const int32_t* const row_of = content.row_of + token + tokens - 1;
          for (int64_t key = 0; key < tokens; ++key) to[key] = from[row_of[-key]];
        } else {
          const int32_t* const row_of = content.row_of + tokens - 1 - token;
          for (int64_t query = 0; query < tokens; ++query) {
            to[query * tokens + token] += from[row_of[query]];
          }
        }
      }
    }
    return {};
  }

  Status attend_cached(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& z) const {
    const bool many = !call_.texts.empty();
    // A ring takes the tokens in pieces that leave it the keys of the window.
    const KVCacheConfig& config = call_.cache->config();
    const int64_t most = many ? 1
                         : config.layout == KVCacheConfig::Layout::kRing
                             ? config.capacity - call_.attention.window.left
                             : call_.tokens;
    for (int64_t first = 0; first < call_.tokens; first += most) {
      KVCache& cache =
          many ? call_.texts[static_cast<size_t>(first)][static_cast<size_t>(call_.layer)]
               : *call_.cache;
      const auto piece = [&](const Tensor& all) {
        Dims shape = all.shape;
        shape[2] = std::min(most, call_.tokens - first);
        return Tensor(all.data + first * all.strides[2], shape, all.strides);
      };
      MULTIHEAD_TRY(cache.append(piece(k), piece(v), {}, &context_));
      MULTIHEAD_TRY(cache.attend(piece(q), call_.attention, {.out = piece(z)}, context_));
    }
    return {};
  }

  const Graph& graph_;
  const Frame& frame_;
  const LayerCall& call_;
  Context& context_;
};

}  // namespace

void rotate_heads(const Rotation& rotation, const Tensor& from, const Tensor& to,
                  const Context& context) {
  const int64_t batch = from.shape[0], heads = from.shape[1], tokens = from.shape[2];
  const int64_t width = from.shape[3];
  engine::over_rows(batch * tokens, heads * width, context, [&](int64_t first, int64_t end) {
    std::vector<float> negative(static_cast<size_t>(rotation.reversed ? rotation.pairs : 0));
    for (int64_t row = first; row < end; ++row) {
      const int64_t b = row / tokens, token = row % tokens;
      const float* const cos = rotation.cos + token * rotation.step;
      const float* sin = rotation.sin + token * rotation.step;
      if (rotation.reversed) {
        std::transform(sin, sin + rotation.pairs, negative.begin(),
                       [](float number) { return -number; });
        sin = negative.data();
      }
      const float* in = from.data + b * from.strides[0] + token * from.strides[2];
      float* out = to.data + b * to.strides[0] + token * to.strides[2];
      for (int64_t h = 0; h < heads; ++h, in += from.strides[1], out += to.strides[1]) {
        // In place the compiler vectorizes, because it knows which addresses are equal.
        if (in != out) std::copy_n(in, width, out);
        // The compiler sees which style each call has.
        if (rotation.neighbours) {
          rules::rotate_vector(out, out, width, 2 * rotation.pairs, Rope::Style::kInterleaved, cos,
                               sin);
        } else {
          rules::rotate_vector(out, out, width, 2 * rotation.pairs, Rope::Style::kHalf, cos, sin);
        }
      }
    }
  });
}

namespace {

Status play(size_t first, const Graph& graph, const Frame& frame, const LayerCall& call,
            Context& context) {
  const Forward player(graph, frame, call, context);
  for (size_t at = first; at < graph.operations.size(); ++at) {
    const Operation& op = graph.operations[at];
    const bool acting = acts(op, call);
    if (acting) MULTIHEAD_TRY(player.run(op));
    // Cached keys and values of the source were visited when they were computed.
    const bool is_cached = op.cross && op.kind == Operation::Kind::kProject && !acting;
    if (call.probe == nullptr || is_cached) continue;
    for (size_t id = 0; id < graph.values.size(); ++id) {
      if (graph.values[id].writer != static_cast<int>(at)) continue;
      MULTIHEAD_TRY(visit(*call.probe, graph, frame, static_cast<ValueId>(id)));
    }
  }
  return {};
}

}  // namespace

Status forward(const Graph& graph, const Frame& frame, const LayerCall& call, Context& context) {
  if (call.probe != nullptr) MULTIHEAD_TRY(visit(*call.probe, graph, frame, graph.input));
  return play(0, graph, frame, call, context);
}

Status forward_after(models::Site site, const ConstTensor& rows, const Graph& graph,
                     const Frame& frame, const LayerCall& call, Context& context) {
  for (size_t id = 0; id < graph.values.size(); ++id) {
    const Value& value = graph.values[id];
    if (value.site != site) continue;
    const Tensor to = frame.rows(static_cast<ValueId>(id));
    const Dims one{1, 1, to.shape[0], to.shape[1]};
    engine::copy_rows({rows.data, one}, {to.data, one, {0, 0, to.strides[0], 1}}, context);
    if (call.probe != nullptr) {
      MULTIHEAD_TRY(visit(*call.probe, graph, frame, static_cast<ValueId>(id)));
    }
    const auto next = static_cast<size_t>(value.writer) + 1;
    // GPT-J: the MLP, which comes later, reads the norm of the input, too.
    for (size_t at = 0; at < next; ++at) {
      const Operation& op = graph.operations[at];
      if (op.kind != Operation::Kind::kNorm || op.in != graph.input || !acts(op, call)) continue;
      const bool is_read = std::any_of(graph.operations.begin() + static_cast<ptrdiff_t>(next),
                                       graph.operations.end(),
                                       [&](const Operation& later) { return later.in == op.out; });
      if (is_read) MULTIHEAD_TRY(Forward(graph, frame, call, context).run(op));
    }
    return play(next, graph, frame, call, context);
  }
  return {};
}

Status project(const ConstTensor& x, const Projection& projection, const Tensor& y,
               Context& context) {
  return linear(x, projection.weight, projection.bias.view(), y, context);
}

Status normalize(NormKind kind, const ConstTensor& x, const NormParameters& norm, const Tensor& y,
                 Context& context) {
  if (!norm.given()) {
    if (x.data == y.data) return {};
    for (int64_t row = 0; row < x.shape[0]; ++row) {
      std::copy_n(x.data + row * x.strides[0], x.shape[1], y.data + row * y.strides[0]);
    }
    return {};
  }
  if (kind.rms) return rms_norm(x, norm.weight.view(), kind.eps, y, context);
  return layer_norm(x, norm.weight.view(), norm.bias.view(), kind.eps, y, context);
}

}  // namespace multihead::nn
