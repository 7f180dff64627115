// Tests Session, generate() and Sampler: each step gives the numbers of one pass, and allocates
// nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "models/golden_models.h"
#include "models/site_values.h"
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

constexpr const char* kCausal[] = {
    "gpt2",     "llama3",     "llama_yarn",   "mistral",   "qwen2",       "qwen3",
    "gemma2",   "gemma3",     "phi3",         "phi3_long", "smollm3",     "olmo2",
    "gpt_neox", "starcoder2", "arcee",        "cohere",    "cohere2",     "ernie4_5",
    "exaone4",  "glm",        "glm4",         "gpt_neo",   "gptj",        "granite",
    "helium",   "hunyuan",    "olmo",         "olmo3",     "opt",         "phi",
    "seed_oss", "stablelm",   "stablelm_12b", "bloom",     "gpt_bigcode", "nanochat"};

// Checks the logits after pieces of 1, 2 and 3 tokens in turns.
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
    // Compare with a pass over the same tokens: frequencies may depend on their number.
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

// Returns the logits after the last token, from one pass.
std::vector<float> last_logits(const Model& model, std::span<const int32_t> ids, Context& context,
                               const std::vector<float>& head_scales = {}) {
  std::vector<float> logits(static_cast<size_t>(model.info().vocab_size));
  const Status status =
      model.forward({.ids = ids, .head_scales = head_scales},
                    {.logits = {logits.data(), {1, 1, model.info().vocab_size}}}, context);
  EXPECT_TRUE(status.ok()) << status.message();
  return logits;
}

std::vector<float> appended(Session& session, const Model& model, std::span<const int32_t> ids,
                            Context& context) {
  std::vector<float> logits(static_cast<size_t>(model.info().vocab_size));
  const Status status = session.append(ids, {logits.data(), {model.info().vocab_size}}, context);
  EXPECT_TRUE(status.ok()) << status.message();
  return logits;
}

void expect_near(const std::vector<float>& a, const std::vector<float>& b, const std::string& what,
                 float tolerance = 2e-5F) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << what << ' ' << i;
}

std::vector<int32_t> random_ids(const Model& model, int64_t count, uint64_t seed) {
  testing::Random random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random.integer(0, model.info().vocab_size - 1));
  return ids;
}

// Windows have 4 to 6 tokens: their rings are shorter than the pieces, and wrap several times.
TEST(ModelSession, LayersWithAWindowKeepFewTokens) {
  Context context(1);
  for (const char* name : {"mistral", "qwen2", "gemma2", "gemma3", "phi3", "smollm3"}) {
    for (const DType type : {DType::kF32, DType::kInt8}) {
      const Model model = open_golden(name);
      const std::vector<int32_t> ids = random_ids(model, 120, 4);
      Session session;
      ASSERT_TRUE(Session::create(model, {.capacity = 120, .cache_type = type}, session).ok());
      size_t done = 0;
      for (const size_t piece : {30U, 1U, 8U, 1U, 25U, 2U, 45U, 1U, 7U}) {
        const auto next = std::span<const int32_t>(ids).subspan(done, piece);
        const std::vector<float> logits = appended(session, model, next, context);
        done += piece;
        expect_near(logits, last_logits(model, std::span(ids).first(done), context),
                    name + std::string(" token ") + std::to_string(done),
                    type == DType::kF32 ? 2e-5F : 0.2F);
      }
      Session few;
      ASSERT_TRUE(Session::create(model, {.capacity = 120, .cache_type = type}, few).ok());
      if (name == std::string("mistral")) {
        EXPECT_EQ(session.bytes(), few.bytes());
      } else {
        EXPECT_LT(session.bytes(), 2 * few.bytes()) << name;
      }
    }
  }
}

TEST(ModelSession, MemoryGrowsWithTheTokens) {
  Context context(1);
  const Model model = open_golden("llama3");  // no longest sequence
  ASSERT_EQ(model.info().max_tokens, 0);
  const std::vector<int32_t> ids = random_ids(model, 300, 5);
  Session session;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  ASSERT_TRUE(Session::create(model, {.capacity = kMost}, session).ok());
  EXPECT_EQ(session.capacity(), kMost);
  const int64_t before = session.bytes();
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::vector<float> logits =
        appended(session, model, std::span(ids).subspan(i, 1), context);
    if (i % 50 == 49) {
      expect_near(logits, last_logits(model, std::span(ids).first(i + 1), context), "token");
    }
  }
  EXPECT_GT(session.bytes(), 4 * before);
  EXPECT_LE(session.bytes(), 8 * before);
  EXPECT_TRUE(std::equal(ids.begin(), ids.end(), session.ids().begin(), session.ids().end()));
}

