// Model::forward() and its shorter forms: hidden states to logits, maps and sentence vectors.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "engine/error/error.h"
#include "engine/layers/elementwise.h"
#include "models/output.h"
#include "models/run.h"
#include "models/sentence.h"
#include "models/sites.h"
#include "models/source.h"
#include "multihead/attention.h"
#include "multihead/elementwise.h"
#include "multihead/models.h"

namespace multihead::models {
namespace {

Status shape_error(std::string_view argument, const Dims& expected, const Dims& got) {
  return {StatusCode::kShape, argument, expected.to_string(), got.to_string()};
}

Status check_output(std::string_view name, const Tensor& tensor, const Dims& shape) {
  if (!tensor.given()) return {};
  if (tensor.data == nullptr) return {StatusCode::kShape, name, "an address", "null"};
  if (!(tensor.shape == shape) || !(tensor.strides == contiguous_strides(shape))) {
    return shape_error(name, shape, tensor.shape);
  }
  return {};
}

Status none(std::string_view argument, std::string_view expected) {
  return {StatusCode::kOption, argument, expected, "a model without it"};
}

// The shapes of logits that are possible.
Status check_logits(const Model::Internals& model, const Pass& pass, const Tensor& logits) {
  if (!logits.given()) return {};
  const ModelInfo& info = model.info;
  const int64_t batch = pass.inputs.batch;
  switch (info.output) {
    case Output::kNone:
      return none("logits", "a language model or a classifier");
    case Output::kClassification:
      return check_output("logits", logits, {batch, info.num_labels});
    case Output::kTokenClassification:
    case Output::kQuestionAnswering:
      return check_output("logits", logits, {batch, pass.tokens, info.num_labels});
    case Output::kLanguageModel:
    case Output::kMaskedLanguageModel:
      break;
  }
  const bool last =
      info.output == Output::kLanguageModel && logits.shape.rank() == 3 && logits.shape[1] == 1;
  return check_output("logits", logits, {batch, last ? 1 : pass.tokens, info.vocab_size});
}

Status check_maps(const Model::Internals& model, const Pass& pass, std::span<const HeadMap> maps) {
  const ModelInfo& info = model.info;
  for (const HeadMap& map : maps) {
    for (const auto& [name, value, count] :
         {std::tuple{"layer", map.layer, info.num_layers}, {"head", map.head, info.num_heads}}) {
      if (value < 0 || value >= count) {
        return {StatusCode::kOption, name, "0 to " + std::to_string(count - 1),
                std::to_string(value)};
      }
    }
    if (map.cross && model.encoder == nullptr) return none("maps", "a model with cross-attention");
    const Dims shape{pass.inputs.batch, pass.tokens, map.cross ? pass.source.tokens : pass.tokens};
    const Dims& strides = map.out.strides;
    if (map.out.data == nullptr || !(map.out.shape == shape) || strides.rank() != 3) {
      return shape_error("maps", shape, map.out.shape);
    }
    // Rows and entries one after the other, with gaps at most.
    const bool rows_apart = strides[1] >= shape[2] || shape[1] == 1;
    const bool entries_apart =
        shape[0] == 1 ||
        (strides[0] >= shape[2] &&
         (strides[0] - shape[2]) / std::max<int64_t>(1, strides[1]) >= shape[1] - 1);
    if ((strides[2] != 1 && shape[2] > 1) || !rows_apart || !entries_apart) {
      return {StatusCode::kShape, "maps", "contiguous rows that do not overlap",
              "strides " + strides.to_string()};
    }
  }
  return {};
}

// The maps as captures of their rows and sequences.
std::vector<Capture> captures_of(const ModelOutputs& outputs) {
  std::vector<Capture> captures(outputs.captures.begin(), outputs.captures.end());
  for (const HeadMap& map : outputs.maps) {
    const Dims &shape = map.out.shape, &strides = map.out.strides;
    captures.push_back({.site = map.cross ? Site::kCrossPattern : Site::kPattern,
                        .layer = map.layer,
                        .heads = {map.head},
                        .out = {map.out.data,
                                {shape[0], 1, shape[1], shape[2]},
                                {strides[0], strides[0], strides[1], strides[2]}}});
  }
  return captures;
}

// The first `most` of each row of `row` numbers, copied; nothing of another size is.
template <class T>
std::span<const T> first_columns(std::span<const T> values, int64_t row, int64_t most,
                                 std::vector<T>& memory) {
  for (size_t at = 0; at < values.size(); at += static_cast<size_t>(row)) {
    const auto kept = values.subspan(at, std::min(values.size() - at, static_cast<size_t>(most)));
    memory.insert(memory.end(), kept.begin(), kept.end());
  }
  return memory;
}

// Masks the tokens after the first one that ends its text. Those before do not see them.
void mask_after_end(const Architecture& a, Pass& pass, std::vector<uint8_t>& mask) {
  const int32_t end = a.end_ids.empty() ? 2 : a.end_ids.front();
  mask.assign(pass.inputs.ids.size(), 1);
  for (int64_t b = 0; b < pass.inputs.batch; ++b) {
    const auto row = pass.inputs.ids.begin() + b * pass.tokens, after = row + pass.tokens;
    // Until version 4.31 of transformers files had 2, and the id that ends a text was the largest.
    auto at = end == 2 ? std::max_element(row, after) : std::find(row, after, end);
    if (at == after) continue;
    std::fill(mask.begin() + (at - pass.inputs.ids.begin()) + 1,
              mask.begin() + (b + 1) * pass.tokens, uint8_t{0});
  }
  for (size_t i = 0; i < pass.inputs.mask.size(); ++i) {
    if (pass.inputs.mask[i] == 0) mask[i] = 0;
  }
  pass.inputs.mask = mask;
}

// Hidden states are inputs of layers. The last one is the model's last hidden state, or in some
// families the last layer's output.
void add_hidden_states(const Model::Internals& model, const Tensor& states,
                       std::vector<Capture>& captures) {
  if (!states.given()) return;
  const int64_t layers = model.info.num_layers;
  const bool after_layers = model.architecture.family->states_before_norm;
  for (int64_t index = 0; index < layers + (after_layers ? 1 : 0); ++index) {
    captures.push_back({.site = index < layers ? Site::kResidPre : Site::kResidPost,
                        .layer = std::min(index, layers - 1),
                        .out = {states.data + index * states.strides[0],
                                {states.shape[1], states.shape[2], states.shape[3]}}});
  }
}

Status not_open() { return {StatusCode::kOption, "model", "one that was opened", "none"}; }

}  // namespace

Status Model::forward(const ModelInputs& inputs, const ModelOutputs& outputs,
                      Context& context) const {
  return engine::memory_guard([&]() -> Status {
    if (internals_ == nullptr) return not_open();
    const Internals& m = *internals_;
    const ModelInfo& info = m.info;
    Pass pass{.inputs = inputs, .end_layer = info.num_layers};
    MULTIHEAD_TRY(check_source(m, pass));
    MULTIHEAD_TRY(check_inputs(m, pass));
    const int64_t batch = inputs.batch, tokens = pass.tokens, width = info.embed_dim;
    MULTIHEAD_TRY(check_output("hidden_states", outputs.hidden_states,
                               {info.num_layers + 1, batch, tokens, width}));
    MULTIHEAD_TRY(
        check_output("last_hidden_state", outputs.last_hidden_state, {batch, tokens, width}));
    MULTIHEAD_TRY(check_output("pooler_output", outputs.pooler_output, {batch, width}));
    MULTIHEAD_TRY(check_logits(m, pass, outputs.logits));
    if (outputs.source_state.given() && m.encoder == nullptr) {
      return none("source_state", "a model with an encoder");
    }
    MULTIHEAD_TRY(
        check_output("source_state", outputs.source_state, {batch, pass.source.tokens, width}));
    if (outputs.pooler_output.given() && !info.has_pooler) return none("pooler_output", "a pooler");
    MULTIHEAD_TRY(check_maps(m, pass, outputs.maps));
    if (!outputs.captures.empty()) MULTIHEAD_TRY(check_captures(m, pass, outputs.captures));
    std::vector<Capture> captures = captures_of(outputs);
    MULTIHEAD_TRY(check_apart(inputs, captures, outputs));
    add_hidden_states(m, outputs.hidden_states, captures);
    pass.captures = captures;
    if (!outputs.hidden_states.given() && !outputs.last_hidden_state.given() &&
        !outputs.logits.given() && !outputs.pooler_output.given() && !captures.empty()) {
      // The last layer with a capture ends the pass.
      pass.end_layer = 0;
      for (const Capture& capture : captures) {
        pass.end_layer = std::max(pass.end_layer, capture.layer + 1);
      }
    }
    if (info.output == Output::kLanguageModel && outputs.logits.given() &&
        outputs.logits.shape[1] == 1 && !outputs.hidden_states.given() &&
        !outputs.last_hidden_state.given()) {
      pass.only_token = tokens - 1;
    }
    engine::Buffer of_source;
    MULTIHEAD_TRY(run_encoder(m, pass, of_source, context));
    if (outputs.source_state.given()) {
      const Tensor& from = pass.source.state;
      std::copy_n(from.data, from.shape.elements(), outputs.source_state.data);
    }
    Tensor state;
    MULTIHEAD_TRY(run_layers(m, pass, state, context));
    if (outputs.last_hidden_state.given()) {
      std::copy_n(state.data, state.shape.elements(), outputs.last_hidden_state.data);
    }
    if (outputs.hidden_states.given() && !m.architecture.family->states_before_norm) {
      std::copy_n(state.data, state.shape.elements(),
                  outputs.hidden_states.data + info.num_layers * state.shape.elements());
    }
    MULTIHEAD_TRY(compute_outputs(m, pass, state, outputs, context));
    MULTIHEAD_TRY(require_finite(m, pass, "logits", outputs.logits, context));
    return require_finite(m, pass, "pooler_output", outputs.pooler_output, context);
  });
}

Status Model::attentions(const ModelInputs& inputs, int64_t layer, int64_t head, const Tensor& out,
                         Context& context) const {
  const HeadMap map{layer, head, out};
  return forward(inputs, {.maps = {&map, 1}}, context);
}

Status Model::cross_attentions(const ModelInputs& inputs, int64_t layer, int64_t head,
                               const Tensor& out, Context& context) const {
  const HeadMap map{layer, head, out, true};
  return forward(inputs, {.maps = {&map, 1}}, context);
}

Model Model::encoder() const {
  Model model;
  if (internals_ != nullptr && internals_->encoder != nullptr) {
    model.internals_ = {internals_, internals_->encoder.get()};
  }
  return model;
}

Status Model::embed(const ModelInputs& inputs, const EmbedOptions& options, const Tensor& out,
                    Context& context) const {
  return engine::memory_guard([&]() -> Status {
    if (internals_ == nullptr) return not_open();
    const Internals& m = *internals_;
    const ModelInfo& info = m.info;
    MULTIHEAD_TRY(check_one_stack(m, "an encoder: encoder() of the model embeds"));
    MULTIHEAD_TRY(m.sentence.refusal);
    const Pooling pooling = options.pooling.value_or(info.pooling);
    if (pooling == Pooling::kPooler && !info.has_pooler) return none("pooling", "a pooler");
    if (pooling > Pooling::kPooler) {
      return {StatusCode::kOption, "pooling", "a Pooling",
              std::to_string(static_cast<int>(pooling))};
    }
    Pass pass{.inputs = inputs, .end_layer = info.num_layers};
    int64_t most = info.max_seq_length;
    if (most == 0 && options.truncate.value_or(false)) most = info.max_tokens;
    const int64_t row =
        inputs.batch < 1 ? 0 : static_cast<int64_t>(inputs.ids.size()) / inputs.batch;
    std::vector<int32_t> ids, types;
    std::vector<uint8_t> mask, seen;
    if (options.truncate.value_or(true) && most > 0 && row > most) {
      pass.inputs.ids = first_columns(inputs.ids, row, most, ids);
      pass.inputs.mask = first_columns(inputs.mask, row, most, mask);
      pass.inputs.token_types = first_columns(inputs.token_types, row, most, types);
    }
    MULTIHEAD_TRY(check_inputs(m, pass));
    if (m.architecture.family->pools_end && pooling == Pooling::kLastToken) {
      mask_after_end(m.architecture, pass, seen);
    }
    for (int64_t b = 0; b < inputs.batch && !pass.inputs.mask.empty(); ++b) {
      const auto tokens = pass.inputs.mask.subspan(static_cast<size_t>(b * pass.tokens),
                                                   static_cast<size_t>(pass.tokens));
      if (std::count(tokens.begin(), tokens.end(), 0) == pass.tokens) {
        return {StatusCode::kOption, "mask", "a token in each sequence",
                "padding alone in sequence " + std::to_string(b)};
      }
    }
    const Dims shape{inputs.batch, info.vector_dim};
    if (out.data == nullptr) return shape_error("out", shape, out.shape);
    MULTIHEAD_TRY(check_output("out", out, shape));
    Tensor state;
    MULTIHEAD_TRY(run_layers(m, pass, state, context));
    std::vector<float> vectors;
    MULTIHEAD_TRY(compute_vectors(m, pass, state, pooling, options.normalize, vectors, context));
    const ConstTensor numbers(vectors.data(), shape);
    MULTIHEAD_TRY(require_finite(m, pass, "embedding", numbers, context));
    std::copy(vectors.begin(), vectors.end(), out.data);
    return {};
  });
}

}  // namespace multihead::models
