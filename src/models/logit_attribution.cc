// logit_attribution(): what each part of a model adds to a difference of logits.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "models/sweep.h"
#include "nn/call_memory.h"

namespace multihead::models {
namespace {

// Why the parts would not add up to the metric; null if they do.
const char* inexact(const Architecture& a) {
  const Names& names = a.family->names;
  if (a.logit_cap != 0.0F) return "one that caps its logits";
  const bool normalized = names.attention_out_norm != nullptr ||
                          names.attention_sum_norm != nullptr || names.mlp_out_norm != nullptr ||
                          names.mlp_sum_norm != nullptr;
  return normalized ? "one that normalizes what attention and MLP add" : nullptr;
}

double dot(const float* x, const std::vector<double>& weights) {
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) sum += x[i] * weights[i];
  return sum;
}

// What a vector of the residual stream adds to the metric: its product with these weights. Adds the
// part that depends on no vector to `rest`.
std::vector<double> direction(const Model::Internals& m, const Metric& metric, const float* last,
                              double& rest) {
  const Parameters& p = m.parameters;
  const auto width = static_cast<size_t>(m.info.embed_dim);
  std::vector<float> row(width);
  std::vector<double> weights(width);
  for (const auto& [token, sign] : {std::pair{metric.token, 1.0}, {metric.against, -1.0}}) {
    // Cannot fail: the matrix has the row.
    static_cast<void>(
        dequantize(output_matrix(p), {&token, 1}, {row.data(), {1, static_cast<int64_t>(width)}}));
    const double slope = sign * m.architecture.logit_factor;
    for (size_t i = 0; i < width; ++i) weights[i] += slope * row[i];
    if (p.output.bias.given()) rest += slope * p.output.bias.data[token];
  }
  const NormParameters& norm = p.final_norm;
  if (!norm.given()) return weights;
  if (norm.bias.given()) rest += dot(norm.bias.data, weights);
  const bool centered = !m.architecture.family->rms_norm;
  double mean = 0, squares = 0;
  for (size_t i = 0; i < width && centered; ++i) mean += last[i] / static_cast<double>(width);
  for (size_t i = 0; i < width; ++i) squares += (last[i] - mean) * (last[i] - mean);
  const double scale = std::sqrt(squares / static_cast<double>(width) + m.architecture.eps);
  double weight_mean = 0;
  for (size_t i = 0; i < width; ++i) {
    weights[i] *= norm.weight.data[i] / scale;
    weight_mean += weights[i] / static_cast<double>(width);
  }
  // The norm subtracts the mean of a vector: the same as subtracting the mean of the weights.
  for (size_t i = 0; i < width && centered; ++i) weights[i] -= weight_mean;
  return weights;
}

}  // namespace

Status logit_attribution(const Model& model, const ModelInputs& inputs, const Metric& metric,
                         LogitAttribution& result, Context& context) {
  return engine::memory_guard([&]() -> Status {
    Question question;
    MULTIHEAD_TRY(ask_one(model, inputs, metric, question));
    const Model::Internals& m = *question.model;
    if (metric.kind != Metric::Kind::kLogitDifference) {
      return {StatusCode::kOption, "metric", "a difference of logits", "another metric"};
    }
    if (const char* const reason = inexact(m.architecture)) {
      return {StatusCode::kOption, "model", "one whose parts add up to its logits", reason};
    }
    Pass& pass = question.pass;
    const int64_t tokens = pass.tokens, layers = m.info.num_layers, width = m.info.embed_dim;
    const int64_t heads = m.info.num_heads, head_dim = m.info.head_dim;
    const int64_t at = question.metric.token();
    Values z, mlp;
    MULTIHEAD_TRY(z.reserve(question, Site::kZ));
    MULTIHEAD_TRY(mlp.reserve(question, Site::kMlpOut));
    engine::Buffer memory;
    float *first = nullptr, *last = nullptr;
    MULTIHEAD_TRY(nn::reserve(memory, [&](rules::Arena& take) {
      take(first, nn::saturated_elements({tokens, width}));
      take(last, nn::saturated_elements({tokens, width}));
    }));
    std::vector<Capture> captures;
    z.capture(captures);
    mlp.capture(captures);
    if (layers > 0) {
      const Dims shape{1, tokens, width};
      captures.push_back({.site = Site::kResidPre, .layer = 0, .out = {first, shape}});
      captures.push_back({.site = Site::kResidPost, .layer = layers - 1, .out = {last, shape}});
    }
    pass.captures = captures;
    Tensor state;
    MULTIHEAD_TRY(run_layers(m, pass, state, context));
    std::vector<double> metrics;
    MULTIHEAD_TRY(question.metric.evaluate(state, inputs.ids, metrics, context));
    MULTIHEAD_TRY(require_finite(metrics));

    LogitAttribution made;
    double rest = 0;
    const std::vector<double> weights = direction(m, metric, last + at * width, rest);
    // Outputs of heads are taken before the residual factor, outputs of MLPs after it.
    const double factor = m.architecture.residual_factor;
    std::vector<float> as_floats(weights.begin(), weights.end());
    for (float& weight : as_floats) weight = static_cast<float>(weight * factor);
    std::vector<float> of_heads(static_cast<size_t>(heads * head_dim));
    for (int64_t layer = 0; layer < layers; ++layer) {
      const LayerPlan& plan = m.architecture.layers[static_cast<size_t>(layer)];
      const LayerParameters& p = m.parameters.layers[static_cast<size_t>(plan.weights)];
      MULTIHEAD_TRY(nn::project_backward(p.o.weight, {as_floats.data(), {1, width}},
                                         {of_heads.data(), {1, heads * head_dim}}, false, context));
      const float* const own = z.of(layer).data + at * heads * head_dim;
      for (int64_t head = 0; head < heads; ++head) {
        double sum = 0;
        for (int64_t i = head * head_dim; i < (head + 1) * head_dim; ++i) {
          sum += static_cast<double>(own[i]) * of_heads[static_cast<size_t>(i)];
        }
        made.heads.push_back(static_cast<float>(sum));
      }
      made.mlp.push_back(static_cast<float>(dot(mlp.of(layer).data + at * width, weights)));
      if (p.o.bias.given()) rest += factor * dot(p.o.bias.data, weights);
    }
    made.embedding = static_cast<float>(dot(first + at * width, weights));
    made.rest = static_cast<float>(rest);
    made.metric = static_cast<float>(metrics[0]);
    result = std::move(made);
    return {};
  });
}

}  // namespace multihead::models
