#include "webgpu/plan_model.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "models/pass_numbers.h"
#include "models/relative_positions.h"
#include "webgpu/operations.h"
#include "webgpu/plan_layer.h"

namespace multihead::webgpu {
namespace {

using models::Architecture;
using models::Parameters;

class ModelPlanner {
 public:
  ModelPlanner(const models::Model::Internals& model, const ModelBuffers& buffers,
               const ModelPlan& call, Builder& builder)
      : model_(model),
        a_(model.architecture),
        p_(model.parameters),
        buffers_(buffers),
        call_(call),
        pass_(call.pass),
        before_(pass_.before()),
        builder_(builder) {}

  Status run(Plan& plan) {
    Rows stream = pass_.state.given() ? given() : embed();
    MULTIHEAD_TRY(plan_layers(stream));
    if (call_.state || call_.logits) output(stream);
    return builder_.finish(plan);
  }

 private:
  uint32_t tokens() const { return static_cast<uint32_t>(pass_.tokens); }
  uint32_t rows() const { return static_cast<uint32_t>(pass_.rows()); }
  nn::NormKind norm_kind() const { return {a_.family->rms_norm, a_.eps}; }
  uint32_t first_output() const {
    return buffers_.count() + 2 * static_cast<uint32_t>(pass_.caches.size());
  }
  uint32_t logits_buffer() const { return first_output() + (call_.state ? 1 : 0); }
  uint32_t first_capture() const { return logits_buffer() + (call_.logits ? 1 : 0); }

  // ---- Before the layers. ----

  void look_up(const WeightMatrix& table, const Builder::Embed& how, const Rows& to) {
    builder_.embed(ModelBuffers::form_of(table), buffers_.number_of(table), rows(), how, to);
  }

  // The input of the first layer, copied from the call's arrays, which no kernel may write.
  Rows given() {
    const auto width = static_cast<uint32_t>(a_.width);
    const Rows x = builder_.new_rows(rows(), a_.width);
    const std::span<const float> state(pass_.state.data, size_t{rows()} * width);
    builder_.pointwise({Builder::kData, builder_.data(state), width}, rows(), width, {}, x);
    return x;
  }

  // As embed() of models/run.cc.
  Rows embed() {
    const models::ModelInputs& in = pass_.inputs;
    Rows x = builder_.new_rows(rows(), a_.embedding_width);
    std::vector<float> factors(rows());
    std::vector<int32_t> positions(rows());
    for (int64_t b = 0; b < in.batch; ++b) {
      models::visit_tokens(a_, pass_, b, [&](int64_t row, float factor, int64_t position) {
        factors[static_cast<size_t>(row)] = factor;
        positions[static_cast<size_t>(row)] = static_cast<int32_t>(position);
      });
    }
    look_up(p_.embedding, {.indices = builder_.data(in.ids), .factors = builder_.data(factors)}, x);
    if (p_.position.rows > 0) {
      look_up(p_.position, {.indices = builder_.data(positions), .adds = true}, x);
    }
    if (p_.token_type.rows > 0) {
      const std::vector<int32_t> none(in.token_types.empty() ? rows() : 0);
      const std::span<const int32_t> types =
          in.token_types.empty() ? std::span<const int32_t>(none) : in.token_types;
      look_up(p_.token_type, {.indices = builder_.data(types), .adds = true}, x);
    }
    const Norm norm = buffers_.norm_of(norm_kind(), p_.embedding_norm);
    if (norm.kind != Norm::Kind::kNone) {
      const Rows normed = builder_.new_rows(rows(), a_.embedding_width);
      builder_.norm(x, rows(), static_cast<uint32_t>(a_.embedding_width), norm, normed);
      x = normed;
    }
    if (!p_.embedding_projection.given()) return x;
    const Rows projected = builder_.new_rows(rows(), a_.width);
    project(x, rows(), p_.embedding_projection, {}, projected);
    return projected;
  }

  void project(const Rows& x, uint32_t count, const nn::Projection& projection, Builder::Linear how,
               const Rows& y) {
    how.bias = buffers_.word_of(projection.bias);
    builder_.linear(x, count, ModelBuffers::form_of(projection.weight),
                    buffers_.number_of(projection.weight), how, y);
  }

  // ---- Layers. ----

