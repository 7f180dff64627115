#include "models/run.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/error/error.h"
#include "engine/layers/elementwise.h"
#include "engine/layers/gradients.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/team.h"
#include "models/architecture.h"
#include "models/pass_numbers.h"
#include "models/relative_positions.h"
#include "models/sites.h"
#include "multihead/attention.h"
#include "multihead/weights.h"
#include "nn/attention/sequence.h"
#include "nn/call_memory.h"
#include "nn/graph/call.h"
#include "rules/arena.h"
#include "rules/element.h"

namespace multihead::models {
namespace {

Status shape_error(std::string_view argument, const std::string& expected, int64_t got) {
  return {StatusCode::kShape, argument, expected, std::to_string(got)};
}

Status option_error(std::string_view argument, const std::string& expected, int64_t got) {
  return {StatusCode::kOption, argument, expected, std::to_string(got)};
}

// The arrays of one pass, besides the values of its layers.
struct Arrays {
  float* x = nullptr;         // (rows, width): the residual stream
  float* embedded = nullptr;  // (rows, embedding_width), before a projection to the width of layers
  float* looked_up = nullptr;  // (rows, embedding_width), ordered by the members of a team
  float* last = nullptr;       // (batch, width)
  double* frequencies = nullptr;
  float *cos = nullptr, *sin = nullptr;  // (ropes, tokens, pairs)
  float* bias = nullptr;                 // (heads, tokens, tokens): of relative positions
  float* patches = nullptr;              // (rows, channels * patch_size^2)
  float* relative = nullptr;             // (distances, width)
  int32_t* relative_rows = nullptr;      // see nn::RelativeContent
  nn::RelativeContent content = {};
  // For gradients only.
  float* unnormed = nullptr;  // (rows, embedding_width): the embedding before its norm
  float* normed = nullptr;    // (rows, width)
  float* gradient = nullptr;  // (rows, width)
  nn::Frame* kept = nullptr;  // of each layer from first_kept_ on
  nn::Frame gradients;
};

class Runner {
 public:
  Runner(const Model::Internals& model, const Pass& pass, Context& context)
      : a_(model.architecture),
        p_(model.parameters),
        graph_(model.graph),
        pass_(pass),
        before_(pass.before()),
        context_(context) {}

  Status run(Tensor& result) {
    MULTIHEAD_TRY(nn::reserve(engine::scratch_of(context_).transformer(),
                              [&](rules::Arena& take) { lay_out(take); }));
    MULTIHEAD_TRY(begin());
    result = x();
    if (ends_after(pass_.first_layer - 1)) return {};
    for (int64_t layer = pass_.first_layer; layer < pass_.end_layer; ++layer) {
      MULTIHEAD_TRY(run_layer(layer));
      if (ends_after(layer)) return {};
    }
    if (pass_.end_layer < layers()) return {};
    if (pass_.only_token >= 0) {
      const ConstTensor rows(w_.x + pass_.only_token * a_.width, {pass_.inputs.batch, a_.width},
                             {pass_.tokens * a_.width, 1});
      const Tensor last(w_.last, {pass_.inputs.batch, a_.width});
      MULTIHEAD_TRY(nn::normalize(norm_kind(), rows, p_.final_norm, last, context_));
      result = last;
      return {};
    }
    return nn::normalize(norm_kind(), x(), p_.final_norm, result, context_);
  }

  Status differentiate(const LossGradient& loss, std::span<const GradientOutput> wanted,
                       const Parameters* parameters) {
    d_parameters_ = parameters;
    first_kept_ = first_with_gradient(wanted);
    MULTIHEAD_TRY(nn::reserve(engine::scratch_of(context_).transformer(),
                              [&](rules::Arena& take) { lay_out_kept(take); }));
    MULTIHEAD_TRY(begin());
    for (int64_t layer = 0; layer < first_kept_; ++layer) MULTIHEAD_TRY(run_layer(layer));
    for (int64_t layer = first_kept_; layer < layers(); ++layer) {
      MULTIHEAD_TRY(nn::forward(graph_, w_.kept[layer - first_kept_], call_of(layer), context_));
    }
    const Tensor end = matrix(state_of(layers()), a_.width), normed = matrix(w_.normed, a_.width);
    const Tensor d = matrix(w_.gradient, a_.width);
    MULTIHEAD_TRY(nn::normalize(norm_kind(), end, p_.final_norm, normed, context_));
    std::fill_n(d.data, d.shape.elements(), 0.0F);
    MULTIHEAD_TRY(loss(normed, d));
    if (p_.final_norm.given()) {
      const NormParameters d_norm =
          parameters == nullptr ? NormParameters() : parameters->final_norm;
      MULTIHEAD_TRY(engine::norm_backward({.x = end.data,
                                           .weight = p_.final_norm.weight.data,
                                           .d_y = d.data,
                                           .d_x = d.data,
                                           .adds_to_d_x = false,
                                           .d_weight = d_norm.weight.data,
                                           .d_bias = d_norm.bias.data,
                                           .rows = rows(),
                                           .width = a_.width,
                                           .eps = a_.eps,
                                           .centered = !a_.family->rms_norm},
                                          context_));
    }
    for (int64_t layer = layers(); layer-- > first_kept_;) {
      MULTIHEAD_TRY(nn::backward(graph_, w_.kept[layer - first_kept_], w_.gradients, call_of(layer),
                                 layer, wanted, context_));
    }
    return parameters == nullptr ? Status() : embed_back(*parameters);
  }

