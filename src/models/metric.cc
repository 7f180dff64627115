#include "models/metric.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "engine/runtime/scratch.h"
#include "models/output.h"
#include "models/source.h"
#include "nn/call_memory.h"

namespace multihead::models {
namespace {

Status token_error(const char* name, int64_t most, int64_t got) {
  return {StatusCode::kOption, name, "0 to " + std::to_string(most), std::to_string(got)};
}

}  // namespace

double log_sum_exp(std::span<const float> logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - most);
  return most + std::log(sum);
}

Rated rate(std::span<const float> logits, int32_t token) {
  const float own = logits[static_cast<size_t>(token)];
  return {.log_probability = own - log_sum_exp(logits),
          .rank = std::count_if(logits.begin(), logits.end(),
                                [&](float logit) { return logit > own; })};
}

Status ask(const Model& model, const ModelInputs& inputs, const Metric* metric, Question& question,
           bool with_encoder) {
  const Model::Internals* const m = Model::Internals::of(model);
  if (m == nullptr) return {StatusCode::kOption, "model", "one that was opened", "none"};
  if (m->info.output != Output::kLanguageModel || !m->info.causal) {
    return {StatusCode::kOption, "model", "a causal language model",
            m->info.model_type + " without one"};
  }
  if (!with_encoder)
    MULTIHEAD_TRY(check_one_stack(*m, "a causal language model without an encoder"));
  question.model = m;
  question.pass = {.inputs = inputs, .end_layer = m->info.num_layers};
  if (with_encoder) MULTIHEAD_TRY(check_source(*m, question.pass));
  MULTIHEAD_TRY(check_inputs(*m, question.pass));
  if (metric == nullptr) return {};
  MULTIHEAD_TRY(MetricOf::create(*m, *metric, question.pass.tokens, question.metric));
  question.pass.only_token = question.metric.token();
  return {};
}

Status ask_one(const Model& model, const ModelInputs& inputs, const Metric& metric,
               Question& question, bool with_encoder) {
  MULTIHEAD_TRY(ask(model, inputs, &metric, question, with_encoder));
  if (inputs.batch != 1) return {StatusCode::kShape, "batch", "1", std::to_string(inputs.batch)};
  if (!inputs.mask.empty() || !inputs.source_mask.empty()) {
    return {StatusCode::kOption, "mask", "none", "a mask"};
  }
  if (!inputs.edits.empty() || !inputs.source_edits.empty()) {
    return {StatusCode::kOption, "edits", "none", "edits"};
  }
  return {};
}

Status require_finite(std::span<const double> metrics) {
  for (const double metric : metrics) {
    if (std::isfinite(metric)) continue;
    return {StatusCode::kOption, "metric", "finite numbers", "NaN or an infinity"};
  }
  return {};
}

Status MetricOf::create(const Model::Internals& model, const Metric& metric, int64_t tokens,
                        MetricOf& result) {
  result.model_ = &model;
  result.metric_ = &metric;
  result.tokens_ = tokens;
  result.position_ = metric.position < 0 ? tokens + metric.position : metric.position;
  const int64_t most = model.info.vocab_size - 1;
  switch (metric.kind) {
    case Metric::Kind::kLogitDifference:
      if (metric.against < 0 || metric.against > most) {
        return token_error("metric.against", most, metric.against);
      }
      [[fallthrough]];
    case Metric::Kind::kLogProbability:
      if (metric.token < 0 || metric.token > most) {
        return token_error("metric.token", most, metric.token);
      }
      break;
    case Metric::Kind::kMeanLogProbability:
      if (tokens > 1) return {};
      return {StatusCode::kShape, "metric", "2 tokens or more for a mean of log-probabilities",
              std::to_string(tokens)};
    case Metric::Kind::kFunction:
      if (metric.function) break;
      return {StatusCode::kOption, "metric.function", "a function", "none"};
    default:
      return {StatusCode::kOption, "metric.kind", "a Metric::Kind",
              std::to_string(static_cast<int>(metric.kind))};
  }
  if (result.position_ >= 0 && result.position_ < tokens) return {};
  return {StatusCode::kOption, "metric.position",
          std::to_string(-tokens) + " to " + std::to_string(tokens - 1),
          std::to_string(metric.position)};
}

double MetricOf::difference(const float* state, float* gradient, const Projection& d_output) const {
  const Parameters& p = model_->parameters;
  const WeightMatrix& matrix = output_matrix(p);
  const Architecture& a = model_->architecture;
  const double cap = a.logit_cap;
  std::vector<float> row(static_cast<size_t>(matrix.columns));
  double result = 0;
  for (const auto& [token, sign] : {std::pair{metric_->token, 1.0}, {metric_->against, -1.0}}) {
    // Cannot fail: the matrix has the row.
    static_cast<void>(dequantize(matrix, {&token, 1}, {row.data(), {1, matrix.columns}}));
    double logit = p.output.bias.given() ? p.output.bias.data[token] : 0.0;
    for (size_t i = 0; i < row.size(); ++i) logit += static_cast<double>(state[i]) * row[i];
    logit *= a.logit_factor;
    if (cap != 0.0) logit = cap * std::tanh(logit / cap);
    result += sign * logit;
    if (gradient == nullptr) continue;
    const double slope = sign * logit_slope(a, logit);
    for (size_t i = 0; i < row.size(); ++i) {
      gradient[i] = static_cast<float>(gradient[i] + slope * row[i]);
    }
    const auto float_slope = static_cast<float>(slope);
    if (d_output.bias.given()) d_output.bias.data[token] += float_slope;
    if (d_output.weight.data == nullptr) continue;
    // Memory of gradients, which is written.
    float* const to =
        static_cast<float*>(const_cast<void*>(d_output.weight.data)) + token * matrix.columns;
    for (size_t i = 0; i < row.size(); ++i) to[i] += float_slope * state[i];
  }
  return result;
}

