// Experiment::evaluate(): the model's accuracy, and the head that attends most to each pattern.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "lab/attention_patterns.h"
#include "lab/experiment.h"
#include "multihead/experiments.h"

namespace multihead {
namespace {

using lab::Mean;

std::vector<double> values_of(const std::vector<Mean>& means) {
  std::vector<double> values;
  values.reserve(means.size());
  for (const Mean& mean : means) values.push_back(mean.value());
  return values;
}

// Loss and accuracy of the model's answers over any number of chunks of sequences.
struct Answers {
  Mean loss = {}, accuracy = {};
  std::vector<Mean> job_accuracy;

  // Adds logits (targets, classes). Target i belongs to job i % jobs.
  void add(std::span<const float> logits, std::span<const int32_t> targets) {
    const size_t classes = logits.size() / targets.size();
    for (size_t i = 0; i < targets.size(); ++i) {
      if (targets[i] < 0) continue;
      const std::span<const float> row = logits.subspan(i * classes, classes);
      const auto largest = std::max_element(row.begin(), row.end());
      double sum = 0;
      for (const float logit : row) sum += std::exp(static_cast<double>(logit - *largest));
      const auto target = static_cast<size_t>(targets[i]);
      const double right = largest - row.begin() == targets[i] ? 1.0 : 0.0;
      loss.add(std::log(sum) - static_cast<double>(row[target] - *largest));
      accuracy.add(right);
      job_accuracy[i % job_accuracy.size()].add(right);
    }
  }
};

// A chunk of held-out sequences, with memory for the model's outputs.
class Chunk {
 public:
  Chunk(const Transformer& model, const MultiHeadAttentionOptions& options, Context& context)
      : model_(model), options_(options), context_(context) {}

  std::vector<int32_t> tokens, targets;

  int64_t sequences() const { return static_cast<int64_t>(tokens.size()) / lab::kExperimentLength; }

  Status answer(std::span<const float> head_scales, std::span<Trace> traces, Answers& answers) {
    const int64_t classes = model_.config().vocab_size * model_.config().num_readouts;
    const Dims shape{sequences(), lab::kExperimentLength, classes};
    logits_.resize(static_cast<size_t>(shape.elements()));
    MultiHeadAttentionOptions options = options_;
    options.heads.head_scales = head_scales;
    MULTIHEAD_TRY(model_.forward(tokens, sequences(), options,
                                 {.logits = {logits_.data(), shape}, .traces = traces}, context_));
    answers.add(logits_, targets);
    return {};
  }

 private:
  const Transformer& model_;
  const MultiHeadAttentionOptions& options_;
  Context& context_;
  std::vector<float> logits_;
};

// Adds the attention of one layer's heads to `means` (H, patterns).
void add_attention(ExperimentKind kind, const Trace& trace, const Chunk& chunk, int64_t heads,
                   std::span<Mean> means) {
  const int64_t length = lab::kExperimentLength;
  const auto patterns = static_cast<int64_t>(Experiment::patterns(kind).size());
  const float* row = trace.find("weights")->values.data();
  for (int64_t sequence = 0; sequence < chunk.sequences(); ++sequence) {
    const std::span<const int32_t> tokens =
        std::span(chunk.tokens)
            .subspan(static_cast<size_t>(sequence * length), static_cast<size_t>(length));
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t position = 0; position < length; ++position, row += length) {
        for (int64_t pattern = 0; pattern < patterns; ++pattern) {
          const double weight = lab::pattern_attention(kind, pattern, tokens, position, row);
          if (weight >= 0) means[static_cast<size_t>(head * patterns + pattern)].add(weight);
        }
      }
    }
  }
}

// Implements Evaluation::head_of_pattern.
std::vector<int64_t> find_heads(const ExperimentOptions& options,
                                const std::vector<double>& attention) {
  const auto patterns = static_cast<int64_t>(Experiment::patterns(options.kind).size());
  std::vector<int64_t> found;
  for (int64_t pattern = 0; pattern < patterns; ++pattern) {
    int64_t first = 0, last = options.num_layers - 1;
    if (options.kind == ExperimentKind::kInduction) {
      if (pattern == 0)
        last = 0;
      else
        first = last;
    }
    int64_t best = first * options.num_heads;
    const auto weight = [&](int64_t head) {
      return attention[static_cast<size_t>(head * patterns + pattern)];
    };
    for (int64_t head = best; head < (last + 1) * options.num_heads; ++head) {
      if (weight(head) > weight(best)) best = head;
    }
    found.push_back(best);
  }
  return found;
}

}  // namespace

Status Experiment::evaluate(const EvaluationOptions& options, Evaluation& result,
                            Context& context) const {
  constexpr int64_t kMostSequences = 1 << 20;
  if (internals_ == nullptr) return engine::option_error(Name::kExperiment, Message::kCreated);
  if (options.sequences < 1 || options.sequences > kMostSequences) {
    return engine::option_error(Name::kSequences, Message::kRange, 1, kMostSequences,
                                options.sequences);
  }
  const ExperimentOptions& own = internals_->options;
  const auto heads = static_cast<size_t>(own.num_heads * own.num_layers);
  if (!options.head_scales.empty() && options.head_scales.size() != heads) {
    return engine::shape_error(Name::kHeadScales, Message::kValueCount, static_cast<int64_t>(heads),
                               static_cast<int64_t>(options.head_scales.size()));
  }
  return engine::memory_guard([&]() -> Status {
    constexpr int64_t kChunk = 64;  // sequences per chunk; bounds the memory of logits and weights
    const size_t pattern_count = patterns(own.kind).size();
    const MultiHeadAttentionOptions call = attention_options();
    Chunk chunk(internals_->model, call, context);
    Answers answers{.job_accuracy = std::vector<Mean>(jobs(own.kind).size())};
    std::vector<Answers> muted(options.ablation ? heads : 0, answers);
    std::vector<Mean> attention(options.attention ? heads * pattern_count : 0);
    std::vector<Trace> traces(options.attention ? static_cast<size_t>(own.num_layers) : 0,
                              Trace{.wanted = {"weights"}});
    for (int64_t first = 0; first < options.sequences; first += kChunk) {
      const int64_t count = std::min(kChunk, options.sequences - first);
      lab::draw_batch(own, lab::DataStream::kHeldOut, 0, first, count, chunk.tokens, chunk.targets);
      MULTIHEAD_TRY(chunk.answer(options.head_scales, traces, answers));
      for (size_t layer = 0; layer < traces.size(); ++layer) {
        const size_t size = heads * pattern_count / traces.size();
        add_attention(own.kind, traces[layer], chunk, own.num_heads,
                      std::span(attention).subspan(layer * size, size));
      }
      for (size_t head = 0; head < muted.size(); ++head) {
        std::vector<float> scales(options.head_scales.begin(), options.head_scales.end());
        scales.resize(heads, 1.0F);
        scales[head] = 0.0F;
        MULTIHEAD_TRY(chunk.answer(scales, {}, muted[head]));
      }
    }
    Evaluation made;
    made.loss = answers.loss.value();
    made.accuracy = answers.accuracy.value();
    made.job_accuracy = values_of(answers.job_accuracy);
    made.attention = values_of(attention);
    if (options.attention) made.head_of_pattern = find_heads(own, made.attention);
    for (const Answers& without : muted) {
      for (const Mean& job : without.job_accuracy) made.muted_accuracy.push_back(job.value());
    }
    result = std::move(made);
    return {};
  });
}

}  // namespace multihead