  Status plan_layers(Rows& stream) {
    LayerPlan layer{.graph = &model_.graph,
                    .buffers = &buffers_,
                    .batch = static_cast<uint32_t>(pass_.inputs.batch),
                    .tokens = tokens(),
                    .edits = pass_.inputs.edits,
                    .first_token = before_,
                    .captures = pass_.captures,
                    .first_capture = first_capture()};
    layer.heads.neighbours = a_.family->rope_neighbours ? 1 : 0;
    struct Tables {
      uint32_t cos, sin;
    };
    std::vector<Tables> tables;
    for (const models::RopeFrequencies& rope : a_.ropes) {
      const auto pairs = static_cast<size_t>(rope.pairs());
      std::vector<double> frequencies(pairs);
      rope.at(before_ + pass_.tokens, frequencies.data());
      std::vector<float> cos(tokens() * pairs), sin(tokens() * pairs);
      for (size_t token = 0; token < tokens(); ++token) {
        const int64_t position = models::position_of(pass_, static_cast<int64_t>(token));
        models::write_angles(a_, rope, frequencies.data(), position, cos.data() + token * pairs,
                             sin.data() + token * pairs);
      }
      tables.push_back({builder_.data(cos), builder_.data(sin)});
    }
    uint32_t scales = kNone;
    if (!pass_.inputs.head_scales.empty()) scales = builder_.data(pass_.inputs.head_scales);
    const int64_t batch = pass_.inputs.batch, keys = before_ + pass_.tokens;
    uint32_t mask = kNone;
    const uint32_t shared_bias = relative_bias(p_.relative_bias);
    if (!pass_.inputs.mask.empty() && pass_.caches.empty()) {
      std::vector<uint32_t> words((pass_.inputs.mask.size() + 3) / 4);
      std::memcpy(words.data(), pass_.inputs.mask.data(), pass_.inputs.mask.size());
      mask = builder_.data(words);
    }
    const int64_t end = std::min<int64_t>(pass_.end_layer, model_.info.num_layers);
    for (int64_t index = pass_.first_layer; index < end; ++index) {
      const models::LayerPlan& plan = a_.layers[static_cast<size_t>(index)];
      layer.parameters = &p_.layers[static_cast<size_t>(plan.weights)];
      layer.layer = index;
      layer.heads.pairs = 0;
      if (plan.rope >= 0) {
        const auto rope = static_cast<size_t>(plan.rope);
        layer.heads.pairs = layer.heads.table_stride =
            static_cast<uint32_t>(a_.ropes[rope].pairs());
        layer.heads.cos_first = tables[rope].cos;
        layer.heads.sin_first = tables[rope].sin;
      }
      layer.attention = models::attention_of(a_, plan, !pass_.caches.empty());
      layer.mask = mask;
      if (mask != kNone) layer.attention.mask = {nullptr, {batch, 1, 1, pass_.tokens}};
      const nn::Vector& own_bias = layer.parameters->relative_bias;
      layer.bias = own_bias.given() ? relative_bias(own_bias) : shared_bias;
      if (layer.bias != kNone) layer.attention.bias = {nullptr, {1, a_.heads, pass_.tokens, keys}};
      if (scales != kNone) layer.head_scales = scales + static_cast<uint32_t>(index * a_.heads);
      if (!pass_.caches.empty()) {
        layer.cache = &pass_.caches[static_cast<size_t>(index)];
        layer.keys = buffers_.count() + 2 * static_cast<uint32_t>(index);
        layer.values = layer.keys + 1;
      }
      MULTIHEAD_TRY(plan_layer(layer, builder_, stream));
    }
    return {};
  }

  // The scores of distances by a table, as an array of the call.
  uint32_t relative_bias(const nn::Vector& table) {
    if (a_.buckets == 0 || !table.given()) return kNone;
    std::vector<float> numbers(
        static_cast<size_t>(a_.heads * pass_.tokens * (before_ + pass_.tokens)));
    models::fill_relative_bias(table.data, a_.buckets, a_.bucket_distance, a_.heads, before_,
                               pass_.tokens, !a_.causal, numbers.data());
    return builder_.data(numbers);
  }

  // ---- After the layers. ----