double MetricOf::of_logits(std::span<const float> logits, int32_t token, std::span<float> d) const {
  if (metric_->kind == Metric::Kind::kFunction) return metric_->function(logits, d);
  if (metric_->kind == Metric::Kind::kLogitDifference) {
    return double{logits[static_cast<size_t>(token)]} -
           logits[static_cast<size_t>(metric_->against)];
  }
  const double sum = log_sum_exp(logits);
  for (size_t i = 0; i < d.size(); ++i) d[i] = static_cast<float>(-std::exp(logits[i] - sum));
  if (!d.empty()) d[static_cast<size_t>(token)] += 1.0F;
  return logits[static_cast<size_t>(token)] - sum;
}

Status MetricOf::evaluate(const Tensor& state, std::span<const int32_t> ids,
                          std::vector<double>& results, Context& context) const {
  const int64_t width = state.shape[1], vocab = model_->info.vocab_size;
  const int64_t count = static_cast<int64_t>(ids.size()) / tokens_;
  const Parameters& p = model_->parameters;
  // A member of a team has only some rows of the matrix, and may lack those of the two tokens.
  const bool is_share = p.output.given() ? p.output.is_share : p.embedding_is_share;
  if (metric_->kind == Metric::Kind::kLogitDifference && !is_share) {
    for (int64_t b = 0; b < count; ++b) {
      results.push_back(difference(state.data + b * width, nullptr));
    }
    return {};
  }
  engine::Buffer memory;
  float* logits = nullptr;
  MULTIHEAD_TRY(nn::reserve_floats(memory, kLogitRows * vocab, logits));
  const int64_t rows = all() ? count * tokens_ : count;
  double sum = 0;
  for (int64_t first = 0; first < rows; first += kLogitRows) {
    const int64_t some = std::min(kLogitRows, rows - first);
    MULTIHEAD_TRY(compute_logits(*model_, ConstTensor(state.data + first * width, {some, width}),
                                 {logits, {some, vocab}}, context));
    for (int64_t row = first; row < first + some; ++row) {
      const std::span<const float> own(logits + (row - first) * vocab, static_cast<size_t>(vocab));
      if (!all()) {
        results.push_back(of_logits(own, metric_->token, {}));
        continue;
      }
      if ((row + 1) % tokens_ != 0) sum += of_logits(own, ids[static_cast<size_t>(row + 1)], {});
      if ((row + 1) % tokens_ != 0) continue;
      results.push_back(sum / static_cast<double>(tokens_ - 1));
      sum = 0;
    }
  }
  return {};
}

Status MetricOf::differentiate(const Tensor& state, std::span<const int32_t> ids,
                               const Tensor& gradient, Context& context,
                               const Projection& output) const {
  const int64_t width = state.shape[1], vocab = model_->info.vocab_size;
  const int64_t first_row = all() ? 0 : position_, end = all() ? tokens_ - 1 : position_ + 1;
  if (metric_->kind == Metric::Kind::kLogitDifference) {
    const double value =
        difference(state.data + position_ * width, gradient.data + position_ * width, output);
    return require_finite({&value, 1});
  }
  engine::Buffer memory;
  float *logits = nullptr, *d_logits = nullptr;
  MULTIHEAD_TRY(nn::reserve(memory, [&](rules::Arena& take) {
    take(logits, nn::saturated_elements({kLogitRows, vocab}));
    take(d_logits, nn::saturated_elements({kLogitRows, vocab}));
  }));
  for (int64_t first = first_row; first < end; first += kLogitRows) {
    const int64_t some = std::min(kLogitRows, end - first);
    MULTIHEAD_TRY(compute_logits(*model_, ConstTensor(state.data + first * width, {some, width}),
                                 {logits, {some, vocab}}, context));
    for (int64_t row = 0; row < some; ++row) {
      const std::span<const float> own(logits + row * vocab, static_cast<size_t>(vocab));
      const std::span<float> d(d_logits + row * vocab, static_cast<size_t>(vocab));
      std::fill(d.begin(), d.end(), 0.0F);
      const auto at = static_cast<size_t>(first + row);
      const double value = of_logits(own, all() ? ids[at + 1] : metric_->token, d);
      MULTIHEAD_TRY(require_finite({&value, 1}));
      if (!std::all_of(d.begin(), d.end(), [](float slope) { return std::isfinite(slope); })) {
        return {StatusCode::kOption, "metric", "a finite gradient", "NaN or an infinity"};
      }
      const double share = all() ? 1.0 / static_cast<double>(tokens_ - 1) : 1.0;
      for (size_t i = 0; i < d.size(); ++i) {
        d[i] = static_cast<float>(d[i] * share * logit_slope(model_->architecture, own[i]));
      }
    }
    MULTIHEAD_TRY(nn::add_gradients(ConstTensor(state.data + first * width, {some, width}),
                                    ConstTensor(d_logits, {some, vocab}), output, context));
    MULTIHEAD_TRY(nn::project_backward(output_matrix(model_->parameters), {d_logits, {some, vocab}},
                                       {gradient.data + first * width, {some, width}}, false,
                                       context));
  }
  return {};
}

}  // namespace multihead::models
