#include "models/run.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cache/cache_access.h"
#include "engine/error/error.h"
#include "engine/layers/elementwise.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/team.h"
#include "models/architecture.h"
#include "models/relative_positions.h"
#include "multihead/attention.h"
#include "multihead/elementwise.h"
#include "multihead/weights.h"
#include "nn/call_memory.h"
#include "rules/arena.h"
#include "rules/element.h"
#include "rules/rope.h"

namespace multihead::models {
namespace {

Status shape_error(std::string_view argument, const std::string& expected, int64_t got) {
  return {StatusCode::kShape, argument, expected, std::to_string(got)};
}

Status option_error(std::string_view argument, const std::string& expected, int64_t got) {
  return {StatusCode::kOption, argument, expected, std::to_string(got)};
}

// Elements of a head's row in the array of q, k and v.
struct HeadLayout {
  int64_t q = 0, k = 0, v = 0;      // offsets of head 0
  int64_t q_step = 0, kv_step = 0;  // from head to head
};

HeadLayout layout_of(const Architecture& a) {
  if (a.family->interleaved_qkv) {
    return {0, a.head_dim, 2 * a.head_dim, 3 * a.head_dim, 3 * a.head_dim};
  }
  return {0, a.q_width(), a.q_width() + a.kv_width(), a.head_dim, a.head_dim};
}

// The arrays of one pass.
struct Arrays {
  float* x = nullptr;          // (rows, width): the residual stream
  float* normed = nullptr;     // (rows, width)
  float* branch = nullptr;     // (rows, width): what attention or MLP adds
  float* embedded = nullptr;   // (rows, embedding_width), where it is not the width of layers
  float* looked_up = nullptr;  // (rows, embedding_width), ordered by the members of a team
  float* qkv = nullptr;        // (rows, qkv_width)
  float* merged = nullptr;     // (rows, q_width)
  float* hidden = nullptr;     // (rows, mlp or 2 * mlp)
  float* last = nullptr;       // (batch, width)
  double* frequencies = nullptr;
  float *cos = nullptr, *sin = nullptr;  // (ropes, tokens, pairs)
  float* bias = nullptr;                 // (heads, tokens, tokens): of relative positions
  float* patches = nullptr;              // (rows, channels * patch_size^2)
};

class Runner {
 public:
  Runner(const Model::Internals& model, const Pass& pass, Context& context)
      : a_(model.architecture),
        p_(model.parameters),
        pass_(pass),
        context_(context),
        heads_(layout_of(a_)) {}

  Status run(bool last_only, Tensor& result) {
    MULTIHEAD_TRY(nn::reserve(engine::scratch_of(context_).transformer(),
                              [&](rules::Arena& take) { lay_out(take); }));
    fill_angles();
    if (a_.buckets > 0) {
      fill_relative_bias(p_.relative_bias.data, a_.buckets, a_.bucket_distance, a_.heads,
                         pass_.tokens, w_.bias);
    }
    MULTIHEAD_TRY(embed());
    result = x();
    if (ends_after(-1)) return {};
    for (int64_t layer = 0; layer < pass_.end_layer; ++layer) {
      keep_hidden(layer, x());
      MULTIHEAD_TRY(run_layer(static_cast<size_t>(layer)));
      if (ends_after(layer)) return {};
    }
    if (pass_.end_layer < static_cast<int64_t>(a_.layers.size())) return {};
    if (last_only) {
      // The rows of the last tokens, one for each sequence.
      const ConstTensor rows(w_.x + (pass_.tokens - 1) * a_.width, {pass_.inputs.batch, a_.width},
                             {pass_.tokens * a_.width, 1});
      const Tensor last(w_.last, {pass_.inputs.batch, a_.width});
      MULTIHEAD_TRY(normalize(a_, a_.family->rms_norm, rows, p_.final_norm, last, context_));
      result = last;
      return {};
    }
    const bool before = a_.family->states_before_norm;
    if (before) keep_hidden(pass_.end_layer, result);
    MULTIHEAD_TRY(normalize(a_, a_.family->rms_norm, x(), p_.final_norm, result, context_));
    if (!before) keep_hidden(pass_.end_layer, result);
    return {};
  }

