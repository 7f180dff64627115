#include "models/output.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/error/error.h"
#include "engine/layers/elementwise.h"
#include "engine/runtime/scratch.h"
#include "multihead/attention.h"
#include "multihead/elementwise.h"
#include "multihead/weights.h"
#include "nn/call_memory.h"

namespace multihead::models {
namespace {

// Row `token` of each sequence.
ConstTensor rows_of(const Pass& pass, const Tensor& state, int64_t token) {
  const int64_t width = state.shape[1];
  return {state.data + token * width, {pass.inputs.batch, width}, {pass.tokens * width, 1}};
}

// Memory for an array (rows, columns), which lives as long as the buffer.
Status take(engine::Buffer& buffer, int64_t rows, int64_t columns, Tensor& array) {
  const uint64_t bytes = nn::saturated_elements({rows, columns}) * sizeof(float);
  if (!buffer.reserve(bytes)) return Status::out_of_memory(bytes);
  array = {static_cast<float*>(buffer.data()), {rows, columns}};
  return {};
}

void apply_tanh(const Tensor& array) {
  for (int64_t i = 0; i < array.shape.elements(); ++i) array.data[i] = std::tanh(array.data[i]);
}

// Copies the last token of each sequence that is not padding.
void copy_last_tokens(const Architecture& a, const Pass& pass, const Tensor& state,
                      const Tensor& to) {
  const int64_t width = state.shape[1], tokens = pass.tokens;
  for (int64_t b = 0; b < pass.inputs.batch; ++b) {
    int64_t last = tokens - 1;
    const int32_t* const ids = pass.inputs.ids.data() + b * tokens;
    if (a.padding_id >= 0) {
      while (last > 0 && ids[last] == a.padding_id) --last;
    }
    std::copy_n(state.data + (b * tokens + last) * width, width, to.data + b * width);
  }
}

// Writes the mean of each sequence's real tokens.
void copy_means(const Pass& pass, const Tensor& state, const Tensor& to) {
  const int64_t width = state.shape[1], tokens = pass.tokens;
  const std::span<const uint8_t> mask = pass.inputs.mask;
  for (int64_t b = 0; b < pass.inputs.batch; ++b) {
    std::vector<double> sum(static_cast<size_t>(width));
    double count = 0;
    for (int64_t row = b * tokens; row < (b + 1) * tokens; ++row) {
      if (!mask.empty() && mask[static_cast<size_t>(row)] == 0) continue;
      for (int64_t c = 0; c < width; ++c) {
        sum[static_cast<size_t>(c)] += state.data[row * width + c];
      }
      ++count;
    }
    for (int64_t c = 0; c < width; ++c) {
      to.data[b * width + c] = static_cast<float>(sum[static_cast<size_t>(c)] / count);
    }
  }
}

// The first token, and the mean of the patches.
void copy_first_and_mean(const Architecture& a, const Pass& pass, const Tensor& state,
                         const Tensor& to) {
  const int64_t width = state.shape[1], patches = pass.tokens - a.first_tokens;
  for (int64_t b = 0; b < pass.inputs.batch; ++b) {
    const float* const first = state.data + b * pass.tokens * width;
    float* const out = to.data + b * 2 * width;
    std::copy_n(first, width, out);
    for (int64_t c = 0; c < width; ++c) {
      double sum = 0;
      for (int64_t row = a.first_tokens; row < pass.tokens; ++row) sum += first[row * width + c];
      out[width + c] = static_cast<float>(sum / static_cast<double>(patches));
    }
  }
}

// The activation of the MLPs (see Layer::mlp in layer_graph.cc), in place.
Status activate_as_mlp(const Architecture& a, const Tensor& x, Context& context) {
  const float factor = a.activation_factor;
  const int64_t size = x.shape.elements();
  for (int64_t i = 0; i < size && factor != 1.0F; ++i) x.data[i] *= factor;
  MULTIHEAD_TRY(activate(x, a.activation, x, context));
  for (int64_t i = 0; i < size && factor != 1.0F; ++i) x.data[i] /= factor;
  for (int64_t i = 0; i < size && a.squares; ++i) x.data[i] *= x.data[i];
  return {};
}

// Dense, activation and norm before the output matrix of a masked language model.
Status transform(const Model::Internals& model, const ConstTensor& state, const Tensor& to,
                 Context& context) {
  const Architecture& a = model.architecture;
  const Parameters& p = model.parameters;
  MULTIHEAD_TRY(nn::project(state, p.transform, to, context));
  MULTIHEAD_TRY(a.family->transform_gelu ? activate(to, Activation::kGelu, to, context)
                                         : activate_as_mlp(a, to, context));
  return nn::normalize({false, a.eps}, to, p.transform_norm, to, context);
}

Status compute_classes(const Model::Internals& model, const Pass& pass, const Tensor& state,
                       const Tensor& pooled, const Tensor& logits, Context& context) {
  const Architecture& a = model.architecture;
  const Parameters& p = model.parameters;
  const int64_t batch = pass.inputs.batch;
  engine::Buffer memory, memory_of_means;
  Tensor kept;
  ConstTensor input = rows_of(pass, state, 0);
  switch (a.family->classifier) {
    case Classifier::kFirst:
      break;
    case Classifier::kPooler:
      input = pooled;
      break;
    case Classifier::kLastToken:
      MULTIHEAD_TRY(take(memory, batch, a.width, kept));
      copy_last_tokens(a, pass, state, kept);
      input = kept;
      break;
    case Classifier::kTransform:
      if (a.classifies_mean) {
        MULTIHEAD_TRY(take(memory_of_means, batch, a.width, kept));
        copy_means(pass, state, kept);
        input = kept;
      }
      MULTIHEAD_TRY(take(memory, batch, a.width, kept));
      MULTIHEAD_TRY(transform(model, input, kept, context));
      input = kept;
      break;
    case Classifier::kFirstAndMean:
      MULTIHEAD_TRY(take(memory, batch, 2 * a.width, kept));
      copy_first_and_mean(a, pass, state, kept);
      input = kept;
      break;
    case Classifier::kFirstTanh:
    case Classifier::kFirstRelu:
    case Classifier::kFirstGelu: {
      MULTIHEAD_TRY(take(memory, batch, a.width, kept));
      MULTIHEAD_TRY(nn::project(input, p.classifier_dense, kept, context));
      if (a.family->classifier == Classifier::kFirstTanh) {
        apply_tanh(kept);
      } else {
        const bool gelu = a.family->classifier == Classifier::kFirstGelu;
        MULTIHEAD_TRY(activate(kept, gelu ? Activation::kGelu : Activation::kRelu, kept, context));
      }
      input = kept;
      break;
    }
  }
  const int64_t labels = model.info.num_labels;
  MULTIHEAD_TRY(nn::project(input, p.classifier, {logits.data, {batch, labels}}, context));
  if (!p.distilled.given()) return {};
  MULTIHEAD_TRY(take(memory, batch, labels, kept));
  MULTIHEAD_TRY(nn::project(rows_of(pass, state, 1), p.distilled, kept, context));
  for (int64_t i = 0; i < batch * labels; ++i) {
    logits.data[i] = (logits.data[i] + kept.data[i]) / 2.0F;
  }
  return {};
}

Status compute_masked(const Model::Internals& model, const Tensor& state, const Tensor& logits,
                      Context& context) {
  const Architecture& a = model.architecture;
  const Parameters& p = model.parameters;
  if (!p.transform.given()) return compute_logits(model, state, logits, context);
  const int64_t rows = state.shape[0], width = a.embedding_width;
  engine::Buffer memory;
  Tensor t;
  MULTIHEAD_TRY(take(memory, rows, width, t));
  MULTIHEAD_TRY(transform(model, state, t, context));
  return compute_logits(model, t, logits, context);
}

// The learned query's attention to all tokens of a sequence, plus an MLP of it.
Status pool_by_attention(const Architecture& a, const AttentionPooler& p, const Pass& pass,
                         const Tensor& state, const Tensor& pooled, Context& context) {
  const int64_t batch = pass.inputs.batch, width = a.width, tokens = pass.tokens;
  engine::Buffer of_query, of_keys, of_heads, of_norm, of_hidden;
  Tensor query, keys, heads, normed, hidden;
  MULTIHEAD_TRY(take(of_query, batch, width, query));
  MULTIHEAD_TRY(take(of_keys, batch * tokens, 2 * width, keys));
  MULTIHEAD_TRY(take(of_heads, batch, width, heads));
  MULTIHEAD_TRY(take(of_norm, batch, width, normed));
  MULTIHEAD_TRY(take(of_hidden, batch, a.mlp, hidden));
  // Rows of the matrix: query, then key and value.
  const float* const bias = p.qkv.bias.data;
  for (int64_t b = 0; b < batch; ++b) {
    MULTIHEAD_TRY(linear(ConstTensor(p.probe.data, {1, width}), p.qkv.weight.part(0, width),
                         ConstTensor(bias, {width}), {query.data + b * width, {1, width}},
                         context));
  }
  MULTIHEAD_TRY(linear(state, p.qkv.weight.part(width, 2 * width),
                       ConstTensor(bias + width, {2 * width}), keys, context));
  const int64_t d = a.head_dim;
  const auto split = [&](float* data, int64_t rows, int64_t row) {
    return ConstTensor(data, {batch, a.heads, rows, d}, {rows * row, d, row, 1});
  };
  const Tensor z(heads.data, {batch, a.heads, 1, d}, {width, d, width, 1});
  MULTIHEAD_TRY(attention(split(query.data, 1, width), split(keys.data, tokens, 2 * width),
                          split(keys.data + width, tokens, 2 * width), {}, {.out = z}, context));
  MULTIHEAD_TRY(nn::project(heads, p.o, pooled, context));
  MULTIHEAD_TRY(nn::normalize({false, a.eps}, pooled, p.norm, normed, context));
  MULTIHEAD_TRY(nn::project(normed, p.up, hidden, context));
  MULTIHEAD_TRY(activate_as_mlp(a, hidden, context));
  MULTIHEAD_TRY(nn::project(hidden, p.down, heads, context));
  for (int64_t i = 0; i < batch * width; ++i) pooled.data[i] += heads.data[i];
  return {};
}

}  // namespace

Status compute_pooled(const Model::Internals& model, const Pass& pass, const Tensor& state,
                      const Tensor& pooled, Context& context) {
  const Parameters& p = model.parameters;
  if (p.attention_pooler.probe.given()) {
    return pool_by_attention(model.architecture, p.attention_pooler, pass, state, pooled, context);
  }
  MULTIHEAD_TRY(nn::project(rows_of(pass, state, 0), p.pooler, pooled, context));
  apply_tanh(pooled);
  return {};
}

double logit_slope(const Architecture& a, double logit) {
  const double bent = a.logit_cap == 0.0F ? 0.0 : logit / a.logit_cap;
  return a.logit_factor * (1.0 - bent * bent);
}

Status compute_logits(const Model::Internals& model, const ConstTensor& state, const Tensor& logits,
                      Context& context) {
  const Architecture& a = model.architecture;
  const Parameters& p = model.parameters;
  MULTIHEAD_TRY(linear(state, output_matrix(p), p.output.bias.view(), logits, context));
  if (a.logit_cap == 0.0F && a.logit_factor == 1.0F) return {};
  engine::over_rows(logits.shape.elements(), 16, context, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      float& logit = logits.data[i];
      logit *= a.logit_factor;
      if (a.logit_cap != 0.0F) logit = a.logit_cap * std::tanh(logit / a.logit_cap);
    }
  });
  return {};
}

