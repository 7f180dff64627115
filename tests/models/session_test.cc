// Session, generate() and Sampler: step by step the numbers of one pass, without allocations.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "models/golden_models.h"
#include "multihead/models.h"
#include "support/allocations.h"
#include "support/random_case.h"

namespace multihead {
namespace {

using models::GenerateOptions;
using models::Model;
using models::Sampler;
using models::SamplingOptions;
using models::Session;
using testing::golden_ids;
using testing::logits_of;
using testing::open_golden;

constexpr const char* kCausal[] = {"gpt2",    "llama3", "llama_yarn", "mistral",   "qwen2",
                                   "qwen3",   "gemma2", "gemma3",     "phi3",      "phi3_long",
                                   "smollm3", "olmo2",  "gpt_neox",   "starcoder2"};

// The logits after each token, given in pieces of the lengths 1, 2, 3, ... in turns.
void expect_logits_of_one_pass(const std::string& name, DType cache_type, float tolerance) {
  Context context(1);
  const Model model = open_golden(name);
  const std::vector<int32_t> ids = golden_ids(name, "long.input_ids");
  ASSERT_GT(ids.size(), 10U);
  const int64_t vocabulary = model.info().vocab_size;
  Session session;
  ASSERT_TRUE(Session::create(model, {.capacity = 64, .cache_type = cache_type}, session).ok());
  std::vector<float> logits(static_cast<size_t>(vocabulary));
  size_t done = 0;
  for (size_t piece = 1; done < ids.size(); piece = piece % 3 + 1) {
    const std::vector<int32_t> next(
        ids.begin() + static_cast<ptrdiff_t>(done),
        ids.begin() + static_cast<ptrdiff_t>(std::min(ids.size(), done + piece)));
    const Status status = session.append(next, {logits.data(), {vocabulary}}, context);
    ASSERT_TRUE(status.ok()) << status.message();
    done += next.size();
    // One pass over the same tokens, because frequencies may depend on their number.
    const std::vector<int32_t> so_far(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(done));
    const std::vector<float> all = logits_of(model, so_far, context);
    for (int64_t i = 0; i < vocabulary; ++i) {
      const auto at = static_cast<size_t>(i);
      ASSERT_NEAR(logits[at], all[all.size() - static_cast<size_t>(vocabulary) + at], tolerance)
          << name << ", token " << done;
    }
  }
  EXPECT_EQ(session.length(), static_cast<int64_t>(ids.size()));
}

TEST(ModelSession, EachStepHasTheLogitsOfOnePass) {
  for (const char* name : kCausal) expect_logits_of_one_pass(name, DType::kF32, 2e-5F);
}

TEST(ModelSession, CacheInHalves) { expect_logits_of_one_pass("qwen3", DType::kF16, 0.02F); }

TEST(ModelSession, TruncatedSessionsGoOnAsIfTheRestHadNotBeen) {
  Context context(1);
  for (const char* name : {"gemma3", "phi3_long"}) {
    const Model model = open_golden(name);
    const std::vector<int32_t> ids = golden_ids(name, "long.input_ids");
    const int64_t vocabulary = model.info().vocab_size;
    std::vector<float> once(static_cast<size_t>(vocabulary)), twice = once;
    Session session;
    ASSERT_TRUE(Session::create(model, {.capacity = 64}, session).ok());
    const std::span<const int32_t> all(ids);
    ASSERT_TRUE(session.append(all.first(8), {once.data(), {vocabulary}}, context).ok());
    ASSERT_TRUE(session.append(all.subspan(8), {}, context).ok());
    ASSERT_TRUE(session.truncate(7).ok());
    ASSERT_TRUE(session.append(all.subspan(7, 1), {twice.data(), {vocabulary}}, context).ok());
    for (size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(once[i], twice[i], 2e-5F) << name;
    EXPECT_FALSE(session.truncate(9).ok());
    EXPECT_FALSE(session.truncate(-1).ok());
  }
}

TEST(ModelSession, AStepAllocatesNothing) {
  Context context(1);
  for (const char* name : kCausal) {
    if (std::string(name) == "phi3_long") continue;  // computes all keys again at one token
    const Model model = open_golden(name);
    const int64_t vocabulary = model.info().vocab_size;
    Session session;
    ASSERT_TRUE(Session::create(model, {.capacity = 40}, session).ok());
    std::vector<float> logits(static_cast<size_t>(vocabulary));
    const std::vector<int32_t> prompt(12, 7), token(1, 9);
    ASSERT_TRUE(session.append(prompt, {}, context).ok());
    ASSERT_TRUE(session.append(token, {logits.data(), {vocabulary}}, context).ok());
    const int64_t before = testing::allocations();
    for (int step = 0; step < 8; ++step) {
      ASSERT_TRUE(session.append(token, {logits.data(), {vocabulary}}, context).ok());
    }
    EXPECT_EQ(testing::allocations(), before) << name;
  }
}

TEST(ModelSession, MoreTokensThanItsCapacityAreRefused) {
  Context context(1);
  const Model model = open_golden("llama3");
  Session session;
  ASSERT_TRUE(Session::create(model, {.capacity = 4}, session).ok());
  const std::vector<int32_t> three(3, 5);
  ASSERT_TRUE(session.append(three, {}, context).ok());
  const Status status = session.append(three, {}, context);
  EXPECT_EQ(status.message(), "ids: expected at most 1 more tokens in a session of 4, got 3");
  EXPECT_EQ(session.length(), 3);
  const std::vector<int32_t> unknown(1, 100000);
  EXPECT_EQ(session.append(unknown, {}, context).code(), StatusCode::kOption);
  EXPECT_EQ(session.length(), 3);
  EXPECT_FALSE(Session::create(open_golden("bert"), {}, session).ok());
  EXPECT_FALSE(Session::create(open_golden("mistral_classes"), {}, session).ok());
}

TEST(ModelGenerate, StopsAtIdsLengthsAndWhenTold) {
  Context context(1);
  const Model model = open_golden("gpt2");
  const std::vector<int32_t> prompt = golden_ids("gpt2", "greedy.input_ids");
  const std::vector<int32_t> golden = golden_ids("gpt2", "greedy.generated_ids");
  ASSERT_EQ(golden.size(), 16U);
  std::vector<int32_t> tokens;
  const auto collect = [&](int32_t token) {
    tokens.push_back(token);
    return tokens.size() < 5;
  };
  GenerateOptions options;
  options.stop_ids = {golden[2]};
  ASSERT_TRUE(models::generate(model, prompt, options, collect, context).ok());
  const auto end = std::find(golden.begin(), golden.end(), golden[2]) + 1;
  EXPECT_EQ(tokens, std::vector<int32_t>(golden.begin(), end));
  tokens.clear();
  options.stop_ids.emplace();
  ASSERT_TRUE(models::generate(model, prompt, options, collect, context).ok());
  EXPECT_EQ(tokens, std::vector<int32_t>(golden.begin(), golden.begin() + 5));
  // Generation ends with the token after the last position.
  const auto positions = static_cast<size_t>(model.info().max_tokens);
  tokens.clear();
  options.max_new_tokens = 1000;
  const auto all = [&](int32_t token) {
    tokens.push_back(token);
    return true;
  };
  ASSERT_TRUE(models::generate(model, prompt, options, all, context).ok());
  EXPECT_EQ(tokens.size(), positions - prompt.size() + 1);
  EXPECT_FALSE(models::generate(model, {}, options, all, context).ok());
  const std::vector<int32_t> long_prompt(positions + 1, 3);
  EXPECT_EQ(models::generate(model, long_prompt, options, all, context).message(),
            "prompt: expected at most 128 tokens, got 129");
}

// The shares of tokens in many draws.
std::vector<double> shares(const std::vector<float>& logits, models::SamplingOptions options) {
  constexpr int kDraws = 20000;
  std::vector<double> counts(logits.size());
  options.seed = 3;
  Sampler sampler(options);
  for (int i = 0; i < kDraws; ++i) {
    std::vector<float> copy = logits;
    int32_t token = -1;
    EXPECT_TRUE(sampler.choose({copy.data(), {static_cast<int64_t>(copy.size())}}, {}, token).ok());
    counts[static_cast<size_t>(token)] += 1.0 / kDraws;
  }
  return counts;
}

TEST(ModelSampler, SharesAreTheProbabilities) {
  const std::vector<float> logits = {1.0F, 3.0F, 2.0F, -1.0F};
  const auto expect = [&](const models::SamplingOptions& options, std::vector<double> weights) {
    double sum = 0;
    for (const double weight : weights) sum += weight;
    const std::vector<double> found = shares(logits, options);
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_NEAR(found[i], weights[i] / sum, 0.015) << i;
      if (weights[i] == 0) {
        EXPECT_EQ(found[i], 0.0) << i;
      }
    }
  };
  const auto e = [](double x) { return std::exp(x); };
  expect({.temperature = 1.0F}, {e(1), e(3), e(2), e(-1)});
  expect({.temperature = 2.0F}, {e(0.5), e(1.5), e(1), e(-0.5)});
  expect({.temperature = 1.0F, .top_k = 2}, {0, e(3), e(2), 0});
  // e^3 is 0.66 of the sum, with e^2 it is 0.90.
  expect({.temperature = 1.0F, .top_p = 0.7F}, {0, e(3), e(2), 0});
  expect({.temperature = 1.0F, .top_p = 0.6F}, {0, 1, 0, 0});
  expect({.temperature = 0.0F}, {0, 1, 0, 0});
}

// The definition: all tokens in order, the likeliest first, of equal ones the first.
int32_t chosen_by_definition(const std::vector<float>& logits, const SamplingOptions& options,
                             double random) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](int32_t token) { return logits[static_cast<size_t>(token)]; };
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logit(a) != logit(b) ? logit(a) > logit(b) : a < b;
  });
  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < order.size()) {
    const float least = logit(order[static_cast<size_t>(options.top_k - 1)]);
    std::erase_if(order, [&](int32_t token) { return logit(token) < least; });
  }
  const float largest = logit(order.front());
  const auto weight = [&](int32_t token) {
    return std::exp((static_cast<double>(logit(token)) - static_cast<double>(largest)) /
                    static_cast<double>(options.temperature));
  };
  double sum = 0;
  for (const int32_t token : order) sum += weight(token);
  double kept = 0;
  size_t count = 0;
  while (count < order.size() && kept < static_cast<double>(options.top_p) * sum) {
    kept += weight(order[count++]);
  }
  order.resize(count);
  double left = random * kept;
  for (const int32_t token : order) {
    left -= weight(token);
    if (left < 0) return token;
  }
  return order.back();
}