 private:
  int64_t rows() const { return pass_.rows(); }
  int64_t mlp_width() const { return a_.gated ? 2 * a_.mlp : a_.mlp; }
  Tensor matrix(float* data, int64_t width) const { return {data, {rows(), width}}; }
  Tensor x() const { return matrix(w_.x, a_.width); }

  void lay_out(rules::Arena& take) {
    const auto floats = [&](float*& array, int64_t each, int64_t count) {
      take(array, nn::saturated_elements({each, count}));
    };
    floats(w_.x, rows(), a_.width);
    floats(w_.normed, rows(), a_.width);
    floats(w_.branch, rows(), a_.width);
    floats(w_.embedded, a_.embedding_width != a_.width ? rows() : 0, a_.embedding_width);
    floats(w_.looked_up, p_.embedding_is_share ? rows() : 0, a_.embedding_width);
    floats(w_.qkv, rows(), a_.qkv_width());
    floats(w_.merged, rows(), a_.q_width());
    floats(w_.hidden, rows(), mlp_width());
    floats(w_.last, pass_.inputs.batch, a_.width);
    int64_t pairs = 0;
    for (const RopeFrequencies& rope : a_.ropes) pairs = std::max(pairs, rope.pairs());
    take(w_.frequencies, static_cast<uint64_t>(pairs));
    const auto ropes = static_cast<int64_t>(a_.ropes.size());
    floats(w_.cos, ropes * pass_.tokens, pairs);
    floats(w_.sin, ropes * pass_.tokens, pairs);
    floats(w_.bias, a_.buckets > 0 ? a_.heads * pass_.tokens : 0, pass_.tokens);
    floats(w_.patches, p_.patch.given() ? rows() : 0, p_.patch.weight.columns);
    pairs_ = pairs;
  }

  // True if the pass looks for numbers that are not finite, and x has some.
  bool ends_after(int64_t layer) const {
    if (pass_.first_not_finite == nullptr || all_finite(x(), context_)) return false;
    *pass_.first_not_finite = layer;
    return true;
  }

  void keep_hidden(int64_t index, const ConstTensor& state) {
    if (!pass_.hidden_states.given()) return;
    std::copy_n(state.data, rows() * a_.width,
                pass_.hidden_states.data + index * rows() * a_.width);
  }

  // ---- Before the layers. ----

  void fill_angles() {
    for (size_t rope = 0; rope < a_.ropes.size(); ++rope) {
      const RopeFrequencies& frequencies = a_.ropes[rope];
      const int64_t pairs = frequencies.pairs(), before = pass_.before();
      frequencies.at(before + pass_.tokens, w_.frequencies);
      const auto offset = static_cast<int64_t>(rope) * pass_.tokens * pairs_;
      const double factor = frequencies.factor();
      engine::over_rows(pass_.tokens, 16 * pairs, context_, [&](int64_t first, int64_t end) {
        for (int64_t token = first; token < end; ++token) {
          float* const cos = w_.cos + offset + token * pairs_;
          float* const sin = w_.sin + offset + token * pairs_;
          for (int64_t pair = 0; pair < pairs; ++pair) {
            const double angle = static_cast<double>(before + token) * w_.frequencies[pair];
            cos[pair] = static_cast<float>(factor * std::cos(angle));
            sin[pair] = static_cast<float>(factor * std::sin(angle));
          }
        }
      });
    }
  }

  static void add_row(const WeightMatrix& table, int64_t row, float* to) {
    const auto add = [&]<class T>(const T* from) {
      for (int64_t c = 0; c < table.columns; ++c) to[c] += rules::to_float(from[c]);
    };
    const void* const from = table.part(row, 1).data;
    if (table.type == WeightType::kF32) add(static_cast<const float*>(from));
    if (table.type == WeightType::kF16) add(static_cast<const Float16*>(from));
    if (table.type == WeightType::kBF16) add(static_cast<const BFloat16*>(from));
  }

