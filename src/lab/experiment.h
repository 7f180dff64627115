// The two experiments: their state, and their sequences of tokens, targets, and keys that hold the
// answers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "multihead/experiments.h"

namespace multihead {

struct Experiment::Internals {
  ExperimentOptions options;  // zeros replaced by defaults
  std::vector<float> alibi_slopes;
  Transformer model;
  Trainer trainer;
  std::vector<int32_t> tokens, targets;  // last batch
};

namespace lab {

inline constexpr int64_t kExperimentLength = 32;  // tokens per sequence

inline constexpr int32_t kFirstVowel = 16, kFirstStar = 20;  // tokens of kFourJobs

// Sizes of the model that learns the sequences, and of its training.
struct ExperimentSize {
  int64_t vocab_size, embed_dim, num_heads, num_layers, batch, steps;
};
ExperimentSize experiment_size(ExperimentKind kind);

enum class DataStream : uint32_t { kTraining = 0, kHeldOut = 1 };

// Identifies a sequence. Its content depends only on this struct and the kind, and is computed in
// integers, so every build draws the same sequence.
struct SequenceNumber {
  uint64_t seed;
  DataStream stream;
  int64_t batch;  // in training, the step
  int64_t row;    // index within the batch
};

// Draws tokens (32) and targets (32 * jobs): the expected answer of each job's read-out at each
// position, or -1 for none.
void draw_sequence(ExperimentKind kind, const SequenceNumber& number, std::span<int32_t> tokens,
                   std::span<int32_t> targets);

// Draws sequences first .. first + count - 1 of a batch, contiguously; resizes `tokens` and
// `targets`.
void draw_batch(const ExperimentOptions& options, DataStream stream, int64_t batch, int64_t first,
                int64_t count, std::vector<int32_t>& tokens, std::vector<int32_t>& targets);

// Sums `weights` (32), the attention weights of the query at `position`, over the keys that
// `pattern` expects; -1 if it expects none at this position.
double pattern_attention(ExperimentKind kind, int64_t pattern, std::span<const int32_t> tokens,
                         int64_t position, const float* weights);

}  // namespace lab
}  // namespace multihead