TEST(ModelSession, TokensCanBeForgottenAlthoughARingHasLostTheirKeys) {
  Context context(1);
  for (const char* name : {"gemma3", "mistral"}) {
    const Model model = open_golden(name);
    const std::vector<int32_t> ids = random_ids(model, 100, 6);
    Session session;
    ASSERT_TRUE(Session::create(model, {.capacity = 110}, session).ok());
    static_cast<void>(appended(session, model, ids, context));
    for (const size_t length : {98U, 95U, 94U, 60U, 57U, 1U, 0U}) {
      ASSERT_TRUE(session.truncate(static_cast<int64_t>(length)).ok());
      EXPECT_EQ(session.length(), static_cast<int64_t>(length));
      std::vector<int32_t> rest(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(length));
      rest.push_back(3);
      expect_near(appended(session, model, std::span(rest).last(1), context),
                  last_logits(model, rest, context), name);
    }
  }
}

TEST(ModelSession, HeadsAreScaled) {
  Context context(1);
  const Model model = open_golden("qwen3");
  const models::ModelInfo& info = model.info();
  testing::Random random(7);
  const std::vector<float> scales = random.floats(info.num_layers * info.num_heads);
  const std::vector<int32_t> ids = random_ids(model, 12, 8);
  Session session;
  ASSERT_TRUE(Session::create(model, {.head_scales = scales}, session).ok());
  static_cast<void>(appended(session, model, std::span(ids).first(11), context));
  expect_near(appended(session, model, std::span(ids).last(1), context),
              last_logits(model, ids, context, scales), "scaled");
  EXPECT_EQ(Session::create(model, {.head_scales = {1.0F}}, session).argument(), "head_scales");
  const auto first_token = [&](const std::vector<float>& of) {
    int32_t found = -1;
    const Status status = models::generate(
        model, ids, {.max_new_tokens = 1, .head_scales = of},
        [&](int32_t token) {
          found = token;
          return true;
        },
        context);
    EXPECT_TRUE(status.ok()) << status.message();
    return found;
  };
  const std::vector<float> wanted = last_logits(model, ids, context, scales);
  EXPECT_EQ(first_token(scales), std::max_element(wanted.begin(), wanted.end()) - wanted.begin());
}

// Returns the edits of a session for one pass over its first tokens: without later positions and
// the rows of values for them.
struct FirstTokens {
  std::deque<std::vector<float>> memory;
  std::vector<models::Edit> edits;

  FirstTokens(const std::vector<models::Edit>& all, int64_t tokens) {
    for (models::Edit edit : all) {
      const bool weights = testing::is_weights(edit.site);
      const int rank = weights || testing::has_heads(edit.site) ? 4 : 3;
      const int axis = edit.value.shape.rank() - rank + (weights ? 2 : 1);
      std::vector<int64_t> rows, kept;
      for (int64_t i = 0; i < std::ssize(edit.tokens); ++i) {
        if (edit.tokens[static_cast<size_t>(i)] < tokens) rows.push_back(i);
      }
      for (const int64_t row : rows) kept.push_back(edit.tokens[static_cast<size_t>(row)]);
      if (kept.empty() && !edit.tokens.empty()) continue;
      if (axis >= 0 && edit.value.shape[axis] > 1) {
        const ConstTensor from = edit.value;
        Dims shape = from.shape;
        shape[axis] = std::ssize(rows);
        std::vector<float>& numbers = memory.emplace_back();
        for (int64_t at = 0; at < shape.elements(); ++at) {
          int64_t rest = at, offset = 0;
          for (int i = shape.rank(); i-- > 0; rest /= shape[i]) {
            const int64_t index = rest % shape[i];
            offset += (i == axis ? rows[static_cast<size_t>(index)] : index) * from.strides[i];
          }
          numbers.push_back(from.data[offset]);
        }
        edit.value = {numbers.data(), shape};
      }
      edit.tokens = kept;
      edits.push_back(edit);
    }
  }
};

// Makes an edit that is possible in a session, for some or all heads and tokens.
models::Edit session_edit(const Model& model, models::Site site, testing::Random& random,
                          std::deque<std::vector<float>>& memory) {
  using Action = models::Edit::Action;
  models::Edit edit{.site = site, .layer = random.integer(0, model.info().num_layers - 1)};
  edit.action = random.pick({Action::kSet, Action::kAdd, Action::kScale});
  edit.factor = random.uniform(-1, 1);
  if (random.chance(0.6)) edit.tokens = {11, 0, 38, 5, 20, 6, 100, 21};
  Dims shape = testing::site_shape(model, site, 1, 1);
  const bool weights = testing::is_weights(site);
  const int head_axis = weights ? 1 : 2;
  if (testing::has_heads(site) && random.chance(0.5)) {
    edit.heads = {random.integer(0, shape[head_axis] - 1)};
    shape[head_axis] = 1;
  }
  if (random.chance(0.6) && !edit.tokens.empty()) shape[weights ? 2 : 1] = std::ssize(edit.tokens);
  memory.push_back(random.floats(shape.elements(), 0.0F, 1.0F));
  edit.value = {memory.back().data(), shape};
  return edit;
}