  // The rows of the embedding for the ids.
  Status look_up(const Tensor& to) {
    const std::span<const int32_t> ids = pass_.inputs.ids;
    if (!p_.embedding_is_share) return dequantize(p_.embedding, ids, to);
    engine::Team* const team = engine::team_of(context_);
    if (team == nullptr) return engine::Team::member_left();
    // Each member writes the rows that it has, in an order by members; then all get all.
    const int64_t width = a_.embedding_width;
    const auto members = static_cast<size_t>(team->members());
    const auto owner = [&](int32_t id) {
      int member = 0;
      while (id >= team->first_output(a_.vocabulary, member + 1)) ++member;
      return static_cast<size_t>(member);
    };
    std::vector<int64_t> first(members + 1);
    for (const int32_t id : ids) ++first[owner(id) + 1];
    for (size_t member = 0; member < members; ++member) first[member + 1] += first[member];
    std::vector<int64_t> next(first.begin(), first.end() - 1);
    std::vector<int64_t> place;
    std::vector<int32_t> own;
    const auto rank = static_cast<size_t>(team->rank());
    for (const int32_t id : ids) {
      const size_t member = owner(id);
      place.push_back(next[member]++);
      if (member != rank) continue;
      own.push_back(id - static_cast<int32_t>(team->first_output(a_.vocabulary)));
    }
    float* const ordered = ids.size() == 1 ? to.data : w_.looked_up;
    const Tensor own_rows(ordered + first[rank] * width, {static_cast<int64_t>(own.size()), width});
    MULTIHEAD_TRY(dequantize(p_.embedding, own, own_rows));
    MULTIHEAD_TRY(
        team->exchange_rows(ordered, width * static_cast<int64_t>(sizeof(float)),
                            [&](int member) { return first[static_cast<size_t>(member)]; }));
    if (ordered == to.data) return {};
    for (size_t row = 0; row < place.size(); ++row) {
      std::copy_n(ordered + place[row] * width, width,
                  to.data + static_cast<int64_t>(row) * to.strides[0]);
    }
    return {};
  }

  Status embed() {
    if (p_.patch.given()) return embed_pixels();
    const int64_t width = a_.embedding_width;
    float* const embedded = w_.embedded != nullptr && width != a_.width ? w_.embedded : w_.x;
    const ModelInputs& in = pass_.inputs;
    const bool after_padding = a_.family->positions_after_padding;
    MULTIHEAD_TRY(look_up(matrix(embedded, width)));
    engine::over_rows(in.batch, pass_.tokens * width, context_, [&](int64_t first, int64_t end) {
      for (int64_t b = first; b < end; ++b) {
        int64_t real = 0;  // tokens so far that are not padding
        for (int64_t token = 0; token < pass_.tokens; ++token) {
          const int64_t row = b * pass_.tokens + token;
          const int32_t id = in.ids[static_cast<size_t>(row)];
          float* const to = embedded + row * width;
          if (a_.embedding_scale != 1.0F) {
            for (int64_t c = 0; c < width; ++c) to[c] *= a_.embedding_scale;
          }
          int64_t position = pass_.before() + token;
          if (after_padding) {
            // RoBERTa: padding has the position of its own id.
            position = id == a_.padding_id ? a_.padding_id : a_.padding_id + ++real;
          }
          if (p_.position.rows > 0) add_row(p_.position, position, to);
          const bool typed = !in.token_types.empty();
          if (p_.token_type.rows > 0) {
            add_row(p_.token_type, typed ? in.token_types[static_cast<size_t>(row)] : 0, to);
          }
        }
      }
    });
    const Tensor table = matrix(embedded, width);
    MULTIHEAD_TRY(normalize(a_, false, table, p_.embedding_norm, table, context_));
    if (!p_.embedding_projection.given()) return {};
    return project(table, p_.embedding_projection, x(), context_);
  }

  // Each patch times the convolution's matrix, after the first token.
  Status embed_pixels() {
    const int64_t side = a_.image_size / a_.patch_size, patch = a_.patch_size;
    const int64_t patches = side * side, width = p_.patch.weight.columns;
    const int64_t image = a_.image_size * a_.image_size;
    const int64_t batch = pass_.inputs.batch;
    for (int64_t b = 0; b < batch; ++b) {
      const float* const pixels = pass_.inputs.pixels.data() + b * a_.channels * image;
      for (int64_t index = 0; index < patches; ++index) {
        float* to = w_.patches + (b * patches + index) * width;
        const int64_t top = index / side * patch, left = index % side * patch;
        for (int64_t channel = 0; channel < a_.channels; ++channel) {
          for (int64_t y = 0; y < patch; ++y, to += patch) {
            std::copy_n(pixels + channel * image + (top + y) * a_.image_size + left, patch, to);
          }
        }
      }
      const ConstTensor rows_of_image(w_.patches + b * patches * width, {patches, width});
      float* const first = w_.x + b * pass_.tokens * a_.width;
      MULTIHEAD_TRY(
          project(rows_of_image, p_.patch, {first + a_.width, {patches, a_.width}}, context_));
      std::copy_n(p_.first_token.data, p_.first_token.size, first);
      for (int64_t token = 0; token < pass_.tokens; ++token) {
        add_row(p_.position, token, first + token * a_.width);
      }
    }
    return {};
  }

