#include "models/output.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/error/error.h"
#include "engine/layers/elementwise.h"
#include "multihead/elementwise.h"
#include "multihead/weights.h"

namespace multihead::models {
namespace {

// Row `token` of each sequence.
ConstTensor rows_of(const Pass& pass, const Tensor& state, int64_t token) {
  const int64_t width = state.shape[1];
  return {state.data + token * width, {pass.inputs.batch, width}, {pass.tokens * width, 1}};
}

void apply_tanh(std::vector<float>& values) {
  for (float& value : values) value = std::tanh(value);
}

// The last token of each sequence that is not padding.
std::vector<float> last_tokens(const Architecture& a, const Pass& pass, const Tensor& state) {
  const int64_t width = state.shape[1], tokens = pass.tokens;
  std::vector<float> result(static_cast<size_t>(pass.inputs.batch * width));
  for (int64_t b = 0; b < pass.inputs.batch; ++b) {
    int64_t last = tokens - 1;
    const int32_t* const ids = pass.inputs.ids.data() + b * tokens;
    if (a.padding_id >= 0) {
      while (last > 0 && ids[last] == a.padding_id) --last;
    }
    std::copy_n(state.data + (b * tokens + last) * width, width, result.data() + b * width);
  }
  return result;
}

Status compute_classes(const Model::Internals& model, const Pass& pass, const Tensor& state,
                       const std::vector<float>& pooled, const Tensor& logits, Context& context) {
  const Architecture& a = model.architecture;
  const Parameters& p = model.parameters;
  const int64_t batch = pass.inputs.batch;
  std::vector<float> kept;
  ConstTensor input = rows_of(pass, state, 0);
  switch (a.family->classifier) {
    case Classifier::kFirst:
      break;
    case Classifier::kPooler:
      input = {pooled.data(), {batch, a.width}};
      break;
    case Classifier::kLastToken:
      kept = last_tokens(a, pass, state);
      input = {kept.data(), {batch, a.width}};
      break;
    case Classifier::kFirstTanh:
    case Classifier::kFirstRelu: {
      kept.resize(static_cast<size_t>(batch * a.width));
      const Tensor dense(kept.data(), {batch, a.width});
      MULTIHEAD_TRY(project(input, p.classifier_dense, dense, context));
      if (a.family->classifier == Classifier::kFirstTanh) {
        apply_tanh(kept);
      } else {
        MULTIHEAD_TRY(activate(dense, Activation::kRelu, dense, context));
      }
      input = dense;
      break;
    }
  }
  return project(input, p.classifier, {logits.data, {batch, model.info.num_labels}}, context);
}

// Dense, activation and norm before the output matrix of a masked language model.
Status compute_masked(const Model::Internals& model, const Tensor& state, const Tensor& logits,
                      Context& context) {
  const Architecture& a = model.architecture;
  const Parameters& p = model.parameters;
  const int64_t rows = state.shape[0], width = a.embedding_width;
  std::vector<float> transformed(static_cast<size_t>(rows * width));
  const Tensor t(transformed.data(), {rows, width});
  MULTIHEAD_TRY(project(state, p.transform, t, context));
  // RoBERTa's and MPNet's code has the exact GELU here, whatever the configuration says.
  const bool fixed = a.family->positions_after_padding;
  MULTIHEAD_TRY(activate(t, fixed ? Activation::kGelu : a.activation, t, context));
  MULTIHEAD_TRY(normalize(a, false, t, p.transform_norm, t, context));
  return compute_logits(model, t, logits, context);
}

}  // namespace

Status compute_logits(const Model::Internals& model, const ConstTensor& state, const Tensor& logits,
                      Context& context) {
  const Architecture& a = model.architecture;
  const Parameters& p = model.parameters;
  const WeightMatrix& matrix = p.output.given() ? p.output.weight : p.embedding;
  MULTIHEAD_TRY(linear(state, matrix, p.output.bias.view(), logits, context));
  if (a.logit_cap == 0.0F) return {};
  engine::over_rows(logits.shape.elements(), 16, context, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      logits.data[i] = a.logit_cap * std::tanh(logits.data[i] / a.logit_cap);
    }
  });
  return {};
}

Status compute_outputs(const Model::Internals& model, const Pass& pass, const Tensor& state,
                       const ModelOutputs& outputs, Context& context) {
  const Parameters& p = model.parameters;
  const ModelInfo& info = model.info;
  const int64_t batch = pass.inputs.batch, width = info.embed_dim;
  std::vector<float> pooled;
  const bool pools_for_classes = info.output == Output::kClassification &&
                                 model.architecture.family->classifier == Classifier::kPooler &&
                                 outputs.logits.given();
  if (outputs.pooler_output.given() || pools_for_classes) {
    pooled.resize(static_cast<size_t>(batch * width));
    MULTIHEAD_TRY(
        project(rows_of(pass, state, 0), p.pooler, {pooled.data(), {batch, width}}, context));
    apply_tanh(pooled);
    if (outputs.pooler_output.given()) {
      std::copy(pooled.begin(), pooled.end(), outputs.pooler_output.data);
    }
  }
  const Tensor& logits = outputs.logits;
  if (!logits.given()) return {};
  switch (info.output) {
    case Output::kNone:
      return {};
    case Output::kClassification:
      return compute_classes(model, pass, state, pooled, logits, context);
    case Output::kTokenClassification:
    case Output::kQuestionAnswering:
      return project(state, p.classifier, {logits.data, {pass.rows(), info.num_labels}}, context);
    case Output::kMaskedLanguageModel:
      return compute_masked(model, state, {logits.data, {pass.rows(), info.vocab_size}}, context);
    case Output::kLanguageModel:
      break;
  }
  const bool last = logits.shape[1] == 1;
  const ConstTensor rows = last && state.shape[0] == pass.rows()
                               ? rows_of(pass, state, pass.tokens - 1)
                               : ConstTensor(state);
  return compute_logits(model, rows, {logits.data, {rows.shape[0], info.vocab_size}}, context);
}

Status not_finite(const Model::Internals& model, Pass pass, std::string_view name,
                  Context& context) {
  int64_t layer = pass.end_layer;
  pass.first_not_finite = &layer;
  pass.hidden_states = {};
  pass.maps = {};
  Tensor state;
  MULTIHEAD_TRY(run_layers(model, pass, false, state, context));
  std::string got = "NaN or an infinity, first in the output of layer " + std::to_string(layer);
  if (layer < 0) got = "NaN or an infinity, first in the embedding of the tokens";
  if (layer == pass.end_layer) {
    got = all_finite(state, context) ? "NaN or an infinity, although every layer's output is finite"
                                     : "NaN or an infinity, first in the output of the final norm";
  }
  return {StatusCode::kOption, name, "finite numbers", got};
}

Status require_finite(const Model::Internals& model, const Pass& pass, std::string_view name,
                      const ConstTensor& numbers, Context& context) {
  if (!numbers.given() || all_finite(numbers, context)) return {};
  return not_finite(model, pass, name, context);
}

}  // namespace multihead::models