 private:
  int64_t rows() const { return pass_.rows(); }
  int64_t layers() const { return static_cast<int64_t>(a_.layers.size()); }
  nn::NormKind norm_kind() const { return {a_.family->rms_norm, a_.eps}; }
  Tensor matrix(float* data, int64_t width) const { return {data, {rows(), width}}; }
  Tensor x() const { return matrix(w_.x, a_.width); }
  // differentiate() keeps here the input of a layer, or the output of the last layer.
  float* state_of(int64_t layer) const {
    return nn::moved(w_.x, (layer - first_kept_) * rows() * a_.width);
  }

  // Returns the lowest layer that has a gradient to compute: 0 if the embeddings have one.
  int64_t first_with_gradient(std::span<const GradientOutput> wanted) const {
    int64_t first = layers();
    for (const GradientOutput& capture : wanted) first = std::min(first, capture.layer);
    if (d_parameters_ == nullptr) return first;
    const Parameters& d = *d_parameters_;
    if (d.embedding.data != nullptr || d.position.data != nullptr ||
        d.embedding_norm.weight.given() || d.embedding_norm.bias.given()) {
      return 0;
    }
    const std::vector<ConstMember> members = members_of(*d_parameters_);
    for (int64_t layer = 0; layer < first; ++layer) {
      const int64_t set = a_.layers[static_cast<size_t>(layer)].weights;
      for (const ConstMember& member : members) {
        if (member.layer == set && member.data() != nullptr) first = layer;
      }
    }
    return first;
  }

  void floats(rules::Arena& take, float*& array, int64_t each, int64_t count) const {
    take(array, nn::saturated_elements({each, count}));
  }

  // Arrays for what comes before the layers.
  void lay_out_beginning(rules::Arena& take) {
    floats(take, w_.embedded, p_.embedding_projection.given() ? rows() : 0, a_.embedding_width);
    floats(take, w_.looked_up, p_.embedding_is_share ? rows() : 0, a_.embedding_width);
    pairs_ = 0;
    for (const RopeFrequencies& rope : a_.ropes) pairs_ = std::max(pairs_, rope.pairs());
    take(w_.frequencies, static_cast<uint64_t>(pairs_));
    const auto ropes = static_cast<int64_t>(a_.ropes.size());
    floats(take, w_.cos, ropes * pass_.tokens, pairs_);
    floats(take, w_.sin, ropes * pass_.tokens, pairs_);
    floats(take, w_.bias, a_.buckets > 0 ? a_.heads * pass_.tokens : 0, before_ + pass_.tokens);
    if (a_.relative_span > 0) {
      const int64_t distances = relative_row(pass_.tokens - 1) + 1 - relative_row(1 - pass_.tokens);
      floats(take, w_.relative, distances, a_.width);
      take(w_.relative_rows, static_cast<uint64_t>(2 * pass_.tokens - 1));
      floats(take, w_.content.projected, distances, a_.q_width());
      floats(take, w_.content.products, a_.heads * pass_.tokens, distances);
      floats(take, w_.content.bias, pass_.inputs.batch * a_.heads * pass_.tokens, pass_.tokens);
    }
    floats(take, w_.patches, p_.patch.given() ? rows() : 0, p_.patch.weight.columns);
  }

  // Rows of the source's keys and values, 0 if all layers have cached them. After a call that
  // failed, only the first layers may have.
  int64_t computed_source_rows() const {
    const PassSource& source = pass_.source;
    const bool cached = !source.caches.empty() &&
                        std::all_of(source.caches.begin(), source.caches.end(),
                                    [](const KVCache& cache) { return cache.length(0) > 0; });
    return cached ? 0 : pass_.inputs.batch * source.tokens;
  }