  // ---- A layer. ----

  Status norm_into(const NormParameters& norm, const ConstTensor& from, float* to,
                   ConstTensor& result) {
    result = from;
    if (!norm.given()) return {};
    const Tensor target = matrix(to, a_.width);
    MULTIHEAD_TRY(normalize(a_, a_.family->rms_norm, from, norm, target, context_));
    result = target;
    return {};
  }

  // x = norm(x + norm(branch)), with the norms that the family has.
  Status add_branch(const NormParameters& of_branch, const NormParameters& of_sum) {
    const Tensor branch = matrix(w_.branch, a_.width);
    if (of_branch.given()) {
      MULTIHEAD_TRY(normalize(a_, a_.family->rms_norm, branch, of_branch, branch, context_));
    }
    engine::add(w_.x, w_.branch, w_.x, rows() * a_.width, context_);
    if (!of_sum.given()) return {};
    return normalize(a_, a_.family->rms_norm, x(), of_sum, x(), context_);
  }

  Status run_layer(size_t index) {
    const LayerPlan& plan = a_.layers[index];
    const LayerParameters& layer = p_.layers[static_cast<size_t>(plan.weights)];
    ConstTensor input;
    MULTIHEAD_TRY(norm_into(layer.attention_norm, x(), w_.normed, input));
    MULTIHEAD_TRY(attend(index, input));
    if (!a_.parallel) {
      MULTIHEAD_TRY(add_branch(layer.attention_out_norm, layer.attention_sum_norm));
      MULTIHEAD_TRY(norm_into(layer.mlp_norm, x(), w_.normed, input));
      MULTIHEAD_TRY(run_mlp(layer, input));
      return add_branch(layer.mlp_out_norm, layer.mlp_sum_norm);
    }
    // GPT-NeoX: the MLP reads the input of the layer, too.
    MULTIHEAD_TRY(norm_into(layer.mlp_norm, x(), w_.normed, input));
    MULTIHEAD_TRY(add_branch({}, {}));
    MULTIHEAD_TRY(run_mlp(layer, input));
    return add_branch({}, {});
  }

  Status run_mlp(const LayerParameters& layer, const ConstTensor& input) {
    const int64_t width = mlp_width();
    const Tensor hidden(w_.hidden, {rows(), a_.mlp}, {width, 1});
    if (layer.gate_up.given()) {
      MULTIHEAD_TRY(project(input, layer.gate_up, matrix(w_.hidden, width), context_));
      MULTIHEAD_TRY(activate_columns(0, a_.mlp));
    } else if (engine::Team* const team = engine::team_of(context_);
               team != nullptr && layer.up.is_share && (!a_.gated || layer.gate.is_share)) {
      // A member activates the columns that it computes, so that one exchange is enough.
      {
        const engine::KeepOwnOutputs own(team);
        MULTIHEAD_TRY(project_up(layer, input));
      }
      MULTIHEAD_TRY(activate_columns(team->first_output(a_.mlp), team->end_output(a_.mlp)));
      MULTIHEAD_TRY(team->exchange_outputs(hidden.data, rows(), width, a_.mlp));
    } else {
      MULTIHEAD_TRY(project_up(layer, input));
      MULTIHEAD_TRY(activate_columns(0, a_.mlp));
    }
    return project(hidden, layer.down, matrix(w_.branch, a_.width), context_);
  }

  // Computes the hidden layer before its activation: the gate, if there is one, and the projection
  // that the gate multiplies.
  Status project_up(const LayerParameters& layer, const ConstTensor& input) {
    const int64_t width = mlp_width();
    const Tensor first(w_.hidden, {rows(), a_.mlp}, {width, 1});
    if (!a_.gated) return project(input, layer.up, first, context_);
    const Tensor second(w_.hidden + a_.mlp, {rows(), a_.mlp}, {width, 1});
    MULTIHEAD_TRY(project(input, layer.gate, first, context_));
    return project(input, layer.up, second, context_);
  }

