// Numbers that tell how a model continues a sequence, and their gradients.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/run.h"
#include "multihead/analysis.h"

namespace multihead::models {

// A metric for sequences of `tokens` tokens.
class MetricOf {
 public:
  // Errors: kOption.
  static Status create(const Model::Internals& model, const Metric& metric, int64_t tokens,
                       MetricOf& result);

  // The token whose last hidden state is read; -1: all.
  int64_t token() const { return all() ? -1 : position_; }
  // The metrics of sequences with these ids, all `tokens` long, of their last hidden states, as
  // run_layers() gives them for token(). Appends to `results`. Errors: kMemory, kOption.
  Status evaluate(const Tensor& state, std::span<const int32_t> ids, std::vector<double>& results,
                  Context& context) const;
  // The gradient with respect to the last hidden state (tokens, width) of one sequence, which is 0
  // before. Adds the gradients of the output matrix and its bias to `output`, where it has them.
  // Errors: as evaluate().
  Status differentiate(const Tensor& state, std::span<const int32_t> ids, const Tensor& gradient,
                       Context& context, const Projection& output = {}) const;

 private:
  bool all() const { return metric_->kind == Metric::Kind::kMeanLogProbability; }
  // The difference of logits, or its gradient where `gradient` is given.
  double difference(const float* state, float* gradient, const Projection& d_output = {}) const;
  // The metric of one row of logits, which become its gradient unless `d` is empty.
  double of_logits(std::span<const float> logits, int32_t token, std::span<float> d) const;

  const Model::Internals* model_ = nullptr;
  const Metric* metric_ = nullptr;
  int64_t tokens_ = 0, position_ = 0;
};

// Rows of logits that are computed at a time.
inline constexpr int64_t kLogitRows = 16;

// What the softmax of one row of logits says of a token.
struct Rated {
  double log_probability = 0;
  int64_t rank = 0;  // number of likelier tokens
};
Rated rate(std::span<const float> logits, int32_t token);
// Natural log of the sum of exp(logit).
double log_sum_exp(std::span<const float> logits);

// A checked call: a pass over all layers, and its metric where there is one.
struct Question {
  const Model::Internals* model = nullptr;
  Pass pass;
  MetricOf metric;
};
// Errors: kOption for a model that is no causal language model, or has an encoder that the call is
// not for, and the errors of check_inputs(). The state of the source is not computed.
Status ask(const Model& model, const ModelInputs& inputs, const Metric* metric, Question& question,
           bool with_encoder = false);
// Also refuses more than one sequence, padding and edits.
Status ask_one(const Model& model, const ModelInputs& inputs, const Metric& metric,
               Question& question, bool with_encoder = false);

// The error of a metric that is not finite, kOption.
Status require_finite(std::span<const double> metrics);

}  // namespace multihead::models
