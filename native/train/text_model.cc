#include "text_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "positions.h"
#include "rules/dropout_mask.h"

namespace multihead::train {
namespace {

constexpr int64_t kHeldOutWindows = 32;

// Samples a token from softmax(logits / temperature) with `uniform` in [0, 1). Temperature 0 takes
// the largest logit.
int32_t drawn_token(std::span<const float> logits, double temperature, double uniform) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (temperature == 0) return static_cast<int32_t>(largest - logits.begin());
  std::vector<double> weights;
  double sum = 0;
  for (const float logit : logits) {
    weights.push_back(std::exp(static_cast<double>(logit - *largest) / temperature));
    sum += weights.back();
  }
  double left = uniform * sum;
  size_t token = 0;
  while (token + 1 < weights.size() && left >= weights[token]) left -= weights[token++];
  return static_cast<int32_t>(token);
}

// FNV-1a, truncated to 24 bits.
int64_t vocabulary_hash(const TextData& data) {
  uint32_t hash = 0x811c9dc5U;
  for (const std::string& token : data.vocabulary) {
    for (const char c : token) hash = (hash ^ static_cast<unsigned char>(c)) * 0x01000193U;
  }
  return hash & 0xFFFFFFU;
}

double uniform(uint64_t seed, int64_t step, int64_t index) {
  constexpr uint32_t kSampleStream = 0x80000000U;  // training_windows() uses smaller stream numbers
  const auto words = rules::philox4x32(
      {static_cast<uint32_t>(index), 0, static_cast<uint32_t>(step), kSampleStream},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32U)});
  return words[0] * 0x1p-32;
}

}  // namespace

TextLearner::TextLearner(const TextData& data, const TextOptions& options, const RunOptions& run)
    : data_(data), options_(options), run_(run) {
  prompt_ = encode(data, "--prompt", options.prompt);
  // Without a prompt, the sample continues the first token of the held-out part.
  if (prompt_.empty()) prompt_.assign(1, data.tokens[static_cast<size_t>(data.training)]);
  const PositionKind positions = position_kind(run.positions);
  TransformerConfig config{.block = {.attention = {.embed_dim = options.width,
                                                   .num_heads = options.heads,
                                                   .bias = false},
                                     .mlp_dim = 4 * options.width,
                                     .norm = Norm::kRmsNorm},
                           .num_layers = options.layers,
                           .vocab_size = static_cast<int64_t>(data.vocabulary.size())};
  if (positions == PositionKind::kRope) {
    config.block.attention.rope = {.style = Rope::Style::kHalf};
  } else if (positions == PositionKind::kLearned) {
    config.max_positions = options.context;
  } else if (positions == PositionKind::kAlibi) {
    alibi_slopes_.resize(static_cast<size_t>(options.heads));
    alibi_slopes(alibi_slopes_);
  }
  check(Transformer::create(config, model_));
  // Scale the two products that each layer adds to the residual stream, so that their sum over all
  // layers keeps its size (GPT-2's rule).
  const float residual = 1.0F / std::sqrt(2.0F * static_cast<float>(options.layers));
  check(model_.initialize({.seed = run.seed, .residual = residual}));
  const int64_t warmup = std::min<int64_t>(50, run.steps / 4);
  check(Trainer::create(model_,
                        {.learning_rate = run.learning_rate,
                         .beta2 = 0.95F,
                         .weight_decay = 0.1F,
                         .warmup_steps = warmup,
                         .decay = LearningRateDecay::kCosine,
                         .decay_steps = run.steps - warmup,
                         .final_learning_rate = 0.1F * run.learning_rate,
                         .clip_norm = 1.0F,
                         .seed = run.seed},
                        trainer_));
}

std::string TextLearner::title() const {
  return "text " + options_.file + ", layers: " + std::to_string(options_.layers) +
         ", width: " + std::to_string(options_.width) +
         ", heads: " + std::to_string(options_.heads) + ", seed: " + std::to_string(run_.seed);
}

