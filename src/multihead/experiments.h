/// \file
/// Part of multihead::lab. Two experiments: heads that start alike become specialized by gradient
/// descent alone.
///
/// kFourJobs: one layer reports four things about every position, each with a read-out of its own:
/// the previous token, the token two back, the latest vowel and the latest star (the token itself
/// included). Sequences of 32 tokens out of 24: 16 plain ones, vowels 16 to 19 (probability 0.22)
/// and stars 20 to 23 (0.10). Each of four heads learns one job; one head of the same size cannot
/// learn all four.
///
/// kInduction: a sequence of 32 tokens out of 32 repeats P distinct tokens, where P is drawn from 6
/// to 16 for each sequence. From position P on, the model predicts the next token. It takes two
/// layers: a head of the first finds the previous token, and one of the last attends to what
/// followed the earlier occurrence (Olsson et al. 2022, arXiv:2209.11895).
///
/// ```
/// Experiment experiment;
/// Status status = Experiment::create({.kind = ExperimentKind::kFourJobs}, experiment);
/// while (status.ok() && !experiment.finished()) status = experiment.step(result, context);
/// status = experiment.evaluate({.ablation = true}, evaluation, context);
/// ```
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "multihead/context.h"
#include "multihead/export.h"
#include "multihead/multi_head_attention.h"
#include "multihead/status.h"
#include "multihead/training.h"
#include "multihead/transformer.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

/// The two experiments that the head of this file describes.
enum class ExperimentKind : uint8_t {
  kFourJobs,   ///< four read-outs, one layer
  kInduction,  ///< the next token, two layers
};

/// Encodings of the order of tokens.
enum class PositionKind : uint8_t {
  kRope,     ///< base 10000
  kLearned,  ///< an embedding for each of the 32 positions
  kAlibi,    ///< alibi_slopes()
  kNone,     ///< only the causal mask
};

/// Options of Experiment::create().
struct ExperimentOptions {
  ExperimentKind kind = ExperimentKind::kFourJobs;  ///< one of the two experiments
  /// 0 uses the experiment's default: 4, or 2 for kInduction. The number of parameters does not
  /// depend on the heads, which share embed_dim: 64, or 32 for kInduction.
  int64_t num_heads = 0;
  int64_t num_layers = 0;                        ///< 0: 1, or 2 for kInduction
  uint64_t seed = 1;                             ///< seed of the initial parameters and of the data
  PositionKind positions = PositionKind::kRope;  ///< encoding of the order of tokens
  int64_t steps = 0;                             ///< 0: 600, or 400 for kInduction
  int64_t batch = 0;            ///< sequences per step; 0: 16, or 32 for kInduction
  float learning_rate = 1e-2F;  ///< learning rate after the warm-up; more than 0
  bool recompute = false;       ///< see TrainerOptions
};

/// Options of Experiment::evaluate().
struct EvaluationOptions {
  int64_t sequences = 128;  ///< how many, from the beginning of the held-out stream
  bool attention = true;    ///< measures Evaluation::attention and head_of_pattern
  bool ablation = false;    ///< measures Evaluation::muted_accuracy: a forward pass for each head
  /// Factor on the output of each head, (num_layers * H), beginning with layer 0; empty for none.
  std::span<const float> head_scales = {};
};

/// Results of Experiment::evaluate(). H is the number of heads of a layer.
struct Evaluation {
  double loss = 0;                   ///< mean cross-entropy in nats
  double accuracy = 0;               ///< share of targets with the largest logit
  std::vector<double> job_accuracy;  ///< (jobs)
  /// Mean attention weight on the keys that a pattern expects, (num_layers, H, patterns).
  std::vector<double> attention;
  /// job_accuracy without one head, (num_layers * H, jobs).
  std::vector<double> muted_accuracy;
  /// The head with the most attention on the keys of each pattern, (patterns), as layer * H + head.
  /// For kInduction, the "previous token" head is searched in the first layer and the "induction"
  /// head in the last.
  std::vector<int64_t> head_of_pattern;
};

/// One of the two experiments: a model, its trainer and its data.
class Experiment {
 public:
  /// Names of the model's predictions: "previous token", "two back", "latest vowel" and "latest
  /// star", or "next token".
  static std::span<const std::string_view> jobs(ExperimentKind kind);
  /// Names of the patterns, the keys that heads should attend to: the names of the four jobs, or
  /// "previous token" and "induction" (all keys that follow an earlier occurrence of the query's
  /// token).
  static std::span<const std::string_view> patterns(ExperimentKind kind);

  /// An experiment without a model: calls that return a Status refuse it, and other members must
  /// not be called before create() has filled it.
  Experiment();
  ~Experiment();
  Experiment(Experiment&&) noexcept;             ///< Movable, not copyable.
  Experiment& operator=(Experiment&&) noexcept;  ///< Movable, not copyable.

  /// Creates the model, its initial parameters and its trainer. The blocks have attention without
  /// an MLP and without biases; RMS norms without gains precede them and the output; AdamW has 50
  /// steps of warm-up. Errors: kOption, kMemory; `experiment` is unchanged.
  [[nodiscard]] static Status create(const ExperimentOptions& options, Experiment& experiment);

  /// Trains on the batch of this step, which depends only on the kind, the seed and the step
  /// number. A restored trainer therefore continues with the batches that would have followed.
  /// Errors: as Trainer::step().
  [[nodiscard]] Status step(TrainingStep& result, Context& context);
  /// True if all steps of the options are done; step() may still be called.
  bool finished() const;

  /// Measures the model on held-out sequences, always the same ones for a kind and seed.
  /// Evaluations do not affect training. Errors: kOption, kShape, kMemory; `result` is unchanged.
  [[nodiscard]] Status evaluate(const EvaluationOptions& options, Evaluation& result,
                                Context& context) const;

  /// Returns sequences first to first + count - 1 of the held-out stream: tokens (count * 32) and
  /// targets (count * 32 * jobs), -1 where a job has no answer yet. Errors: kOption, kMemory.
  [[nodiscard]] Status held_out(int64_t first, int64_t count, std::vector<int32_t>& tokens,
                                std::vector<int32_t>& targets) const;

  /// The options given to create(); zeros are replaced by the experiment's defaults.
  const ExperimentOptions& options() const;
  /// Attention options that every call of model() must use, also in training: ALiBi's slopes, if
  /// positions are kAlibi. Views of this object's memory.
  MultiHeadAttentionOptions attention_options() const;
  /// The model with its current parameters.
  const Transformer& model() const;
  /// The trainer, for example to save and load checkpoints.
  Trainer& trainer();
  /// The trainer, read-only.
  const Trainer& trainer() const;

 private:
  struct Internals;
  std::unique_ptr<Internals> internals_;
};

}  // namespace multihead
MULTIHEAD_PUBLIC_END