TEST(ModelSession, EditsAreThoseOfOnePass) {
  Context context(1);
  int turn = 0;
  for (const char* name : kCausal) {
    const Model model = open_golden(name);
    // Sets 0 and 1 leave scores and pattern out, set 2 has nothing else, set 3 has all sites.
    for (int set = 0; set < 4; ++set) {
      testing::Random random(static_cast<uint64_t>(++turn));
      std::deque<std::vector<float>> memory;
      std::vector<models::Edit> edits;
      for (const models::Site site : testing::sites_of(model)) {
        if (set == 2 ? !testing::is_weights(site) : testing::is_weights(site) && set < 2) continue;
        if (random.chance(set < 3 ? 0.7 : 0.3)) {
          edits.push_back(session_edit(model, site, random, memory));
        }
      }
      std::vector<float> scales;
      if (set == 1) scales = random.floats(model.info().num_layers * model.info().num_heads);
      const std::vector<int32_t> ids = random_ids(model, 60, 90);
      Session session;
      const Status created =
          Session::create(model, {.capacity = 64, .head_scales = scales, .edits = edits}, session);
      ASSERT_TRUE(created.ok()) << created.message();
      for (const int64_t step : {3, 1, 1, 9, -4, 1, 30, 1, -1, 1, -38, 2, 1, 40, 1}) {
        const int64_t length = session.length();
        if (step < 0) {
          ASSERT_TRUE(session.truncate(length + step).ok());
          continue;
        }
        const std::span<const int32_t> all(ids);
        const std::vector<float> logits =
            appended(session, model,
                     all.subspan(static_cast<size_t>(length), static_cast<size_t>(step)), context);
        const FirstTokens first(edits, length + step);
        std::vector<float> wanted(logits.size());
        const Status status =
            model.forward({.ids = all.first(static_cast<size_t>(length + step)),
                           .head_scales = scales,
                           .edits = first.edits},
                          {.logits = {wanted.data(), {1, 1, model.info().vocab_size}}}, context);
        ASSERT_TRUE(status.ok()) << status.message();
        expect_near(logits, wanted, std::string(name) + " set " + std::to_string(set), 1e-4F);
      }
    }
  }
}