TEST(ModelSampler, FollowsItsDefinitionOnRandomCalls) {
  for (const uint64_t seed : testing::random_seeds(50)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    testing::Random random(seed);
    const auto count = random.integer(1, 60);
    std::vector<float> logits(static_cast<size_t>(count));
    // Few different values, so that some are equal.
    for (float& logit : logits) logit = static_cast<float>(random.integer(-9, 9)) / 2.0F;
    SamplingOptions options{.temperature = static_cast<float>(random.integer(1, 8)) / 4.0F};
    if (random.chance(0.5)) options.top_k = random.integer(2, 70);
    if (random.chance(0.5)) options.top_p = static_cast<float>(random.integer(1, 9)) / 10.0F;
    // A sampler with this seed chooses one of a thousand equal tokens. Its index is the random
    // number to 0.001.
    options.seed = seed;
    std::vector<float> equal(1000, 0.0F);
    int32_t thousandth = -1, token = -1;
    Sampler of_equal({.temperature = 1.0F, .seed = seed});
    ASSERT_TRUE(of_equal.choose({equal.data(), {1000}}, {}, thousandth).ok());
    Sampler sampler(options);
    ASSERT_TRUE(sampler.choose({logits.data(), {count}}, {}, token).ok());
    std::set<int32_t> expected;
    for (int step = 0; step <= 1000; ++step) {
      expected.insert(chosen_by_definition(logits, options, (thousandth + step / 1000.0) / 1000));
    }
    EXPECT_TRUE(expected.contains(token)) << token << " instead of " << *expected.begin();
  }
}

