// The experiments: their data against plain definitions, and short runs of training.
#include "multihead/experiments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "lab/experiment.h"

namespace multihead {
namespace {

using lab::DataStream;

constexpr size_t kLength = 32;

struct Sequence {
  std::vector<int32_t> tokens, targets;
};

Sequence draw(ExperimentKind kind, uint64_t seed, DataStream stream, int64_t batch, int64_t row) {
  Sequence made{.tokens = std::vector<int32_t>(kLength),
                .targets = std::vector<int32_t>(kLength * Experiment::jobs(kind).size())};
  lab::draw_sequence(kind, {.seed = seed, .stream = stream, .batch = batch, .row = row},
                     made.tokens, made.targets);
  return made;
}

// FNV-1a over the numbers as 32-bit little-endian words.
constexpr uint64_t kEmptyHash = 0xcbf29ce484222325U;
void add_to_hash(uint64_t& hash, const Sequence& sequence) {
  for (const auto& numbers : {sequence.tokens, sequence.targets}) {
    for (const int32_t number : numbers) {
      for (int byte = 0; byte < 4; ++byte) {
        hash ^= static_cast<uint32_t>(number) >> (8 * byte) & 0xffU;
        hash *= 0x100000001b3U;
      }
    }
  }
}

uint64_t hash_of(ExperimentKind kind, uint64_t seed) {
  uint64_t hash = kEmptyHash;
  for (int64_t row = 0; row < 4; ++row) {
    for (const DataStream stream : {DataStream::kTraining, DataStream::kHeldOut}) {
      add_to_hash(hash, draw(kind, seed, stream, 599, row));
    }
  }
  return hash;
}

bool is_vowel(int32_t token) { return token >= 16 && token < 20; }
bool is_star(int32_t token) { return token >= 20; }

// Returns the last token of a kind up to `position`, or -1.
template <class Is>
int32_t latest(const std::vector<int32_t>& tokens, size_t position, Is&& is) {
  for (size_t t = position + 1; t-- > 0;) {
    if (is(tokens[t])) return tokens[t];
  }
  return -1;
}

TEST(Experiments, FourJobsAsksForWhatStandsInTheSequence) {
  for (int64_t row = 0; row < 50; ++row) {
    const auto [tokens, targets] =
        draw(ExperimentKind::kFourJobs, 7, DataStream::kTraining, 3, row);
    for (size_t t = 0; t < kLength; ++t) {
      ASSERT_GE(tokens[t], 0);
      ASSERT_LT(tokens[t], 24);
      EXPECT_EQ(targets[4 * t], t < 1 ? -1 : tokens[t - 1]);
      EXPECT_EQ(targets[4 * t + 1], t < 2 ? -1 : tokens[t - 2]);
      EXPECT_EQ(targets[4 * t + 2], latest(tokens, t, is_vowel));
      EXPECT_EQ(targets[4 * t + 3], latest(tokens, t, is_star));
    }
  }
}

TEST(Experiments, FourJobsHasItsShareOfVowelsAndStars) {
  std::vector<double> counts(24);
  constexpr int64_t kSequences = 2000;
  for (int64_t row = 0; row < kSequences; ++row) {
    for (const int32_t token :
         draw(ExperimentKind::kFourJobs, 1, DataStream::kTraining, row, 0).tokens) {
      ++counts[static_cast<size_t>(token)];
    }
  }
  // Five standard deviations of a count.
  for (size_t token = 0; token < counts.size(); ++token) {
    const double share = is_star(static_cast<int32_t>(token))    ? 0.10 / 4
                         : is_vowel(static_cast<int32_t>(token)) ? 0.22 / 4
                                                                 : 0.68 / 16;
    const double expected = share * kSequences * kLength;
    EXPECT_NEAR(counts[token], expected, 5 * std::sqrt(expected)) << token;
  }
}

TEST(Experiments, InductionRepeatsDistinctTokens) {
  std::map<size_t, double> periods;
  constexpr int64_t kSequences = 1100;
  std::vector<double> first_tokens(32);
  for (int64_t row = 0; row < kSequences; ++row) {
    const auto [tokens, targets] =
        draw(ExperimentKind::kInduction, 5, DataStream::kTraining, 0, row);
    const size_t period = static_cast<size_t>(
        std::find(tokens.begin() + 1, tokens.end(), tokens[0]) - tokens.begin());
    ++periods[period];
    ++first_tokens[static_cast<size_t>(tokens[0])];
    EXPECT_EQ(
        std::set<int32_t>(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(period)).size(),
        period);
    for (size_t t = 0; t < kLength; ++t) {
      ASSERT_GE(tokens[t], 0);
      ASSERT_LT(tokens[t], 32);
      if (t >= period) {
        EXPECT_EQ(tokens[t], tokens[t - period]);
      }
      // The target is the next token; for the last position, the token that would follow.
      EXPECT_EQ(targets[t], t < period ? -1 : tokens[t + 1 - period]);
    }
  }
  ASSERT_EQ(periods.size(), 11U);
  EXPECT_EQ(periods.begin()->first, 6U);
  EXPECT_EQ(periods.rbegin()->first, 16U);
  for (const auto& [period, count] : periods) {
    EXPECT_NEAR(count, kSequences / 11.0, 5 * std::sqrt(kSequences / 11.0)) << period;
  }
  for (const double count : first_tokens) {
    EXPECT_NEAR(count, kSequences / 32.0, 5 * std::sqrt(kSequences / 32.0));
  }
}

TEST(Experiments, DataIsTheSameInEveryBuild) {
  EXPECT_EQ(hash_of(ExperimentKind::kFourJobs, 1), 0x1f76efa228bb093bU);
  EXPECT_EQ(hash_of(ExperimentKind::kInduction, 0x123456789abcdefU), 0xf1d3afb595e061dU);
}

TEST(Experiments, EverySequenceIsItsOwn) {
  for (const ExperimentKind kind : {ExperimentKind::kFourJobs, ExperimentKind::kInduction}) {
    std::set<std::vector<int32_t>> seen;
    size_t drawn = 0;
    for (const uint64_t seed : {uint64_t{1}, uint64_t{2}, uint64_t{1} << 32U}) {
      for (const DataStream stream : {DataStream::kTraining, DataStream::kHeldOut}) {
        for (const int64_t batch : {int64_t{0}, int64_t{1}, int64_t{1} << 32U}) {
          for (int64_t row = 0; row < 3; ++row, ++drawn) {
            seen.insert(draw(kind, seed, stream, batch, row).tokens);
          }
        }
      }
    }
    EXPECT_EQ(seen.size(), drawn);
  }
}

// Row weights are the numbers of their keys, so that a sum tells which keys were added.
TEST(Experiments, PatternsAskForTheKeysThatAnswer) {
  std::array<float, kLength> weights{};
  for (size_t key = 0; key < kLength; ++key) weights[key] = static_cast<float>(key);
  const auto [tokens, targets] = draw(ExperimentKind::kFourJobs, 11, DataStream::kHeldOut, 0, 1);
  for (size_t t = 0; t < kLength; ++t) {
    for (size_t job = 0; job < 4; ++job) {
      const double key =
          lab::pattern_attention(ExperimentKind::kFourJobs, static_cast<int64_t>(job), tokens,
                                 static_cast<int64_t>(t), weights.data());
      const int32_t target = targets[4 * t + job];
      ASSERT_EQ(key < 0, target < 0) << t << ", job " << job;
      if (target >= 0) {
        EXPECT_EQ(tokens[static_cast<size_t>(key)], target);
      }
    }
  }
  const std::vector<int32_t> repeated{4, 7, 9, 4, 7, 9, 4, 7};
  const auto induction = [&](int64_t position) {
    return lab::pattern_attention(ExperimentKind::kInduction, 1, repeated, position,
                                  weights.data());
  };
  EXPECT_EQ(induction(2), -1);
  EXPECT_EQ(induction(3), 1);
  EXPECT_EQ(induction(7), 2 + 5);
}

TEST(Experiments, NamesOfJobsAndPatterns) {
  EXPECT_EQ(Experiment::jobs(ExperimentKind::kFourJobs).size(), 4U);
  EXPECT_EQ(Experiment::patterns(ExperimentKind::kFourJobs)[3], "latest star");
  EXPECT_EQ(Experiment::jobs(ExperimentKind::kInduction)[0], "next token");
  EXPECT_EQ(Experiment::patterns(ExperimentKind::kInduction)[1], "induction");
}

Experiment created(const ExperimentOptions& options) {
  Experiment experiment;
  const Status status = Experiment::create(options, experiment);
  EXPECT_TRUE(status.ok()) << status.message();
  return experiment;
}

// Returns the losses of the next steps.
std::vector<double> train(Experiment& experiment, int64_t steps, Context& context) {
  std::vector<double> losses;
  for (int64_t i = 0; i < steps; ++i) {
    TrainingStep result;
    const Status status = experiment.step(result, context);
    EXPECT_TRUE(status.ok()) << status.message();
    losses.push_back(result.loss);
  }
  return losses;
}

Evaluation evaluated(const Experiment& experiment, const EvaluationOptions& options,
                     Context& context) {
  Evaluation evaluation;
  const Status status = experiment.evaluate(options, evaluation, context);
  EXPECT_TRUE(status.ok()) << status.message();
  return evaluation;
}

TEST(Experiments, TheLossFalls) {
  Context context(1);
  for (const ExperimentKind kind : {ExperimentKind::kFourJobs, ExperimentKind::kInduction}) {
    Experiment experiment = created({.kind = kind, .steps = 60, .batch = 8});
    const Evaluation before = evaluated(experiment, {.sequences = 16}, context);
    // Chance level: all logits are equal.
    EXPECT_NEAR(before.loss, std::log(kind == ExperimentKind::kFourJobs ? 24.0 : 32.0), 0.5);
    EXPECT_FALSE(experiment.finished());
    const std::vector<double> losses = train(experiment, 60, context);
    EXPECT_TRUE(experiment.finished());
    EXPECT_LT(losses.back(), losses.front() - 0.2);
    const Evaluation after = evaluated(experiment, {.sequences = 16}, context);
    EXPECT_LT(after.loss, before.loss - 0.2);
    EXPECT_GT(after.accuracy, before.accuracy);
  }
}

// Expected values, shared with bindings/test/experiment.test.ts.
TEST(Experiments, TheSameSeedGivesTheSameNumbersInEveryBuild) {
  const struct {
    ExperimentOptions options;
    uint64_t held_out;  // hash of sequences 3 to 6
    std::vector<double> losses;
    double loss;  // after these steps, on 32 held-out sequences
  } runs[] = {{{.kind = ExperimentKind::kFourJobs, .seed = 1},
               0xc7ac0ec89a53ca9cU,
               {3.265669, 3.248696, 3.231584, 3.197686, 3.113999},
               3.106198},
              {{.kind = ExperimentKind::kInduction, .seed = 0x123456789abcdefU},
               0x6d00441ae988eaffU,
               {3.543403, 3.591206, 3.549867, 3.582317, 3.530126},
               3.570920}};
  Context context(1);
  for (const auto& [options, held_out, losses, loss] : runs) {
    Experiment experiment = created(options);
    Sequence sequences;
    ASSERT_TRUE(experiment.held_out(3, 4, sequences.tokens, sequences.targets).ok());
    uint64_t hash = kEmptyHash;
    add_to_hash(hash, sequences);
    EXPECT_EQ(hash, held_out);
    const std::vector<double> trained = train(experiment, 5, context);
    for (size_t step = 0; step < losses.size(); ++step) {
      EXPECT_NEAR(trained[step], losses[step], 1e-4) << step;
    }
    EXPECT_NEAR(evaluated(experiment, {.sequences = 32}, context).loss, loss, 1e-4);
  }
}

TEST(Experiments, EvaluationsAndRecomputingDoNotChangeTraining) {
  Context context(1);
  for (const PositionKind positions :
       {PositionKind::kRope, PositionKind::kLearned, PositionKind::kAlibi, PositionKind::kNone}) {
    const ExperimentOptions options{
        .kind = ExperimentKind::kInduction, .seed = 3, .positions = positions, .batch = 4};
    Experiment plain = created(options);
    ExperimentOptions recomputing = options;
    recomputing.recompute = true;
    Experiment watched = created(recomputing);
    std::vector<double> losses;
    for (int step = 0; step < 5; ++step) {
      (void)evaluated(watched, {.sequences = 3, .ablation = step % 2 == 0}, context);
      losses.push_back(train(watched, 1, context).front());
    }
    EXPECT_EQ(losses, train(plain, 5, context));
  }
}

TEST(Experiments, ARestoredRunContinuesWithTheSameBits) {
  Context context(1);
  const ExperimentOptions options{.kind = ExperimentKind::kFourJobs, .seed = 9, .batch = 4};
  Experiment whole = created(options);
  Experiment first = created(options);
  const std::vector<double> losses = train(whole, 8, context);
  (void)train(first, 4, context);
  StateDict state;
  ASSERT_TRUE(first.trainer().state_dict(state).ok());
  Experiment second = created(options);
  const Status restored = second.trainer().load_state_dict(state);
  ASSERT_TRUE(restored.ok()) << restored.message();
  EXPECT_EQ(train(second, 4, context), std::vector<double>(losses.begin() + 4, losses.end()));
}

TEST(Experiments, EvaluationAddsUp) {
  Context context(1);
  Experiment experiment = created({.kind = ExperimentKind::kInduction, .num_heads = 4});
  (void)train(experiment, 10, context);
  // More than one chunk of sequences.
  const Evaluation all = evaluated(experiment, {.sequences = 70, .ablation = true}, context);
  ASSERT_EQ(all.job_accuracy.size(), 1U);
  EXPECT_DOUBLE_EQ(all.job_accuracy[0], all.accuracy);
  ASSERT_EQ(all.attention.size(), 2U * 4 * 2);
  for (const double weight : all.attention) {
    EXPECT_GE(weight, 0.0);
    EXPECT_LE(weight, 1.0);
  }
  ASSERT_EQ(all.head_of_pattern.size(), 2U);
  EXPECT_LT(all.head_of_pattern[0], 4);
  EXPECT_GE(all.head_of_pattern[1], 4);
  ASSERT_EQ(all.muted_accuracy.size(), 2U * 4);
  // Each row of the table equals an evaluation with the same head_scales.
  std::vector<float> scales(8, 1.0F);
  scales[5] = 0.0F;
  const Evaluation muted =
      evaluated(experiment, {.sequences = 70, .attention = false, .head_scales = scales}, context);
  EXPECT_DOUBLE_EQ(muted.accuracy, all.muted_accuracy[5]);
  EXPECT_TRUE(muted.attention.empty());
}

TEST(Experiments, TheSizeDoesNotDependOnTheHeads) {
  for (const int64_t heads : {1, 2, 4}) {
    const Experiment experiment = created({.num_heads = heads});
    EXPECT_EQ(experiment.options().num_heads, heads);
    EXPECT_EQ(experiment.options().steps, 600);
    EXPECT_EQ(experiment.options().batch, 16);
    EXPECT_EQ(experiment.model().num_parameters(), 24 * 64 + 4 * 64 * 64 + 4 * 24 * 64);
  }
}

TEST(Experiments, HeldOutSequencesAreThoseOfTheEvaluation) {
  const Experiment experiment = created({.kind = ExperimentKind::kInduction, .seed = 4});
  std::vector<int32_t> tokens, targets;
  ASSERT_TRUE(experiment.held_out(2, 3, tokens, targets).ok());
  ASSERT_EQ(tokens.size(), 3 * kLength);
  ASSERT_EQ(targets.size(), 3 * kLength);
  const Sequence third = draw(ExperimentKind::kInduction, 4, DataStream::kHeldOut, 0, 2);
  EXPECT_TRUE(std::equal(third.tokens.begin(), third.tokens.end(), tokens.begin()));
  EXPECT_EQ(experiment.held_out(-1, 3, tokens, targets).argument(), "first");
  EXPECT_EQ(experiment.held_out(0, -1, tokens, targets).argument(), "count");
}

TEST(Experiments, RefusesWhatDoesNotFit) {
  Experiment experiment = created({.seed = 21});
  const auto argument = [&](const ExperimentOptions& options) {
    return Experiment::create(options, experiment).argument();
  };
  EXPECT_EQ(argument({.kind = static_cast<ExperimentKind>(2)}), "kind");
  EXPECT_EQ(argument({.positions = static_cast<PositionKind>(4)}), "positions");
  EXPECT_EQ(argument({.num_heads = 3}), "num_heads");
  EXPECT_EQ(argument({.num_heads = -1}), "num_heads");
  EXPECT_EQ(argument({.num_layers = 65}), "num_layers");
  EXPECT_EQ(argument({.steps = -1}), "steps");
  EXPECT_EQ(argument({.batch = -1}), "batch");
  EXPECT_EQ(argument({.learning_rate = 0.0F}), "learning_rate");
  EXPECT_EQ(experiment.options().seed, 21U);  // as before

  Context context(1);
  Evaluation evaluation;
  const std::vector<float> scales(3, 1.0F);
  EXPECT_EQ(experiment.evaluate({.sequences = 0}, evaluation, context).argument(), "sequences");
  EXPECT_EQ(experiment.evaluate({.head_scales = scales}, evaluation, context).argument(),
            "head_scales");
  Experiment empty;
  TrainingStep result;
  EXPECT_EQ(empty.step(result, context).argument(), "experiment");
  EXPECT_EQ(empty.evaluate({}, evaluation, context).argument(), "experiment");
  std::vector<int32_t> tokens, targets;
  EXPECT_EQ(empty.held_out(0, 1, tokens, targets).argument(), "experiment");
}

}  // namespace
}  // namespace multihead