  void lay_out(rules::Arena& take) {
    floats(take, w_.x, rows(), a_.width);
    lay_out_beginning(take);
    floats(take, w_.last, pass_.inputs.batch, a_.width);
    frame_.lay_out(graph_, rows(), computed_source_rows(), take);
  }

  void lay_out_kept(rules::Arena& take) {
    const int64_t kept = layers() - first_kept_;
    floats(take, w_.x, (kept + 1) * rows(), a_.width);
    lay_out_beginning(take);
    const bool keeps = d_parameters_ != nullptr && p_.embedding_norm.given();
    floats(take, w_.unnormed, keeps ? rows() : 0, a_.embedding_width);
    floats(take, w_.normed, rows(), a_.width);
    floats(take, w_.gradient, rows(), a_.width);
    if (first_kept_ > 0) frame_.lay_out(graph_, rows(), 0, take);
    take(w_.kept, static_cast<uint64_t>(kept));
    for (int64_t at = 0; at < kept; ++at) {
      const int64_t layer = first_kept_ + at;
      nn::Frame frame;
      frame.lay_out_kept(graph_, call_of(layer), state_of(layer), state_of(layer + 1), take);
      if (w_.kept != nullptr) w_.kept[at] = frame;
    }
    if (kept > 0) w_.gradients.lay_out_gradients(graph_, call_of(0), w_.gradient, take);
  }

  // True if the pass looks for numbers that are not finite, and x has some.
  bool ends_after(int64_t layer) const {
    if (pass_.first_not_finite == nullptr || all_finite(x(), context_)) return false;
    *pass_.first_not_finite = layer;
    return true;
  }

  // ---- Before the layers. ----

  Status begin() {
    fill_angles();
    fill_bias(p_.relative_bias);
    if (a_.relative_span > 0) MULTIHEAD_TRY(fill_relative_content());
    if (!pass_.state.given()) return embed();
    std::copy_n(pass_.state.data, rows() * a_.width, w_.x);
    return {};
  }

  // The row of DeBERTa's table for a distance. It may skip rows: buckets can be narrower than one.
  int64_t relative_row(int64_t distance) const {
    const int64_t bucket = signed_bucket(distance, a_.relative_span, a_.bucket_distance);
    return std::clamp<int64_t>(bucket + a_.relative_span, 0, 2 * a_.relative_span - 1);
  }

  // Does nothing without a table of buckets, or while memory is laid out. DeBERTa's table has none.
  void fill_bias(const Vector& table) {
    if (w_.bias == nullptr || a_.buckets == 0 || !table.given()) return;
    fill_relative_bias(table.data, a_.buckets, a_.bucket_distance, a_.heads, before_, pass_.tokens,
                       !a_.causal, w_.bias);
  }

  Status fill_relative_content() {
    const int64_t last = pass_.tokens - 1, first = relative_row(-last);
    const int64_t rows = relative_row(last) + 1 - first;
    for (int64_t distance = -last; distance <= last; ++distance) {
      w_.relative_rows[distance + last] = static_cast<int32_t>(relative_row(distance) - first);
    }
    const ConstTensor table(p_.relative_bias.data + first * a_.width, {rows, a_.width});
    w_.content.embeddings = w_.relative;
    w_.content.rows = rows;
    w_.content.row_of = w_.relative_rows;
    return nn::normalize({false, a_.eps}, table, p_.relative_norm, {w_.relative, table.shape},
                         context_);
  }