std::vector<KeptOption> TextLearner::kept_options() const {
  const auto vocabulary = [](int64_t hash) {
    return "a text with vocabulary number " + std::to_string(hash);
  };
  return {{"run.heads", "--heads", options_.heads},
          {"run.positions", "--positions", static_cast<int64_t>(position_kind(run_.positions)),
           position_name},
          {"run.vocabulary", options_.file, vocabulary_hash(data_), vocabulary}};
}

Status TextLearner::step(TrainingStep& result, Context& context) {
  training_windows(data_, run_.seed, trainer_.steps(), run_.batch, options_.context, windows_);
  return trainer_.step(windows_.tokens, run_.batch, windows_.targets, attention_options(), result,
                       context);
}

Status TextLearner::measure(Measurement& result, Context& context) {
  const int64_t count = held_out_windows(data_, kHeldOutWindows, options_.context, windows_);
  const auto classes = data_.vocabulary.size();
  const Dims shape{count, options_.context, static_cast<int64_t>(classes)};
  std::vector<float> logits(static_cast<size_t>(shape.elements()));
  Status status = model_.forward(windows_.tokens, count, attention_options(),
                                 {.logits = {logits.data(), shape}}, context);
  if (!status.ok()) return status;
  double loss = 0, correct = 0;
  for (size_t i = 0; i < windows_.targets.size(); ++i) {
    const std::span<const float> row = std::span(logits).subspan(i * classes, classes);
    const auto largest = std::max_element(row.begin(), row.end());
    double sum = 0;
    for (const float logit : row) sum += std::exp(static_cast<double>(logit - *largest));
    const auto target = static_cast<size_t>(windows_.targets[i]);
    loss += std::log(sum) - static_cast<double>(row[target] - *largest);
    correct += largest - row.begin() == windows_.targets[i] ? 1.0 : 0.0;
  }
  const auto targets = static_cast<double>(windows_.targets.size());
  result = {.loss = static_cast<float>(loss / targets),
            .accuracy = static_cast<float>(correct / targets),
            .jobs = {}};
  return {};
}

void TextLearner::after_step(const TrainingStep& step, Progress& progress, Context& context) {
  if (options_.sample_every == 0 || step.step % options_.sample_every != 0) return;
  progress.line("\n" + sample(context) + "\n");
}

std::string TextLearner::sample(Context& context) const {
  TransformerCache cache;
  check(model_.create_cache({.batch = 1, .capacity = options_.context}, cache), kExitFailed);
  const auto classes = static_cast<int64_t>(data_.vocabulary.size());
  std::vector<float> logits;
  std::vector<int32_t> tokens = prompt_;
  size_t fed = 0;  // tokens that the cache has or has dropped
  for (int64_t index = 0; index < options_.sample; ++index) {
    if (cache.length() + static_cast<int64_t>(tokens.size() - fed) > options_.context) {
      // The cache is full: restart with the second half of the context.
      check(cache.truncate(0), kExitFailed);
      fed = tokens.size() - static_cast<size_t>((options_.context + 1) / 2);
    }
    const std::span<const int32_t> next = std::span(tokens).subspan(fed);
    const Dims shape{1, static_cast<int64_t>(next.size()), classes};
    logits.resize(static_cast<size_t>(shape.elements()));
    check(
        model_.step(next, attention_options(), {.logits = {logits.data(), shape}}, cache, context),
        kExitFailed);
    fed = tokens.size();
    tokens.push_back(drawn_token(std::span(logits).last(static_cast<size_t>(classes)),
                                 options_.temperature,
                                 uniform(run_.seed, trainer_.steps(), index)));
  }
  std::string text;
  for (const int32_t token : tokens) text += data_.vocabulary[static_cast<size_t>(token)];
  return text;
}

}  // namespace multihead::train
