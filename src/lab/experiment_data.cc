#include "lab/experiment.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "lab/attention_patterns.h"
#include "multihead/experiments.h"
#include "rules/dropout_mask.h"

namespace multihead {
namespace {

constexpr std::string_view kFourJobs[] = {"previous token", "two back", "latest vowel",
                                          "latest star"};
constexpr std::string_view kNextToken[] = {"next token"};
constexpr std::string_view kInductionPatterns[] = {"previous token", "induction"};

}  // namespace

std::span<const std::string_view> Experiment::jobs(ExperimentKind kind) {
  if (kind == ExperimentKind::kFourJobs) return kFourJobs;
  return kNextToken;
}

std::span<const std::string_view> Experiment::patterns(ExperimentKind kind) {
  if (kind == ExperimentKind::kFourJobs) return kFourJobs;
  return kInductionPatterns;
}

namespace lab {
namespace {

// Independent 32-bit words from Philox. The counter consists of the sequence and the index of the
// word.
class Words {
 public:
  explicit Words(const SequenceNumber& number)
      : key_{static_cast<uint32_t>(number.seed), static_cast<uint32_t>(number.seed >> 32U)},
        counter_{0, static_cast<uint32_t>(number.row), static_cast<uint32_t>(number.batch),
                 static_cast<uint32_t>(number.batch >> 32U) << 1U |
                     static_cast<uint32_t>(number.stream)} {}

  // Draws from 0 .. below - 1. The probabilities differ by less than below * 2^-32.
  int32_t draw(int32_t below) {
    if (used_ == words_.size()) {
      words_ = rules::philox4x32(counter_, key_);
      ++counter_[0];
      used_ = 0;
    }
    return static_cast<int32_t>(
        (static_cast<uint64_t>(words_[used_++]) * static_cast<uint64_t>(below)) >> 32U);
  }

 private:
  std::array<uint32_t, 2> key_;
  std::array<uint32_t, 4> counter_;
  std::array<uint32_t, 4> words_{};
  size_t used_ = 4;
};

void draw_four_jobs(Words& words, std::span<int32_t> tokens, std::span<int32_t> targets) {
  constexpr int32_t kPerCentStars = 10, kPerCentVowels = 22;
  int32_t vowel = -1, star = -1;
  for (size_t t = 0; t < tokens.size(); ++t) {
    const int32_t sort = words.draw(100);
    if (sort < kPerCentStars) {
      tokens[t] = star = kFirstStar + words.draw(4);
    } else if (sort < kPerCentStars + kPerCentVowels) {
      tokens[t] = vowel = kFirstVowel + words.draw(4);
    } else {
      tokens[t] = words.draw(kFirstVowel);
    }
    targets[4 * t] = t < 1 ? -1 : tokens[t - 1];
    targets[4 * t + 1] = t < 2 ? -1 : tokens[t - 2];
    targets[4 * t + 2] = vowel;
    targets[4 * t + 3] = star;
  }
}

void draw_induction(Words& words, std::span<int32_t> tokens, std::span<int32_t> targets) {
  constexpr int32_t kVocabulary = 32, kLeastPeriod = 6, kMostPeriod = 16;
  const int32_t period = kLeastPeriod + words.draw(kMostPeriod - kLeastPeriod + 1);
  // The first `period` steps of a Fisher-Yates shuffle.
  std::array<int32_t, kVocabulary> shuffled{};
  for (int32_t i = 0; i < kVocabulary; ++i) shuffled[static_cast<size_t>(i)] = i;
  for (int32_t i = 0; i < period; ++i) {
    std::swap(shuffled[static_cast<size_t>(i)],
              shuffled[static_cast<size_t>(i + words.draw(kVocabulary - i))]);
  }
  const auto length = static_cast<size_t>(period);
  for (size_t t = 0; t < tokens.size(); ++t) {
    tokens[t] = shuffled[t % length];
    targets[t] = t < length ? -1 : shuffled[(t + 1) % length];
  }
}

}  // namespace

ExperimentSize experiment_size(ExperimentKind kind) {
  if (kind == ExperimentKind::kFourJobs) {
    return {.vocab_size = 24,
            .embed_dim = 64,
            .num_heads = 4,
            .num_layers = 1,
            .batch = 16,
            .steps = 600};
  }
  return {.vocab_size = 32,
          .embed_dim = 32,
          .num_heads = 2,
          .num_layers = 2,
          .batch = 32,
          .steps = 400};
}

void draw_sequence(ExperimentKind kind, const SequenceNumber& number, std::span<int32_t> tokens,
                   std::span<int32_t> targets) {
  Words words(number);
  if (kind == ExperimentKind::kFourJobs) return draw_four_jobs(words, tokens, targets);
  draw_induction(words, tokens, targets);
}

void draw_batch(const ExperimentOptions& options, DataStream stream, int64_t batch, int64_t first,
                int64_t count, std::vector<int32_t>& tokens, std::vector<int32_t>& targets) {
  const auto length = static_cast<size_t>(kExperimentLength);
  const size_t answers = length * Experiment::jobs(options.kind).size();
  tokens.resize(static_cast<size_t>(count) * length);
  targets.resize(static_cast<size_t>(count) * answers);
  for (int64_t row = 0; row < count; ++row) {
    draw_sequence(options.kind,
                  {.seed = options.seed, .stream = stream, .batch = batch, .row = first + row},
                  std::span(tokens).subspan(static_cast<size_t>(row) * length, length),
                  std::span(targets).subspan(static_cast<size_t>(row) * answers, answers));
  }
}

double pattern_attention(ExperimentKind kind, int64_t pattern, std::span<const int32_t> tokens,
                         int64_t position, const float* weights) {
  enum : int64_t { kPrevious, kSecond, kVowel, kStar };  // kSecond: two back, or induction
  if (kind == ExperimentKind::kInduction && pattern == kSecond) {
    return induction_weight(weights, tokens.data(), position).value_or(-1.0);
  }
  int64_t key = position;
  if (pattern == kPrevious || pattern == kSecond) {
    key -= pattern == kPrevious ? 1 : 2;
  } else {
    const auto is_wanted = [&](int32_t token) {
      return pattern == kStar ? token >= kFirstStar : token >= kFirstVowel && token < kFirstStar;
    };
    while (key >= 0 && !is_wanted(tokens[static_cast<size_t>(key)])) --key;
  }
  return key < 0 ? -1.0 : static_cast<double>(weights[key]);
}

}  // namespace lab
}  // namespace multihead