TEST(ModelSession, GeneratesWithEdits) {
  Context context(1);
  for (const models::Site site : {models::Site::kResidMid, models::Site::kScores}) {
    const Model model = open_golden("qwen3");
    testing::Random random(21);
    std::deque<std::vector<float>> memory;
    models::Edit edit = session_edit(model, site, random, memory);
    edit.tokens = {};
    const float strong = 3.0F;
    edit.action = models::Edit::Action::kAdd;
    edit.value = {&strong, {1}};
    const std::vector<int32_t> prompt = random_ids(model, 5, 22);
    std::vector<int32_t> got, wanted = prompt;
    const Status status = models::generate(
        model, prompt, {.max_new_tokens = 12, .stop_ids = {{}}, .edits = {edit}},
        [&](int32_t token) {
          got.push_back(token);
          return true;
        },
        context);
    ASSERT_TRUE(status.ok()) << status.message();
    for (int i = 0; i < 12; ++i) {
      std::vector<float> logits(static_cast<size_t>(model.info().vocab_size));
      ASSERT_TRUE(model
                      .forward({.ids = wanted, .edits = {&edit, 1}},
                               {.logits = {logits.data(), {1, 1, model.info().vocab_size}}},
                               context)
                      .ok());
      wanted.push_back(
          static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    }
    wanted.erase(wanted.begin(), wanted.begin() + 5);
    EXPECT_EQ(got, wanted);
  }
}

TEST(ModelSession, WrongEditsAreRefused) {
  Context context(1);
  const Model model = open_golden("llama3");  // no longest sequence
  const std::vector<float> numbers(64, 1.0F);
  const auto refused = [&](const models::Edit& edit) {
    Session session;
    const Status status = Session::create(model, {.edits = {edit}}, session);
    EXPECT_EQ(session.capacity(), 0);
    const std::vector<int32_t> ids = {1};
    const Status same = models::generate(
        model, ids, {.edits = {edit}}, [](int32_t) { return true; }, context);
    EXPECT_EQ(same.message(), status.message());
    return status;
  };
  using Action = models::Edit::Action;
  models::Edit edit{.action = Action::kAdd, .value = {numbers.data(), {16}}};
  edit.tokens = {0, 1000000000, -1};
  EXPECT_EQ(refused(edit).message(), "edits[0].tokens: expected 0 or more, got -1");
  edit.tokens = {7, 7};
  EXPECT_EQ(refused(edit).argument(), "edits[0].tokens");
  edit.tokens = {};
  edit.sequences = {1};
  EXPECT_EQ(refused(edit).argument(), "edits[0].sequences");
  edit.sequences = {0};
  edit.value = {numbers.data(), {2, 16}};  // a row for each of two tokens, which are not named
  EXPECT_EQ(refused(edit).argument(), "edits[0].value");
  edit.value = {numbers.data(), {1, 1, 16}};
  edit.action = Action::kReplace;
  EXPECT_EQ(refused(edit).argument(), "edits[0].action");
  edit = {.site = models::Site::kPattern, .value = {numbers.data(), {1, 1, 1, 4}}};
  EXPECT_EQ(refused(edit).argument(), "edits[0].value") << "a number for each key";
}

// If an edit makes numbers infinite, the call fails and the session stays as it was.
TEST(ModelSession, GoesOnAfterAnEditThatMakesNumbersInfinite) {
  Context context(1);
  for (const models::Site site : {models::Site::kMlpOut, models::Site::kScores}) {
    const Model model = open_golden("mistral");
    const std::vector<int32_t> ids = random_ids(model, 40, 23);
    const float large = 3e38F;
    const std::vector<models::Edit> edits(3, {.site = site,
                                              .tokens = {30},
                                              .action = models::Edit::Action::kAdd,
                                              .value = {&large, {1}}});
    Session session;
    ASSERT_TRUE(Session::create(model, {.capacity = 64, .edits = edits}, session).ok());
    static_cast<void>(appended(session, model, std::span(ids).first(28), context));
    EXPECT_EQ(session.append(std::span(ids).subspan(28, 5), {}, context).argument(), "edits");
    EXPECT_EQ(session.length(), 28);
    expect_near(appended(session, model, std::span(ids).subspan(28, 2), context),
                last_logits(model, std::span(ids).first(30), context), "after an error");
  }
}

TEST(ModelSession, AStepWithEditsAllocatesNothing) {
  Context context(1);
  const Model model = open_golden("gemma2");
  testing::Random random(24);
  std::deque<std::vector<float>> memory;
  std::vector<models::Edit> edits;
  for (const models::Site site : testing::sites_of(model)) {
    if (!testing::is_weights(site)) edits.push_back(session_edit(model, site, random, memory));
  }
  Session session;
  ASSERT_TRUE(Session::create(model, {.capacity = 40, .edits = edits}, session).ok());
  std::vector<float> logits(static_cast<size_t>(model.info().vocab_size));
  const Tensor out(logits.data(), {model.info().vocab_size});
  const std::vector<int32_t> prompt(12, 7), token(1, 9);
  ASSERT_TRUE(session.append(prompt, {}, context).ok());
  ASSERT_TRUE(session.append(token, out, context).ok());
  const int64_t before = testing::allocations();
  for (int step = 0; step < 8; ++step) ASSERT_TRUE(session.append(token, out, context).ok());
  EXPECT_EQ(testing::allocations(), before);
}

// models/exhausted_memory_test.cc has the calls that lack memory.
TEST(ModelSession, IsUnchangedByACallThatFails) {
  Context context(1);
  for (const char* name : {"phi3_long", "mistral", "llama3"}) {
    const Model model = open_golden(name);
    const std::vector<int32_t> ids = random_ids(model, 70, 9);
    const int64_t vocabulary = model.info().vocab_size;
    Session session;
    ASSERT_TRUE(Session::create(model, {.capacity = 80}, session).ok());
    static_cast<void>(appended(session, model, std::span(ids).first(9), context));
    const Status status =
        session.append(std::span(ids).subspan(9, 2), Tensor(nullptr, {vocabulary}), context);
    EXPECT_EQ(status.code(), StatusCode::kShape);
    EXPECT_EQ(status.got(), "a null pointer");
    EXPECT_EQ(session.length(), 9);
  }
}

TEST(ModelSession, LogitsThatAreNotFiniteAreRefusedWithTheirLayer) {
  Context context(1);
  const auto refusal = [&](const char* broken) {
    const Model model = testing::open_changed(
        "mistral", [&](const std::string& tensor, std::span<std::byte> bytes) {
          if (tensor == broken) testing::break_last(bytes);
        });
    Session session;
    EXPECT_TRUE(Session::create(model, {}, session).ok());
    const int64_t vocabulary = model.info().vocab_size;
    const auto last = static_cast<int32_t>(vocabulary - 1);
    const std::vector<int32_t> ids = {5, 6, last, 7, 5, 6, 7, 8, 9, 10, 11};
    std::vector<float> logits(static_cast<size_t>(vocabulary));
    const Tensor out(logits.data(), {vocabulary});
    const Status status = session.append(ids, out, context);
    EXPECT_EQ(session.length(), 0);
    EXPECT_EQ(status.code(), StatusCode::kOption);
    EXPECT_EQ(status.argument(), "logits");
    const Status same =
        model.forward({.ids = ids}, {.logits = {logits.data(), {1, 1, vocabulary}}}, context);
    EXPECT_EQ(same.message(), status.message());
    int tokens = 0;
    const Status generated = models::generate(
        model, ids, {},
        [&](int32_t) {
          ++tokens;
          return true;
        },
        context);
    EXPECT_EQ(generated.message(), status.message());
    EXPECT_EQ(tokens, 0);
    return status.got();
  };
  const std::string numbers = "NaN or an infinity, ";
  EXPECT_EQ(refusal("model.layers.0.mlp.up_proj.weight"),
            numbers + "first in the output of layer 0");
  EXPECT_EQ(refusal("model.layers.1.input_layernorm.weight"),
            numbers + "first in the output of layer 1");
  EXPECT_EQ(refusal("model.norm.weight"), numbers + "first in the output of the final norm");
  EXPECT_EQ(refusal("lm_head.weight"), numbers + "although every layer's output is finite");
  EXPECT_EQ(refusal("model.embed_tokens.weight"), numbers + "first in the embedding of the tokens");
}

TEST(ModelSession, GoesOnAfterLogitsThatAreNotFinite) {
  Context context(1);
  const Model model =
      testing::open_changed("mistral", [&](const std::string& tensor, std::span<std::byte> bytes) {
        if (tensor == "model.embed_tokens.weight") testing::break_last(bytes);
      });
  const auto last = static_cast<int32_t>(model.info().vocab_size - 1);
  Session session;
  ASSERT_TRUE(Session::create(model, {}, session).ok());
  std::vector<int32_t> ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
  static_cast<void>(appended(session, model, ids, context));
  // Append as many tokens as a ring holds, and more, so that it loses keys.
  for (const size_t count : {1U, 5U, 20U}) {
    const std::vector<int32_t> wrong(count, last);
    std::vector<float> logits(static_cast<size_t>(last) + 1);
    EXPECT_FALSE(session.append(wrong, {logits.data(), {last + 1}}, context).ok());
    ids.push_back(20);
    expect_near(appended(session, model, std::span(ids).last(1), context),
                last_logits(model, ids, context), "after an error");
  }
}

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
  // Without a limit of new tokens, generation ends with the token after the last position.
  const auto positions = static_cast<size_t>(model.info().max_tokens);
  tokens.clear();
  options.max_new_tokens = std::numeric_limits<int64_t>::max();
  const auto all = [&](int32_t token) {
    tokens.push_back(token);
    return true;
  };
  ASSERT_TRUE(models::generate(model, prompt, options, all, context).ok());
  EXPECT_EQ(tokens.size(), positions - prompt.size() + 1);
  tokens.clear();
  ASSERT_TRUE(
      models::generate(model, std::vector<int32_t>(positions, 3), options, all, context).ok());
  EXPECT_EQ(tokens.size(), 1U);
  EXPECT_FALSE(models::generate(model, {}, options, all, context).ok());
  const std::vector<int32_t> long_prompt(positions + 1, 3);
  EXPECT_EQ(models::generate(model, long_prompt, options, all, context).message(),
            "prompt: expected at most 128 tokens, got 129");
}

