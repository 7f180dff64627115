// lens(), log_probabilities() and measure(): what the model predicts, and from where on.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "engine/runtime/scratch.h"
#include "models/metric.h"
#include "models/output.h"
#include "models/sites.h"
#include "nn/call_memory.h"

namespace multihead::models {
namespace {

// Calls each(row, logits) for rows of a last hidden state, a few rows of logits at a time.
Status over_logits(const Model::Internals& m, const Tensor& state, Context& context,
                   const std::function<void(int64_t row, std::span<const float> logits)>& each) {
  const int64_t rows = state.shape[0], width = state.shape[1], vocab = m.info.vocab_size;
  engine::Buffer memory;
  float* logits = nullptr;
  MULTIHEAD_TRY(nn::reserve_floats(memory, kLogitRows * vocab, logits));
  for (int64_t first = 0; first < rows; first += kLogitRows) {
    const int64_t some = std::min(kLogitRows, rows - first);
    const Tensor part(logits, {some, vocab});
    MULTIHEAD_TRY(
        compute_logits(m, ConstTensor(state.data + first * width, {some, width}), part, context));
    if (!all_finite(part, context)) {
      return {StatusCode::kOption, "logits", "finite numbers", "NaN or an infinity"};
    }
    for (int64_t row = 0; row < some; ++row) {
      each(first + row, {logits + row * vocab, static_cast<size_t>(vocab)});
    }
  }
  return {};
}

Status check_lens(const Model::Internals& m, const LensOptions& options) {
  for (const int64_t layer : options.layers) {
    if (layer >= 0 && layer <= m.info.num_layers) continue;
    return {StatusCode::kOption, "layers", "0 to " + std::to_string(m.info.num_layers),
            std::to_string(layer)};
  }
  if (options.top < 0 || options.top > m.info.vocab_size) {
    return {StatusCode::kOption, "top", "0 to " + std::to_string(m.info.vocab_size),
            std::to_string(options.top)};
  }
  for (const int32_t token : options.tokens) {
    if (token >= 0 && token < m.info.vocab_size) continue;
    return {StatusCode::kOption, "tokens", "0 to " + std::to_string(m.info.vocab_size - 1),
            std::to_string(token)};
  }
  return {};
}

}  // namespace

Status lens(const Model& model, const ModelInputs& inputs, const LensOptions& options, Lens& result,
            const Tensor& logits, Context& context) {
  return engine::memory_guard([&]() -> Status {
    Question question;
    MULTIHEAD_TRY(ask(model, inputs, nullptr, question));
    const Model::Internals& m = *question.model;
    Pass& pass = question.pass;
    MULTIHEAD_TRY(check_lens(m, options));
    std::vector<int64_t> layers = options.layers;
    if (layers.empty()) {
      layers.resize(static_cast<size_t>(m.info.num_layers) + 1);
      std::iota(layers.begin(), layers.end(), int64_t{0});
    }
    const int64_t rows = pass.rows(), width = m.info.embed_dim, vocab = m.info.vocab_size;
    const auto count = static_cast<int64_t>(layers.size());
    const Dims shape{count, inputs.batch, pass.tokens, vocab};
    if (logits.given() && (logits.data == nullptr || !(logits.shape == shape) ||
                           !(logits.strides == contiguous_strides(shape)))) {
      return {StatusCode::kShape, "logits", shape.to_string(), logits.shape.to_string()};
    }
    MULTIHEAD_TRY(check_apart(inputs, {}, {.logits = logits}));
    // The residual stream before each layer, and after the last one, before the final norm.
    engine::Buffer memory;
    float* states = nullptr;
    int32_t* order = nullptr;
    MULTIHEAD_TRY(nn::reserve(memory, [&](rules::Arena& take) {
      take(states, nn::saturated_elements({count, rows, width}));
      take(order, static_cast<uint64_t>(vocab));
    }));
    std::vector<Capture> captures;
    for (int64_t at = 0; at < count; ++at) {
      const bool last = layers[static_cast<size_t>(at)] == m.info.num_layers;
      captures.push_back({.site = last ? Site::kResidPost : Site::kResidPre,
                          .layer = layers[static_cast<size_t>(at)] - (last ? 1 : 0),
                          .out = {states + at * rows * width, {inputs.batch, pass.tokens, width}}});
    }
    pass.captures = captures;
    Tensor ignored;
    MULTIHEAD_TRY(run_layers(m, pass, ignored, context));

    Lens made;
    // Logits are written when nothing can fail any more.
    std::vector<float> numbers(static_cast<size_t>(logits.given() ? shape.elements() : 0));
    const Tensor all(states, {count * rows, width});
    MULTIHEAD_TRY(nn::normalize({m.architecture.family->rms_norm, m.architecture.eps}, all,
                                m.parameters.final_norm, all, context));
    MULTIHEAD_TRY(over_logits(m, all, context, [&](int64_t row, std::span<const float> own) {
      if (logits.given()) std::copy(own.begin(), own.end(), numbers.data() + row * vocab);
      const double sum = log_sum_exp(own);
      const auto probability = [&](int32_t id) {
        return static_cast<float>(std::exp(own[static_cast<size_t>(id)] - sum));
      };
      std::iota(order, order + vocab, 0);
      std::partial_sort(order, order + options.top, order + vocab, [&](int32_t a, int32_t b) {
        const float x = own[static_cast<size_t>(a)];
        const float y = own[static_cast<size_t>(b)];
        return x > y || (x == y && a < b);
      });
      for (int64_t i = 0; i < options.top; ++i) {
        made.ids.push_back(order[i]);
        made.probabilities.push_back(probability(order[i]));
      }
      for (const int32_t token : options.tokens) {
        made.ranks.push_back(rate(own, token).rank);
        made.token_probabilities.push_back(probability(token));
      }
    }));
    std::copy(numbers.begin(), numbers.end(), logits.data);
    result = std::move(made);
    return {};
  });
}

Status log_probabilities(const Model& model, const ModelInputs& inputs, TokenProbabilities& result,
                         Context& context) {
  return engine::memory_guard([&]() -> Status {
    Question question;
    MULTIHEAD_TRY(ask(model, inputs, nullptr, question));
    const Model::Internals& m = *question.model;
    const Pass& pass = question.pass;
    Tensor state;
    MULTIHEAD_TRY(run_layers(m, pass, state, context));
    TokenProbabilities made;
    MULTIHEAD_TRY(over_logits(m, state, context, [&](int64_t row, std::span<const float> logits) {
      if ((row + 1) % pass.tokens == 0) return;
      const Rated rated = rate(logits, inputs.ids[static_cast<size_t>(row + 1)]);
      made.values.push_back(static_cast<float>(rated.log_probability));
      made.ranks.push_back(rated.rank);
    }));
    result = std::move(made);
    return {};
  });
}

Status measure(const Model& model, const ModelInputs& inputs, const Metric& metric,
               std::vector<double>& result, Context& context) {
  return engine::memory_guard([&]() -> Status {
    Question question;
    MULTIHEAD_TRY(ask(model, inputs, &metric, question));
    Tensor state;
    MULTIHEAD_TRY(run_layers(*question.model, question.pass, state, context));
    std::vector<double> made;
    MULTIHEAD_TRY(question.metric.evaluate(state, inputs.ids, made, context));
    MULTIHEAD_TRY(require_finite(made));
    result = std::move(made);
    return {};
  });
}

}  // namespace multihead::models