  void fill_angles() {
    for (size_t rope = 0; rope < a_.ropes.size(); ++rope) {
      const RopeFrequencies& frequencies = a_.ropes[rope];
      const int64_t pairs = frequencies.pairs();
      const bool many = !pass_.texts.empty();
      frequencies.at(before_ + pass_.tokens, w_.frequencies);
      const auto offset = static_cast<int64_t>(rope) * pass_.tokens * pairs_;
      const auto fill = [&](int64_t first, int64_t end) {
        for (int64_t token = first; token < end; ++token) {
          const int64_t position = position_of(pass_, token);
          if (many) frequencies.at(position + 1, w_.frequencies);
          const int64_t row = offset + token * pairs_;
          write_angles(a_, frequencies, w_.frequencies, position, w_.cos + row, w_.sin + row);
        }
      };
      // Texts share the memory of the frequencies, which may depend on their lengths.
      if (many)
        fill(0, pass_.tokens);
      else
        engine::over_rows(pass_.tokens, 16 * pairs, context_, fill);
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
    float* const embedded = p_.embedding_projection.given() ? w_.embedded : w_.x;
    const ModelInputs& in = pass_.inputs;
    MULTIHEAD_TRY(look_up(matrix(embedded, width)));
    engine::over_rows(in.batch, pass_.tokens * width, context_, [&](int64_t first, int64_t end) {
      for (int64_t b = first; b < end; ++b) {
        visit_tokens(a_, pass_, b, [&](int64_t row, float scale, int64_t position) {
          float* const to = embedded + row * width;
          if (scale != 1.0F) {
            for (int64_t c = 0; c < width; ++c) to[c] *= scale;
          }
          if (p_.position.rows > 0) add_row(p_.position, position, to);
          const bool typed = !in.token_types.empty();
          if (p_.token_type.rows > 0) {
            add_row(p_.token_type, typed ? in.token_types[static_cast<size_t>(row)] : 0, to);
          }
        });
      }
    });
    const Tensor table = matrix(embedded, width);
    if (w_.unnormed != nullptr) std::copy_n(table.data, rows() * width, w_.unnormed);
    MULTIHEAD_TRY(nn::normalize(norm_kind(), table, p_.embedding_norm, table, context_));
    if (!p_.embedding_projection.given()) return {};
    return nn::project(table, p_.embedding_projection, x(), context_);
  }

  // Adds the gradients of the embedding's norm and of the rows of the tables that were read.
  // Language models have no projection here.
  Status embed_back(const Parameters& gradients) const {
    if (p_.embedding_norm.given() && first_kept_ == 0) {
      MULTIHEAD_TRY(engine::norm_backward({.x = w_.unnormed,
                                           .weight = p_.embedding_norm.weight.data,
                                           .d_y = w_.gradient,
                                           .d_x = w_.gradient,
                                           .adds_to_d_x = false,
                                           .d_weight = gradients.embedding_norm.weight.data,
                                           .d_bias = gradients.embedding_norm.bias.data,
                                           .rows = rows(),
                                           .width = a_.width,
                                           .eps = a_.eps,
                                           .centered = !a_.family->rms_norm},
                                          context_));
    }
    const auto add = [&](const WeightMatrix& table, int64_t row, const float* d, float scale) {
      if (table.data == nullptr) return;
      // Memory of gradients, which is written.
      float* const to = static_cast<float*>(const_cast<void*>(table.data)) + row * table.columns;
      for (int64_t c = 0; c < table.columns; ++c) to[c] += scale * d[c];
    };
    for (int64_t row = 0; row < rows(); ++row) {
      const float* const d = w_.gradient + row * a_.width;
      add(gradients.embedding, pass_.inputs.ids[static_cast<size_t>(row)], d, a_.embedding_scale);
      add(gradients.position, a_.first_position + row % pass_.tokens, d, 1.0F);
    }
    return {};
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
      const Tensor of_patches(first + a_.first_tokens * a_.width, {patches, a_.width});
      MULTIHEAD_TRY(nn::project(rows_of_image, p_.patch, of_patches, context_));
      std::copy_n(p_.first_token.data, p_.first_token.size, first);
      // Registers have no positions.
      const int64_t unplaced = pass_.tokens - p_.position.rows;
      for (int64_t row = 0; row < p_.position.rows; ++row) {
        const int64_t token = row == 0 || a_.first_tokens == 0 ? row : row + unplaced;
        add_row(p_.position, row, first + token * a_.width);
      }
    }
    if (!p_.embedding_norm.given()) return {};
    return nn::normalize({false, a_.eps}, x(), p_.embedding_norm, x(), context_);
  }

  // ---- A layer. ----