TEST(ModelSampler, LogitsThatAreNotNumbersChooseAToken) {
  for (const float penalty : {1.0F, 1.5F}) {
    std::vector<float> logits(40, NAN);
    for (size_t i = 1; i < logits.size(); i += 3) logits[i] = static_cast<float>(i % 7);
    int32_t token = -1;
    Sampler sampler({.temperature = 1.0F, .top_k = 5, .repetition_penalty = penalty});
    ASSERT_TRUE(sampler.choose({logits.data(), {40}}, {}, token).ok());
    EXPECT_TRUE(token >= 0 && token < 40) << token;
  }
}

TEST(ModelSampler, RepetitionPenaltyIsAppliedOnceForEachToken) {
  std::vector<float> logits = {2.0F, -1.0F, 1.5F};
  Sampler sampler({.repetition_penalty = 2.0F});
  const std::vector<int32_t> before = {0, 1, 0, 0};
  int32_t token = -1;
  ASSERT_TRUE(sampler.choose({logits.data(), {3}}, before, token).ok());
  EXPECT_EQ(logits, (std::vector<float>{1.0F, -2.0F, 1.5F}));
  EXPECT_EQ(token, 2);
}

TEST(ModelSampler, EqualSeedsGiveEqualTokens) {
  const std::vector<float> flat(50, 0.0F);
  const auto draw = [&](uint64_t seed) {
    Sampler sampler({.temperature = 1.0F, .seed = seed});
    std::vector<int32_t> tokens(20);
    for (int32_t& token : tokens) {
      std::vector<float> copy = flat;
      EXPECT_TRUE(sampler.choose({copy.data(), {50}}, {}, token).ok());
    }
    return tokens;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
  const std::vector<int32_t> tokens = draw(1);
  EXPECT_GT(std::set<int32_t>(tokens.begin(), tokens.end()).size(), 10U);
}

TEST(ModelSampler, OptionsOutsideTheirDefinitionAreRefused) {
  std::vector<float> logits(3);
  int32_t token = 0;
  const auto refused = [&](const models::SamplingOptions& options) {
    return Sampler(options).choose({logits.data(), {3}}, {}, token).argument();
  };
  EXPECT_EQ(refused({.temperature = -1.0F}), "temperature");
  EXPECT_EQ(refused({.temperature = NAN}), "temperature");
  EXPECT_EQ(refused({.top_k = -1}), "top_k");
  EXPECT_EQ(refused({.top_p = 0.0F}), "top_p");
  EXPECT_EQ(refused({.top_p = 1.5F}), "top_p");
  EXPECT_EQ(refused({.repetition_penalty = 0.0F}), "repetition_penalty");
}

}  // namespace
}  // namespace multihead