// Returns the share of each token in many draws.
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

// Computes probabilities by the definition: tokens are sorted, the likeliest first, equal ones by
// id.
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
    // Draw few different values, so that some are equal.
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

TEST(ModelSampler, LogitsThatAreNotFiniteAreRefused) {
  const auto got = [](const std::vector<float>& given, const SamplingOptions& options) {
    std::vector<float> logits = given;
    int32_t token = -1;
    const Status status =
        Sampler(options).choose({logits.data(), {static_cast<int64_t>(logits.size())}}, {}, token);
    EXPECT_EQ(token, -1);
    EXPECT_EQ(status.argument(), "logits");
    return status.got();
  };
  for (const SamplingOptions& options : {SamplingOptions{}, {.temperature = 1.0F, .top_k = 5}}) {
    EXPECT_EQ(got({1, NAN, 2}, options), "NaN for token 1");
    EXPECT_EQ(got({INFINITY, 1, 2}, options), "infinity for token 0");
    EXPECT_EQ(got({-INFINITY, -INFINITY}, options), "-infinity alone");
  }
  int32_t token = -1;
  const Status none = Sampler().choose(Tensor(nullptr, {3}), {}, token);
  EXPECT_EQ(none.message(), "logits: expected (vocab_size), got a null pointer");
}