  Status activate_columns(int64_t begin, int64_t end) {
    if (begin == end) return {};  // a member without columns
    const auto columns = [&](int64_t from) {
      return Tensor(w_.hidden + from + begin, {rows(), end - begin}, {mlp_width(), 1});
    };
    const Tensor first = columns(0);
    if (!a_.gated) return activate(first, a_.activation, first, context_);
    return activate_gated(first, columns(a_.mlp), a_.activation, first, context_);
  }

  // (batch, heads, tokens, head_dim) in the rows of q, k and v.
  Tensor heads_at(int64_t offset, int64_t step, int64_t count) const {
    const int64_t width = a_.qkv_width();
    return {w_.qkv + offset,
            {pass_.inputs.batch, count, pass_.tokens, a_.head_dim},
            {pass_.tokens * width, step, width, 1}};
  }

  // True if this member of a team computes the queries, keys and values of exactly the heads that
  // it caches and attends with. It then needs none of another member.
  bool needs_own_heads_only(const engine::Team& team, size_t index,
                            const LayerParameters& layer) const {
    const bool norms_all = layer.q_norm.given() && a_.family->norm_whole_qk;
    return !norms_all && layer.q.is_share && layer.k.is_share && layer.v.is_share &&
           !pass_.caches.empty() && KVCache::Internals::is_share(pass_.caches[index]) &&
           team.computes_own(a_.kv_heads, a_.q_width()) &&
           team.computes_own(a_.kv_heads, a_.kv_width());
  }

  Status attend(size_t index, const ConstTensor& input) {
    const LayerPlan& plan = a_.layers[index];
    const LayerParameters& layer = p_.layers[static_cast<size_t>(plan.weights)];
    const int64_t width = a_.qkv_width();
    if (layer.qkv.given()) {
      MULTIHEAD_TRY(project(input, layer.qkv, matrix(w_.qkv, width), context_));
    } else {
      engine::Team* const team = engine::team_of(context_);
      const engine::KeepOwnOutputs own(
          team != nullptr && needs_own_heads_only(*team, index, layer) ? team : nullptr);
      const auto part = [&](int64_t offset, int64_t columns) {
        return Tensor(w_.qkv + offset, {rows(), columns}, {width, 1});
      };
      MULTIHEAD_TRY(project(input, layer.q, part(heads_.q, a_.q_width()), context_));
      MULTIHEAD_TRY(project(input, layer.k, part(heads_.k, a_.kv_width()), context_));
      MULTIHEAD_TRY(project(input, layer.v, part(heads_.v, a_.kv_width()), context_));
    }
    MULTIHEAD_TRY(normalize_heads(layer));
    if (plan.rope >= 0) rotate_heads(plan.rope);
    const Tensor q = heads_at(heads_.q, heads_.q_step, a_.heads);
    const Tensor k = heads_at(heads_.k, heads_.kv_step, a_.kv_heads);
    const Tensor v = heads_at(heads_.v, heads_.kv_step, a_.kv_heads);
    const Tensor merged(w_.merged, {pass_.inputs.batch, a_.heads, pass_.tokens, a_.head_dim},
                        {pass_.tokens * a_.q_width(), a_.head_dim, a_.q_width(), 1});
    MULTIHEAD_TRY(attend_heads(index, q, k, v, merged));
    if (!pass_.inputs.head_scales.empty()) {
      const auto count = static_cast<size_t>(a_.heads);
      engine::scale_heads(merged, pass_.inputs.head_scales.subspan(index * count, count), context_);
    }
    return project(matrix(w_.merged, a_.q_width()), layer.o, matrix(w_.branch, a_.width), context_);
  }