  void output(Rows x) {
    const bool one = pass_.only_token >= 0;
    const uint32_t count = one ? static_cast<uint32_t>(pass_.inputs.batch) : rows();
    const auto width = static_cast<uint32_t>(a_.width);
    if (one) {
      x.first += static_cast<uint32_t>(pass_.only_token) * x.stride;
      x.stride *= tokens();
    }
    Norm norm = buffers_.norm_of(norm_kind(), p_.final_norm);
    const bool fuses = call_.logits && !call_.state && count <= Builder::kFewRows;
    if (norm.kind != Norm::Kind::kNone && !fuses) {
      const Rows normed = builder_.new_rows(count, width);
      builder_.norm(x, count, width, norm, normed);
      x = normed;
      norm = {};
    }
    if (call_.state) builder_.pointwise(x, count, width, {}, {first_output(), 0, width});
    if (!call_.logits) return;
    if (p_.transform.given()) {
      // The activation is the MLPs': f(factor * x) / factor, or f(x) * x.
      const auto columns = static_cast<uint32_t>(a_.embedding_width);
      const bool fixed = a_.family->transform_gelu;
      const float factor = fixed ? 1.0F : a_.activation_factor;
      Function function = function_of(fixed ? Activation::kGelu : a_.activation);
      if (!fixed && a_.squares) function = times_x(function);
      Rows hidden = builder_.new_rows(count, columns), other = builder_.new_rows(count, columns);
      project(x, count, p_.transform, {.norm = norm, .function = function, .factor = factor},
              hidden);
      norm = {};
      if (factor != 1.0F) {
        builder_.pointwise(hidden, count, columns, {.scale = 1.0F / factor}, other);
        std::swap(hidden, other);
      }
      x = other;
      builder_.norm(hidden, count, columns, buffers_.norm_of({false, a_.eps}, p_.transform_norm),
                    x);
    }
    const WeightMatrix& matrix = models::output_matrix(p_);
    builder_.linear(x, count, ModelBuffers::form_of(matrix), buffers_.number_of(matrix),
                    {.bias = buffers_.word_of(p_.output.bias),
                     .norm = norm,
                     .factor = a_.logit_factor,
                     .cap = a_.logit_cap},
                    {logits_buffer(), 0, static_cast<uint32_t>(a_.vocabulary)});
  }

  const models::Model::Internals& model_;
  const Architecture& a_;
  const Parameters& p_;
  const ModelBuffers& buffers_;
  const ModelPlan& call_;
  const models::Pass& pass_;
  const int64_t before_;
  Builder& builder_;
};

// Words of the operands that no weights are.
void add_operands(const models::Model::Internals& model, const ModelPlan& call,
                  std::vector<uint64_t>& words) {
  const models::Pass& pass = call.pass;
  for (const KVCache& cache : pass.caches) {
    const KVCacheConfig& config = cache.config();
    const int64_t rows = config.batch * config.num_kv_heads * config.capacity;
    for (const int64_t width : {config.head_dim, config.value_dim}) {
      words.push_back(static_cast<uint64_t>((rows * width * bytes_of(config.type) + 3) / 4));
    }
  }
  const auto rows = static_cast<uint64_t>(pass.only_token >= 0 ? pass.inputs.batch : pass.rows());
  if (call.state) words.push_back(rows * static_cast<uint64_t>(model.architecture.width));
  if (call.logits) words.push_back(rows * static_cast<uint64_t>(model.architecture.vocabulary));
  for (const models::Capture& capture : pass.captures) {
    words.push_back(static_cast<uint64_t>(capture.out.shape.elements()));
  }
}

}  // namespace

Status check_model(const models::Model::Internals& model) {
  const Architecture& a = model.architecture;
  const auto refuse = [](const char* what) {
    return Status(StatusCode::kOption, "device", "a model whose layers run on a GPU", what);
  };
  if (model.encoder != nullptr) return refuse("encoder and decoder");
  if (a.family->names.patch != nullptr) return refuse("images");
  constexpr int64_t kMostHeadWidth = 256;  // of plan_attention()
  if (a.head_dim > kMostHeadWidth) return refuse("heads wider than 256");
  if (a.family->pools_end) return refuse("vectors of the token that ends a text");
  if (a.relative_span > 0) return refuse("relative positions with projections of their own");
  if (a.family->norm_whole_qk && a.family->norm_after_rope) {
    return refuse("norms of all heads after rotation");
  }
  return {};
}

Status plan_model(const models::Model::Internals& model, const ModelBuffers& buffers,
                  const ModelPlan& call, const Device& device, Plan& plan) {
  std::vector<uint64_t> operands;
  for (uint32_t buffer = 0; buffer < buffers.count(); ++buffer) {
    operands.push_back(buffers.words(buffer));
  }
  add_operands(model, call, operands);
  Builder builder(device, operands, 0);
  return ModelPlanner(model, buffers, call, builder).run(plan);
}

}  // namespace multihead::webgpu