TEST(ModelSampler, NeverChoosesALogitOfMinusInfinity) {
  Sampler greedy, drawn({.temperature = 5.0F, .seed = 2});
  for (int draw = 0; draw < 200; ++draw) {
    for (Sampler* const sampler : {&greedy, &drawn}) {
      std::vector<float> logits = {-INFINITY, 0.0F, -INFINITY, -1.0F};
      int32_t token = -1;
      ASSERT_TRUE(sampler->choose({logits.data(), {4}}, {}, token).ok());
      EXPECT_EQ(token % 2, 1);
    }
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

// ---- Many at once: forks, rules of the caller, tokens that are looked up. ----

// The logits after `rest` of a session.
std::vector<float> logits_after(Session& session, std::span<const int32_t> rest, const Model& model,
                                Context& context) {
  const int64_t vocabulary = model.info().vocab_size;
  std::vector<float> logits(static_cast<size_t>(vocabulary));
  const Status status = session.append(rest, {logits.data(), {vocabulary}}, context);
  EXPECT_TRUE(status.ok()) << status.message();
  return logits;
}

TEST(ModelSession, AForkGoesOnAsTheFirstSessionWould) {
  Context context(1);
  // Rings that still have the keys or have lost them, and frequencies that depend on the length.
  for (const char* name : {"llama3", "mistral", "gemma3", "phi3_long", "gpt2"}) {
    for (const DType type : {DType::kF32, DType::kInt8}) {
      const Model model = open_golden(name);
      const std::vector<int32_t> ids = golden_ids(name, "long.input_ids");
      const std::span<const int32_t> all(ids);
      const auto last = static_cast<int64_t>(ids.size()) - 3;
      for (const int64_t at : {int64_t{0}, int64_t{5}, last - 1, last}) {
        Session whole, alone, fork;
        ASSERT_TRUE(Session::create(model, {.capacity = 64, .cache_type = type}, whole).ok());
        ASSERT_TRUE(Session::create(model, {.capacity = 64, .cache_type = type}, alone).ok());
        const auto first = static_cast<size_t>(at), most = static_cast<size_t>(last);
        ASSERT_TRUE(whole.append(all.first(most), {}, context).ok());
        if (at > 0) ASSERT_TRUE(alone.append(all.first(first), {}, context).ok());
        ASSERT_TRUE(whole.fork(at, 0, fork).ok());
        EXPECT_EQ(fork.length(), at);
        EXPECT_EQ(fork.capacity(), 64);
        const std::vector<float> expected =
            logits_after(alone, all.subspan(first, 2), model, context);
        const std::vector<float> got = logits_after(fork, all.subspan(first, 2), model, context);
        const float tolerance = type == DType::kF32 ? 2e-5F : 0.05F;
        for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], tolerance) << name;
        // The first session is unchanged, and the fork outlives it.
        EXPECT_EQ(whole.length(), last);
        Session other;
        ASSERT_TRUE(whole.fork(last, last + 2, other).ok());
        const std::vector<float> of_first =
            logits_after(whole, all.subspan(most, 2), model, context);
        whole = Session();
        EXPECT_EQ(logits_after(other, all.subspan(most, 2), model, context), of_first) << name;
        EXPECT_FALSE(other.append(all.first(1), {}, context).ok()) << "beyond its capacity";
      }
    }
  }
}

TEST(ModelSession, AForkCopiesOnlyWhatItNeeds) {
  Context context(1);
  const Model model = open_golden("llama3");
  Session session, fork;
  EXPECT_EQ(session.fork(0, 0, fork).message(), "session: expected one that was created, got none");
  ASSERT_TRUE(Session::create(model, {.capacity = 512}, session).ok());
  ASSERT_TRUE(session.append(std::vector<int32_t>(500, 7), {}, context).ok());
  ASSERT_TRUE(session.fork(20, 0, fork).ok());
  EXPECT_LT(fork.bytes(), session.bytes() / 5);
  EXPECT_EQ(session.fork(501, 0, fork).message(), "length: expected 0 to 500, got 501");
  EXPECT_EQ(session.fork(20, 19, fork).message(), "capacity: expected 20 or more, got 19");
  EXPECT_EQ(fork.length(), 20) << "unchanged by an error";
}

TEST(ModelSession, LogitsAfterEachTokenOfACall) {
  Context context(1);
  const Model model = open_golden("gemma3");
  const std::vector<int32_t> ids = golden_ids("gemma3", "long.input_ids");
  const std::span<const int32_t> all(ids);
  const int64_t vocabulary = model.info().vocab_size;
  const auto size = static_cast<size_t>(vocabulary);
  Session session;
  ASSERT_TRUE(Session::create(model, {.capacity = 64}, session).ok());
  ASSERT_TRUE(session.append(all, {}, context).ok());
  // The ring has lost their keys, so the next call computes more tokens than it is given.
  ASSERT_TRUE(session.truncate(6).ok());
  std::vector<float> three(3 * size);
  const Tensor wrong(three.data(), {2, vocabulary});
  EXPECT_EQ(session.append(all.subspan(6, 3), wrong, context).code(), StatusCode::kShape);
  ASSERT_TRUE(session.append(all.subspan(6, 3), {three.data(), {3, vocabulary}}, context).ok());
  for (size_t row = 0; row < 3; ++row) {
    const std::vector<int32_t> so_far(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(7 + row));
    const std::vector<float> pass = logits_of(model, so_far, context);
    for (size_t i = 0; i < size; ++i) {
      ASSERT_NEAR(three[row * size + i], pass[pass.size() - size + i], 2e-5F);
    }
  }
}