  nn::LayerCall call_of(int64_t index) {
    const LayerPlan& plan = a_.layers[static_cast<size_t>(index)];
    nn::LayerCall call{.parameters = &p_.layers[static_cast<size_t>(plan.weights)],
                       .batch = pass_.inputs.batch,
                       .tokens = pass_.tokens,
                       .content = w_.content};
    fill_bias(call.parameters->relative_bias);
    if (d_parameters_ != nullptr) {
      call.gradients = &d_parameters_->layers[static_cast<size_t>(plan.weights)];
    }
    if (plan.rope >= 0) {
      const int64_t offset = plan.rope * pass_.tokens * pairs_;
      call.rotation = {.cos = nn::moved(w_.cos, offset),
                       .sin = nn::moved(w_.sin, offset),
                       .pairs = a_.ropes[static_cast<size_t>(plan.rope)].pairs(),
                       .step = pairs_,
                       .neighbours = a_.family->rope_neighbours};
    }
    call.attention = attention_of(a_, plan, !pass_.caches.empty());
    AttentionOptions& options = call.attention;
    // The factors of cross-attention follow the others, if there are any.
    const auto heads = static_cast<size_t>(a_.heads), first = static_cast<size_t>(index) * heads;
    const std::span<const float> scales = pass_.inputs.head_scales;
    if (!scales.empty()) call.head_scales = scales.subspan(first, heads);
    if (!pass_.captures.empty() || !pass_.inputs.edits.empty()) {
      probe_ = {pass_.captures, pass_.inputs.edits, index, before_};
      call.probe = &probe_;
    }
    const int64_t batch = pass_.inputs.batch, tokens = pass_.tokens;
    if (a_.buckets > 0) options.bias = {w_.bias, {1, a_.heads, tokens, before_ + tokens}};
    if (pass_.source.state.given()) {
      const PassSource& source = pass_.source;
      call.source = {.state = source.state, .tokens = source.tokens};
      call.source.attention.scale = plan.scale;
      if (!source.mask.empty()) {
        call.source.attention.mask = {source.mask.data(), {batch, 1, 1, source.tokens}};
      }
      if (!source.caches.empty()) call.source.cache = &source.caches[static_cast<size_t>(index)];
      const size_t others = heads * a_.layers.size();
      if (scales.size() > others) call.source.head_scales = scales.subspan(others + first, heads);
    }
    if (!pass_.caches.empty()) {
      call.cache = &pass_.caches[static_cast<size_t>(index)];
      call.texts = pass_.texts;
      call.layer = index;
      return call;
    }
    if (!pass_.inputs.mask.empty()) {
      options.mask = {pass_.inputs.mask.data(), {batch, 1, 1, tokens}};
    }
    return call;
  }

  Status run_layer(int64_t index) {
    const nn::LayerCall call = call_of(index);
    frame_.bind(graph_, call, w_.x);
    if (index > pass_.first_layer || !pass_.z.given()) {
      return nn::forward(graph_, frame_, call, context_);
    }
    return nn::forward_after(Site::kZ, pass_.z, graph_, frame_, call, context_);
  }

  const Architecture& a_;
  const Parameters& p_;
  const nn::Graph& graph_;
  const Pass& pass_;
  const int64_t before_;  // tokens in the caches, to which layers add the pass's
  Context& context_;
  Arrays w_;
  nn::Frame frame_;
  nn::Probe probe_;
  // differentiate() sets the gradients, and the first layer whose values are kept.
  const Parameters* d_parameters_ = nullptr;
  int64_t first_kept_ = 0;
  int64_t pairs_ = 0;  // row length of cos and sin
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

Status check_inputs(const Model::Internals& model, Pass& pass, std::string_view name) {
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
          name,
          "a number for each token of " + std::to_string(in.batch) + " sequences of one length",
          count);
    }
    pass.tokens = count / in.batch;
    for (const int32_t id : in.ids) {
      if (id < 0 || id >= a.vocabulary) {
        return option_error(name, "0 to " + std::to_string(a.vocabulary - 1), id);
      }
    }
  }
  const int64_t most = model.info.max_tokens;
  if (most > 0 && pass.before() + pass.tokens > most) {
    return option_error(name, "at most " + std::to_string(most) + " tokens",
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
  const size_t scales = in.head_scales.size();
  const bool has_cross = model.encoder != nullptr;
  if (scales != 0 && scales != heads && !(has_cross && scales == 2 * heads)) {
    return shape_error("head_scales",
                       std::to_string(heads) +
                           (has_cross ? " or " + std::to_string(2 * heads) : std::string()) +
                           " numbers",
                       static_cast<int64_t>(scales));
  }
  return in.edits.empty() ? Status() : check_edits(model, pass);
}

Status run_layers(const Model::Internals& model, const Pass& pass, Tensor& result,
                  Context& context) {
  return Runner(model, pass, context).run(result);
}

Status differentiate(const Model::Internals& model, const Pass& pass, const LossGradient& loss,
                     std::span<const GradientOutput> wanted, Context& context,
                     const Parameters* parameters) {
  return Runner(model, pass, context).differentiate(loss, wanted, parameters);
}

}  // namespace multihead::models