  Status attend_heads(size_t index, const Tensor& q, const Tensor& k, const Tensor& v,
                      const Tensor& merged) {
    const LayerPlan& plan = a_.layers[index];
    AttentionOptions options;
    options.scale = plan.scale;
    options.softcap = a_.attention_cap;
    if (plan.window > 0) options.window.left = plan.window - 1;
    if (!pass_.caches.empty()) {
      options.causal = Causal::bottom_right();
      KVCache& cache = pass_.caches[index];
      // A ring takes the tokens in pieces that leave it the keys of the window.
      const KVCacheConfig& config = cache.config();
      const bool is_ring = config.layout == KVCacheConfig::Layout::kRing;
      const int64_t most = is_ring ? config.capacity - (plan.window - 1) : pass_.tokens;
      for (int64_t first = 0; first < pass_.tokens; first += most) {
        const auto piece = [&](const Tensor& all) {
          Dims shape = all.shape;
          shape[2] = std::min(most, pass_.tokens - first);
          return Tensor(all.data + first * all.strides[2], shape, all.strides);
        };
        MULTIHEAD_TRY(cache.append(piece(k), piece(v), {}, &context_));
        MULTIHEAD_TRY(cache.attend(piece(q), options, {.out = piece(merged)}, context_));
      }
      return {};
    }
    if (a_.causal) options.causal = Causal::top_left();
    const int64_t batch = pass_.inputs.batch, tokens = pass_.tokens;
    if (!pass_.inputs.mask.empty()) {
      options.mask = {pass_.inputs.mask.data(), {batch, 1, 1, tokens}};
    }
    if (a_.buckets > 0) options.bias = {w_.bias, {1, a_.heads, tokens, tokens}};
    return attention(q, k, v, options, {.out = merged, .captures = captures(index)}, context_);
  }

  // The maps of this layer that are wanted.
  std::span<const ScoreCapture> captures(size_t layer) {
    captures_.clear();
    wanted_.clear();
    for (const HeadMap& map : pass_.maps) {
      if (map.layer == static_cast<int64_t>(layer)) {
        wanted_.push_back(static_cast<int32_t>(map.head));
      }
    }
    size_t next = 0;
    for (const HeadMap& map : pass_.maps) {
      if (map.layer != static_cast<int64_t>(layer)) continue;
      const Dims& from = map.out.strides;
      captures_.push_back({.stage = ScoreStage::kWeights,
                           .out = {map.out.data,
                                   {map.out.shape[0], 1, map.out.shape[1], map.out.shape[2]},
                                   {from[0], from[0], from[1], from[2]}},
                           .heads = std::span<const int32_t>(&wanted_[next++], 1),
                           .first_row = 0});
    }
    return captures_;
  }

  // Norms of queries and keys: of each head, or of all heads of a token.
  Status normalize_heads(const LayerParameters& layer) {
    if (!layer.q_norm.given()) return {};
    const bool whole = a_.family->norm_whole_qk;
    const auto each = [&](int64_t offset, int64_t step, int64_t count,
                          const NormParameters& norm) -> Status {
      const int64_t width = whole ? count * a_.head_dim : a_.head_dim;
      for (int64_t head = 0; head < (whole ? 1 : count); ++head) {
        const Tensor heads(w_.qkv + offset + head * step, {rows(), width}, {a_.qkv_width(), 1});
        MULTIHEAD_TRY(normalize(a_, true, heads, norm, heads, context_));
      }
      return {};
    };
    MULTIHEAD_TRY(each(heads_.q, heads_.q_step, a_.heads, layer.q_norm));
    return each(heads_.k, heads_.kv_step, a_.kv_heads, layer.k_norm);
  }

  void rotate_heads(int rope) {
    const int64_t width = a_.qkv_width(), d = a_.head_dim;
    const int64_t pairs = a_.ropes[static_cast<size_t>(rope)].pairs();
    engine::over_rows(rows(), width, context_, [&](int64_t first, int64_t end) {
      for (int64_t row = first; row < end; ++row) {
        const int64_t at = (rope * pass_.tokens + row % pass_.tokens) * pairs_;
        const auto rotate = [&](int64_t offset, int64_t step, int64_t count) {
          float* head = w_.qkv + row * width + offset;
          for (int64_t h = 0; h < count; ++h, head += step) {
            rules::rotate_vector(head, head, d, 2 * pairs, Rope::Style::kHalf, w_.cos + at,
                                 w_.sin + at);
          }
        };
        rotate(heads_.q, heads_.q_step, a_.heads);
        rotate(heads_.k, heads_.kv_step, a_.kv_heads);
      }
    });
  }