TEST(ModelSession, TokensOfACallWithOtherAnglesAreThoseOfOneAtATime) {
  Context context(1);
  for (const char* name : {"phi3_long", "llama_dynamic"}) {
    const Model model = open_golden(name);
    const std::vector<int32_t> ids = golden_ids(name, "long.input_ids");
    const std::span<const int32_t> all(ids);
    const int64_t vocabulary = model.info().vocab_size;
    const auto size = static_cast<size_t>(vocabulary);
    // The original length is 10 tokens.
    for (const size_t begin : {size_t{7}, size_t{11}}) {
      Session together, alone;
      for (Session* const session : {&together, &alone}) {
        ASSERT_TRUE(Session::create(model, {.capacity = 64}, *session).ok());
        ASSERT_TRUE(session->append(all.first(begin), {}, context).ok());
      }
      std::vector<float> five(5 * size);
      const Tensor rows(five.data(), {5, vocabulary});
      ASSERT_TRUE(together.append(all.subspan(begin, 5), rows, context).ok());
      EXPECT_EQ(together.length(), static_cast<int64_t>(begin) + 5);
      for (size_t row = 0; row < 5; ++row) {
        const std::vector<float> expected =
            logits_after(alone, all.subspan(begin + row, 1), model, context);
        for (size_t i = 0; i < size; ++i) {
          ASSERT_NEAR(five[row * size + i], expected[i], 2e-5F) << name << ", token " << row;
        }
      }
    }
  }
}

TEST(ModelSession, StepsOfSeveralAreThoseOfEach) {
  Context context(1);
  for (const char* name : kCausal) {
    const Model model = open_golden(name);
    const std::vector<int32_t> ids = golden_ids(name, "long.input_ids");
    const std::span<const int32_t> all(ids);
    const int64_t vocabulary = model.info().vocab_size;
    const auto size = static_cast<size_t>(vocabulary);
    std::vector<Session> together(3), alone(3);
    std::vector<Session*> sessions;
    const size_t begins[] = {1, ids.size() - 6, 7};
    for (size_t at = 0; at < 3; ++at) {
      for (Session* const session : {&together[at], &alone[at]}) {
        ASSERT_TRUE(Session::create(model, {.capacity = 64}, *session).ok());
        ASSERT_TRUE(session->append(all.first(begins[at]), {}, context).ok());
      }
      sessions.push_back(&together[at]);
    }
    std::vector<float> logits(3 * size);
    const Tensor of_all(logits.data(), {3, vocabulary});
    for (size_t step = 0; step < 5; ++step) {
      std::vector<int32_t> next;
      for (const size_t begin : begins) next.push_back(ids[begin + step]);
      const Status status = Session::step(sessions, next, of_all, context);
      ASSERT_TRUE(status.ok()) << status.message();
      for (size_t at = 0; at < 3; ++at) {
        const std::vector<float> expected =
            logits_after(alone[at], std::span(next).subspan(at, 1), model, context);
        for (size_t i = 0; i < size; ++i) {
          ASSERT_NEAR(logits[at * size + i], expected[i], 2e-5F) << name << ", text " << at;
        }
        EXPECT_TRUE(std::ranges::equal(together[at].ids(), alone[at].ids()));
      }
    }
    EXPECT_EQ(Session::step(sessions, all.first(2), of_all, context).argument(), "ids");
    sessions[1] = sessions[0];
    EXPECT_EQ(Session::step(sessions, all.first(3), of_all, context).argument(), "sessions");
  }
}

TEST(ModelSession, AStepOfSeveralThatFailsChangesNone) {
  Context context(1);
  const Model model = open_golden("llama3");
  const int64_t vocabulary = model.info().vocab_size;
  Session first, second;
  ASSERT_TRUE(Session::create(model, {.capacity = 9}, first).ok());
  ASSERT_TRUE(Session::create(model, {.capacity = 3}, second).ok());
  const std::vector<int32_t> three(3, 5);
  ASSERT_TRUE(first.append(three, {}, context).ok());
  ASSERT_TRUE(second.append(three, {}, context).ok());
  std::vector<float> logits(static_cast<size_t>(2 * vocabulary));
  Session* const both[] = {&first, &second};
  const Status status =
      Session::step(both, std::span(three).first(2), {logits.data(), {2, vocabulary}}, context);
  EXPECT_EQ(status.message(), "ids: expected at most 0 more tokens in a session of 3, got 1");
  EXPECT_EQ(first.length(), 3);
  Session other;
  ASSERT_TRUE(Session::create(model, {.capacity = 9}, other).ok());
  ASSERT_TRUE(other.append(three, {}, context).ok());
  EXPECT_EQ(logits_after(first, three, model, context), logits_after(other, three, model, context));
}

std::vector<int32_t> generated(const Model& model, std::span<const int32_t> prompt,
                               const GenerateOptions& options, Context& context) {
  std::vector<int32_t> tokens;
  const auto collect = [&](int32_t token) {
    tokens.push_back(token);
    return true;
  };
  const Status status = models::generate(model, prompt, options, collect, context);
  EXPECT_TRUE(status.ok()) << status.message();
  return tokens;
}