Status compute_outputs(const Model::Internals& model, const Pass& pass, const Tensor& state,
                       const ModelOutputs& outputs, Context& context) {
  const Parameters& p = model.parameters;
  const ModelInfo& info = model.info;
  const int64_t batch = pass.inputs.batch, width = info.embed_dim;
  engine::Buffer memory;
  Tensor pooled;
  const bool pools_for_classes = info.output == Output::kClassification &&
                                 model.architecture.family->classifier == Classifier::kPooler &&
                                 outputs.logits.given();
  if (outputs.pooler_output.given() || pools_for_classes) {
    MULTIHEAD_TRY(take(memory, batch, width, pooled));
    MULTIHEAD_TRY(compute_pooled(model, pass, state, pooled, context));
    if (outputs.pooler_output.given()) {
      std::copy_n(pooled.data, batch * width, outputs.pooler_output.data);
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
    case Output::kQuestionAnswering: {
      ConstTensor input = state;
      engine::Buffer kept;
      if (p.transform.given()) {
        Tensor transformed;
        MULTIHEAD_TRY(take(kept, pass.rows(), width, transformed));
        MULTIHEAD_TRY(transform(model, state, transformed, context));
        input = transformed;
      }
      return nn::project(input, p.classifier, {logits.data, {pass.rows(), info.num_labels}},
                         context);
    }
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
  pass.only_token = -1;
  pass.captures = {};
  Tensor state;
  MULTIHEAD_TRY(run_layers(model, pass, state, context));
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
