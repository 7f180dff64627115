// The sequences of the two experiments: tokens, targets, and the keys that answer them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "multihead/experiments.h"

namespace multihead::nn {

inline constexpr int64_t kExperimentLength = 32;  // tokens of a sequence

inline constexpr int32_t kFirstVowel = 16, kFirstStar = 20;  // of kFourJobs

// The size of the model that learns the sequences, and of its training.
struct ExperimentSize {
  int64_t vocab_size, embed_dim, num_heads, num_layers, batch, steps;
};
ExperimentSize experiment_size(ExperimentKind kind);

enum class DataStream : uint32_t { kTraining = 0, kHeldOut = 1 };

// A sequence is a pure function of this and the kind, in integers only, and so the same in every
// build.
struct SequenceNumber {
  uint64_t seed;
  DataStream stream;
  int64_t batch;  // the step, for training
  int64_t row;    // within the batch
};

// Draws tokens (32) and targets (32 * jobs): what each job's read-out should report at each
// position, or -1.
void draw_sequence(ExperimentKind kind, const SequenceNumber& number, std::span<int32_t> tokens,
                   std::span<int32_t> targets);

// Sequences first .. first + count - 1 of a batch, one after another; `tokens` and `targets` are
// resized.
void draw_batch(const ExperimentOptions& options, DataStream stream, int64_t batch, int64_t first,
                int64_t count, std::vector<int32_t>& tokens, std::vector<int32_t>& targets);

// The sum of `weights` (32), the attention weights of the query at `position`, over the keys that
// `pattern` asks for; -1 if it asks for none at this position.
double pattern_attention(ExperimentKind kind, int64_t pattern, std::span<const int32_t> tokens,
                         int64_t position, const float* weights);

}  // namespace multihead::nn