TEST(ModelGenerate, ALogitsProcessorComesBeforeAllOtherRules) {
  Context context(1);
  const Model model = open_golden("gpt2");
  const std::vector<int32_t> prompt = golden_ids("gpt2", "greedy.input_ids");
  std::vector<int32_t> seen;
  int32_t fresh = 0;  // not in the prompt
  while (std::find(prompt.begin(), prompt.end(), fresh) != prompt.end()) ++fresh;
  // Allows two tokens. The second has the larger logit before the penalty, and the smaller one
  // after it.
  const auto two = [&](std::span<const int32_t> ids, std::span<float> logits) -> Status {
    seen.assign(ids.begin(), ids.end());
    std::fill(logits.begin(), logits.end(), -std::numeric_limits<float>::infinity());
    logits[static_cast<size_t>(fresh)] = 1;
    logits[static_cast<size_t>(prompt.back())] = 2;
    return {};
  };
  GenerateOptions options{.max_new_tokens = 3, .logits_processor = two};
  options.stop_ids.emplace();
  EXPECT_EQ(generated(model, prompt, options, context), std::vector<int32_t>(3, prompt.back()));
  EXPECT_EQ(seen.size(), prompt.size() + 2);
  EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), seen.begin()));
  options.sampling.repetition_penalty = 4;
  EXPECT_EQ(generated(model, prompt, options, context).front(), fresh);
  const auto message = [&](float value) {
    options.logits_processor = [value](std::span<const int32_t>, std::span<float> logits) {
      std::fill(logits.begin(), logits.end(), value);
      return Status();
    };
    return models::generate(model, prompt, options, {}, context).message();
  };
  const std::string expected =
      "logits: expected finite numbers, or -infinity where a token is not wanted, got ";
  EXPECT_EQ(message(-std::numeric_limits<float>::infinity()), expected + "-infinity alone");
  EXPECT_EQ(message(NAN), expected + "NaN for token 0");
  options.logits_processor = [](std::span<const int32_t>, std::span<float>) -> Status {
    return {StatusCode::kOption, "grammar", "one", "none"};
  };
  EXPECT_EQ(models::generate(model, prompt, options, {}, context).argument(), "grammar");
  options.sampling = {};
  options.num_beams = 2;
  EXPECT_EQ(models::generate(model, prompt, options, {}, context).argument(), "logits_processor");
}

TEST(ModelGenerate, LookedUpTokensAreThoseOfOneAtATime) {
  Context context(1);
  int64_t accepted_of_all = 0;
  for (const char* name : kCausal) {
    const Model model = open_golden(name);
    const std::vector<int32_t> start = golden_ids(name, "long.input_ids");
    std::vector<int32_t> prompt(start.begin(), start.begin() + 6);
    prompt.insert(prompt.end(), start.begin(), start.begin() + 3);
    for (const float temperature : {0.0F, 0.3F}) {
      GenerateOptions options{.max_new_tokens = 24};
      options.sampling = {.temperature = temperature, .repetition_penalty = 1.05F, .seed = 5};
      options.stop_ids.emplace();
      const std::vector<int32_t> plain = generated(model, prompt, options, context);
      int64_t accepted = -1;
      options.accepted = &accepted;
      for (const int64_t most : {1, 3, 8}) {
        options.prompt_lookup_num_tokens = most;
        EXPECT_EQ(generated(model, prompt, options, context), plain) << name << ", " << most;
        EXPECT_GE(accepted, 0);
        accepted_of_all += accepted;
      }
      // Ends in the middle of accepted tokens.
      options.stop_ids = {plain[7]};
      const auto end = std::find(plain.begin(), plain.end(), plain[7]) + 1;
      EXPECT_EQ(generated(model, prompt, options, context),
                std::vector<int32_t>(plain.begin(), end));
    }
  }
  EXPECT_GT(accepted_of_all, 100);
}

TEST(ModelGenerate, WrongLookUpsAreRefused) {
  Context context(1);
  const Model model = open_golden("gpt2");
  const std::vector<int32_t> prompt(2, 3);
  const auto argument = [&](const GenerateOptions& options) {
    return models::generate(model, prompt, options, {}, context).argument();
  };
  EXPECT_EQ(argument({.prompt_lookup_num_tokens = 65}), "prompt_lookup_num_tokens");
  EXPECT_EQ(argument({.prompt_lookup_num_tokens = -1}), "prompt_lookup_num_tokens");
  EXPECT_EQ(argument({.max_matching_ngram_size = 0}), "max_matching_ngram_size");
  EXPECT_EQ(argument({.prompt_lookup_num_tokens = 2, .num_beams = 2}), "prompt_lookup_num_tokens");
}

}  // namespace
}  // namespace multihead