  const Architecture& a_;
  const Parameters& p_;
  const Pass& pass_;
  Context& context_;
  const HeadLayout heads_;
  Arrays w_;
  int64_t pairs_ = 0;  // row length of cos and sin
  std::vector<ScoreCapture> captures_;
  std::vector<int32_t> wanted_;
};

}  // namespace

bool all_finite(const ConstTensor& numbers, Context& context) {
  std::atomic<bool> finite = true;
  engine::over_rows(numbers.shape.elements(), 1, context, [&](int64_t first, int64_t end) {
    // All bits of the exponent of a NaN or an infinity are 1.
    constexpr uint32_t kExponent = 0x7F800000U;
    uint32_t found = 0;
    for (int64_t i = first; i < end; ++i) {
      found |= static_cast<uint32_t>((std::bit_cast<uint32_t>(numbers.data[i]) & kExponent) ==
                                     kExponent);
    }
    if (found != 0) finite = false;
  });
  return finite;
}

Status project(const ConstTensor& x, const Projection& projection, const Tensor& y,
               Context& context) {
  return linear(x, projection.weight, projection.bias.view(), y, context);
}

Status normalize(const Architecture& a, bool rms, const ConstTensor& x, const NormParameters& norm,
                 const Tensor& y, Context& context) {
  if (!norm.given()) {
    if (x.data == y.data) return {};
    for (int64_t row = 0; row < x.shape[0]; ++row) {
      std::copy_n(x.data + row * x.strides[0], x.shape[1], y.data + row * y.strides[0]);
    }
    return {};
  }
  if (rms) return rms_norm(x, norm.weight.view(), a.eps, y, context);
  return layer_norm(x, norm.weight.view(), norm.bias.view(), a.eps, y, context);
}

Status check_inputs(const Model::Internals& model, Pass& pass) {
  const Architecture& a = model.architecture;
  const ModelInputs& in = pass.inputs;
  if (in.batch < 1) return shape_error("batch", "1 or more", in.batch);
  if (model.info.takes_pixels) {
    const int64_t image = a.channels * a.image_size * a.image_size;
    const auto count = static_cast<int64_t>(in.pixels.size());
    if (count % image != 0 || count / image != in.batch) {
      return shape_error(
          "pixels",
          std::to_string(image) + " numbers for each of " + std::to_string(in.batch) + " images",
          count);
    }
    pass.tokens = a.image_tokens();
  } else {
    const auto count = static_cast<int64_t>(in.ids.size());
    if (count < 1 || count % in.batch != 0) {
      return shape_error(
          "ids",
          "a number for each token of " + std::to_string(in.batch) + " sequences of one length",
          count);
    }
    pass.tokens = count / in.batch;
    for (const int32_t id : in.ids) {
      if (id < 0 || id >= a.vocabulary) {
        return option_error("ids", "0 to " + std::to_string(a.vocabulary - 1), id);
      }
    }
  }
  const int64_t most = model.info.max_tokens;
  if (most > 0 && pass.before() + pass.tokens > most) {
    return option_error("ids", "at most " + std::to_string(most) + " tokens",
                        pass.before() + pass.tokens);
  }
  const auto rows = static_cast<size_t>(pass.rows());
  if (!in.mask.empty() && in.mask.size() != rows) {
    return shape_error("mask", std::to_string(rows) + " numbers",
                       static_cast<int64_t>(in.mask.size()));
  }
  if (!in.token_types.empty()) {
    if (a.token_types == 0) {
      return option_error("token_types", "none for " + model.info.model_type,
                          static_cast<int64_t>(in.token_types.size()));
    }
    if (in.token_types.size() != rows) {
      return shape_error("token_types", std::to_string(rows) + " numbers",
                         static_cast<int64_t>(in.token_types.size()));
    }
    for (const int32_t type : in.token_types) {
      if (type < 0 || type >= a.token_types) {
        return option_error("token_types", "0 to " + std::to_string(a.token_types - 1), type);
      }
    }
  }
  const auto heads = static_cast<size_t>(a.heads) * a.layers.size();
  if (!in.head_scales.empty() && in.head_scales.size() != heads) {
    return shape_error("head_scales", std::to_string(heads) + " numbers",
                       static_cast<int64_t>(in.head_scales.size()));
  }
  return {};
}

Status run_layers(const Model::Internals& model, const Pass& pass, bool last_only, Tensor& result,
                  Context& context) {
  return Runner(model, pass, context).run(last_only, result);
}

}  // namespace multihead::models
