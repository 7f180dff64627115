// Encoder–decoder models: both stacks, cross-attention's values, sessions with both caches, rules
// of tokens and searches with beams. The numbers of transformers are golden cases.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/golden_models.h"
#include "multihead/analysis.h"
#include "multihead/model_training.h"
#include "multihead/models.h"
#include "multihead/safetensors.h"
#include "support/allocations.h"
#include "support/random_case.h"

namespace multihead {
namespace {

using models::BeamSearch;
using models::Capture;
using models::Edit;
using models::GenerateOptions;
using models::Model;
using models::ModelInputs;
using models::ModelOutputs;
using models::Sampler;
using models::Session;
using models::Site;
using models::TokenRules;
using testing::open_golden;

constexpr const char* kBoth[] = {"t5_seq2seq", "t5_gated_seq2seq", "mt5",  "umt5",
                                 "marian",     "marian_two",       "bart", "mbart",
                                 "m2m_100"};

std::vector<int32_t> random_ids(const models::ModelInfo& info, int64_t count, uint64_t seed) {
  testing::Random random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  // From 4 on: small ids are padding in some families.
  for (int32_t& id : ids) id = static_cast<int32_t>(random.integer(4, info.vocab_size - 2));
  return ids;
}

// A model with a source and decoder ids.
struct Given {
  Model model;
  std::vector<int32_t> source, ids;

  explicit Given(const std::string& name, int64_t source_tokens = 7, int64_t tokens = 5)
      : model(open_golden(name)),
        source(random_ids(model.encoder().info(), source_tokens, 1)),
        ids(random_ids(model.info(), tokens, 2)) {}

  int64_t count() const { return std::ssize(ids); }
  int64_t source_count() const { return std::ssize(source); }
  ModelInputs inputs(std::span<const Edit> edits = {}) const {
    return {.ids = ids, .edits = edits, .source = source};
  }
};

struct Numbers {
  std::vector<float> data;
  Dims shape;

  explicit Numbers(const Dims& dims) : data(static_cast<size_t>(dims.elements())), shape(dims) {}
  Tensor tensor() { return {data.data(), shape}; }
  ConstTensor view() const { return {data.data(), shape}; }
};

// Logits of all tokens, or of the last one.
std::vector<float> logits_of(const Model& model, const ModelInputs& inputs, Context& context,
                             bool last = false) {
  const int64_t rows = last ? 1 : std::ssize(inputs.ids);
  Numbers logits({1, rows, model.info().vocab_size});
  const Status status = model.forward(inputs, {.logits = logits.tensor()}, context);
  EXPECT_TRUE(status.ok()) << status.message();
  return logits.data;
}

Dims shape_of(const Given& given, Site site) {
  const models::ModelInfo& info = given.model.info();
  const int64_t n = given.count(), s = given.source_count();
  switch (site) {
    case Site::kCrossQ:
    case Site::kCrossZ:
      return {1, n, info.num_heads, info.head_dim};
    case Site::kCrossK:
    case Site::kCrossV:
      return {1, s, info.num_kv_heads, info.head_dim};
    case Site::kCrossScores:
    case Site::kCrossPattern:
      return {1, info.num_heads, n, s};
    default:
      return {1, n, info.embed_dim};
  }
}

Numbers captured(const Given& given, Site site, int64_t layer, Context& context,
                 std::span<const Edit> edits = {}) {
  Numbers numbers(shape_of(given, site));
  const Capture capture{.site = site, .layer = layer, .out = numbers.tensor()};
  const Status status =
      given.model.forward(given.inputs(edits), {.captures = {&capture, 1}}, context);
  EXPECT_TRUE(status.ok()) << status.message();
  return numbers;
}

void expect_near(std::span<const float> got, std::span<const float> wanted, float tolerance,
                 const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], wanted[i], tolerance) << what;
}

TEST(EncoderDecoder, CrossAttentionFollowsFromItsParts) {
  Context context(1);
  for (const char* const name : kBoth) {
    const Given given(name);
    const models::ModelInfo& info = given.model.info();
    const auto n = static_cast<size_t>(given.count()),
               s = static_cast<size_t>(given.source_count());
    const auto heads = static_cast<size_t>(info.num_heads), d = static_cast<size_t>(info.head_dim);
    const bool is_t5 = info.model_type.ends_with("t5");
    const double scale = is_t5 ? 1.0 : 1.0 / std::sqrt(static_cast<double>(d));
    for (int64_t layer = 0; layer < info.num_layers; ++layer) {
      const auto of = [&](Site site) { return captured(given, site, layer, context).data; };
      const auto q = of(Site::kCrossQ), k = of(Site::kCrossK), v = of(Site::kCrossV);
      const auto scores = of(Site::kCrossScores), pattern = of(Site::kCrossPattern);
      const auto z = of(Site::kCrossZ);
      for (size_t h = 0; h < heads; ++h) {
        for (size_t i = 0; i < n; ++i) {
          std::vector<double> row(s), mean(d);
          double sum = 0;
          for (size_t j = 0; j < s; ++j) {
            double product = 0;
            for (size_t c = 0; c < d; ++c) {
              product += static_cast<double>(q[(i * heads + h) * d + c]) *
                         static_cast<double>(k[(j * heads + h) * d + c]);
            }
            ASSERT_NEAR(scores[(h * n + i) * s + j], scale * product, 1e-4) << name;
            row[j] = std::exp(scale * product);
            sum += row[j];
          }
          for (size_t j = 0; j < s; ++j) {
            ASSERT_NEAR(pattern[(h * n + i) * s + j], row[j] / sum, 1e-4) << name;
            for (size_t c = 0; c < d; ++c) {
              mean[c] += row[j] / sum * static_cast<double>(v[(j * heads + h) * d + c]);
            }
          }
          for (size_t c = 0; c < d; ++c) {
            ASSERT_NEAR(z[(i * heads + h) * d + c], mean[c], 2e-4) << name;
          }
        }
      }
      if (info.model_type == "bart" || info.model_type == "marian") continue;  // norms after sums
      const auto mid = of(Site::kResidMid), out = of(Site::kCrossAttnOut);
      const auto after = of(Site::kResidMidCross);
      for (size_t i = 0; i < mid.size(); ++i) ASSERT_NEAR(mid[i] + out[i], after[i], 1e-4) << name;
    }
  }
}

constexpr Site kCross[] = {Site::kCrossQ,       Site::kCrossK,       Site::kCrossV,
                           Site::kCrossScores,  Site::kCrossPattern, Site::kCrossZ,
                           Site::kCrossAttnOut, Site::kResidMidCross};

TEST(EncoderDecoder, EditsChangeWhatIsComputedLater) {
  Context context(1);
  for (const char* const name : {"t5_seq2seq", "marian", "mbart"}) {
    const Given given(name);
    const std::vector<float> plain = logits_of(given.model, given.inputs(), context);
    for (const Site site : kCross) {
      const std::string what = std::string(name) + ' ' + models::name_of(site);
      const Numbers own = captured(given, site, 1, context);
      const Edit same{
          .site = site, .layer = 1, .action = Edit::Action::kReplace, .value = own.view()};
      expect_near(logits_of(given.model, given.inputs({&same, 1}), context), plain, 2e-4F, what);
      const Edit half{.site = site, .layer = 1, .action = Edit::Action::kScale, .factor = 0.5F};
      const Numbers halved = captured(given, site, 1, context, {&half, 1});
      for (size_t i = 0; i < own.data.size(); ++i) {
        ASSERT_NEAR(halved.data[i], 0.5F * own.data[i], 1e-6 * (1 + std::abs(own.data[i]))) << what;
      }
      EXPECT_NE(logits_of(given.model, given.inputs({&half, 1}), context), plain) << what;
    }
  }
}

TEST(EncoderDecoder, TheEncoderIsAModelByItself) {
  Context context(1);
  for (const char* const name : kBoth) {
    Given given(name);
    const models::ModelInfo info = given.model.encoder().info();
    EXPECT_FALSE(info.causal);
    EXPECT_FALSE(info.has_encoder);
    EXPECT_TRUE(given.model.info().has_encoder);
    EXPECT_LT(info.parameters, given.model.info().parameters);
    const float factor = 0.25F;
    const Edit edit{
        .site = Site::kZ, .heads = {0}, .action = Edit::Action::kScale, .factor = factor};
    Numbers together({1, given.source_count(), info.embed_dim});
    ModelInputs inputs = given.inputs();
    inputs.source_edits = {&edit, 1};
    ASSERT_TRUE(given.model.forward(inputs, {.source_state = together.tensor()}, context).ok());
    // The encoder keeps the weights that both share.
    const Model encoder = given.model.encoder();
    given.model = Model();
    Numbers alone({1, given.source_count(), info.embed_dim});
    ASSERT_TRUE(encoder
                    .forward({.ids = given.source, .edits = {&edit, 1}},
                             {.last_hidden_state = alone.tensor()}, context)
                    .ok());
    EXPECT_EQ(together.data, alone.data) << name;
  }
  EXPECT_EQ(open_golden("bert").encoder().info().model_type, "");
}

TEST(EncoderDecoder, AFolderWithAnEncoderAloneIsOne) {
  Context context(1);
  models::Config config;
  Safetensors file;
  const std::string folder = testing::model_folder("t5_seq2seq");
  ASSERT_TRUE(models::read_config(folder + "/config.json", config).ok());
  ASSERT_TRUE(Safetensors::read(folder + "/model.safetensors", file).ok());
  const auto load = [&](const char* architecture, bool all, Model& model) {
    config["architectures.0"].text = architecture;
    std::vector<models::StoredTensor> tensors;
    std::vector<std::span<const std::byte>> bytes;
    for (const auto& [name, entry] : file.entries()) {
      if (!all && name.starts_with("decoder.")) continue;
      tensors.push_back({name, "BF16", entry.shape});
      bytes.push_back(std::as_bytes(std::span(entry.data)));
    }
    models::ModelLoader loader;
    Status status = models::ModelLoader::create(config, tensors, {}, loader);
    for (const size_t i : loader.needed()) {
      if (status.ok()) status = loader.give(i, bytes[i]);
    }
    return status.ok() ? loader.finish(model) : status;
  };
  const Given given("t5_seq2seq");
  const std::pair<const char*, bool> alone[] = {
      {"T5EncoderModel", true}, {"T5EncoderModel", false}, {"T5Model", false}};
  for (const auto& [architecture, all] : alone) {
    Model model;
    const Status status = load(architecture, all, model);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_FALSE(model.info().has_encoder);
    EXPECT_EQ(model.info().num_layers, 2);
    Numbers state({1, given.source_count(), 24}), wanted = state;
    ASSERT_TRUE(
        model.forward({.ids = given.source}, {.last_hidden_state = state.tensor()}, context).ok());
    ASSERT_TRUE(
        given.model.forward(given.inputs(), {.source_state = wanted.tensor()}, context).ok());
    EXPECT_EQ(state.data, wanted.data);
  }
  Model model;
  EXPECT_EQ(load("T5ForConditionalGeneration", false, model).code(), StatusCode::kFormat);
  EXPECT_EQ(load("T5ForSequenceClassification", true, model).argument(), "architectures.0");
  ASSERT_TRUE(load("T5Model", true, model).ok());
  EXPECT_EQ(model.info().output, models::Output::kNone);
}

// A file of Marian may have its table of positions.
TEST(EncoderDecoder, AnEncodersOwnEmbeddingIsATable) {
  models::OpenOptions options{.weights = WeightType::kF32};
  const models::ModelInfo plain = open_golden("marian_two", options).encoder().info();
  options.embedding_weights = WeightType::kBF16;
  const models::ModelInfo tables = open_golden("marian_two", options).encoder().info();
  EXPECT_EQ(plain.weight_bytes - tables.weight_bytes, 2 * plain.vocab_size * plain.embed_dim);
}

TEST(EncoderDecoder, AStoredTableOfPositionsIsUsed) {
  Context context(1);
  const Given given("marian");
  const std::string folder = testing::model_folder("marian");
  models::Config config;
  Safetensors file;
  ASSERT_TRUE(models::read_config(folder + "/config.json", config).ok());
  ASSERT_TRUE(Safetensors::read(folder + "/model.safetensors", file).ok());
  std::vector<float> plain;
  for (const float factor : {1.0F, 0.0F}) {
    Numbers table({48, 24});
    for (int64_t position = 0; position < 48; ++position) {
      for (int64_t i = 0; i < 12; ++i) {
        const double angle =
            static_cast<double>(position) / std::pow(10000.0, static_cast<double>(i) / 12.0);
        const auto at = static_cast<size_t>(position * 24 + i);
        table.data[at] = factor * static_cast<float>(std::sin(angle));
        table.data[at + 12] = factor * static_cast<float>(std::cos(angle));
      }
    }
    std::vector<models::StoredTensor> tensors;
    std::vector<std::span<const std::byte>> bytes;
    for (const auto& [name, entry] : file.entries()) {
      tensors.push_back({name, "BF16", entry.shape});
      bytes.push_back(std::as_bytes(std::span(entry.data)));
    }
    for (const char* const stack : {"encoder", "decoder"}) {
      tensors.push_back(
          {"model." + std::string(stack) + ".embed_positions.weight", "F32", {48, 24}});
      bytes.push_back(std::as_bytes(std::span(table.data)));
    }
    models::ModelLoader loader;
    Model model;
    ASSERT_TRUE(models::ModelLoader::create(config, tensors, {}, loader).ok());
    for (const size_t i : loader.needed()) ASSERT_TRUE(loader.give(i, bytes[i]).ok());
    ASSERT_TRUE(loader.finish(model).ok());
    const std::vector<float> logits = logits_of(model, given.inputs(), context);
    const std::vector<float> computed = logits_of(given.model, given.inputs(), context);
    if (factor == 1.0F) expect_near(logits, computed, 1e-5F, "the same table");
    if (factor == 0.0F) EXPECT_NE(logits, computed);
  }
}

// ---- Sessions. ----

std::vector<float> appended(Session& session, const Model& model, std::span<const int32_t> ids,
                            Context& context) {
  std::vector<float> logits(static_cast<size_t>(model.info().vocab_size));
  const Status status = session.append(ids, {logits.data(), {model.info().vocab_size}}, context);
  EXPECT_TRUE(status.ok()) << status.message();
  return logits;
}

void expect_steps(const char* name, DType type, float tolerance) {
  Context context(1);
  const Given given(name, 11, 30);
  Session session;
  ASSERT_TRUE(Session::create(given.model, {.capacity = 40, .cache_type = type}, session).ok());
  // The second source has more tokens than the first: nothing of the first is left.
  for (const int64_t tokens : {4, 11}) {
    const auto source = std::span(given.source).first(static_cast<size_t>(tokens));
    ASSERT_TRUE(session.encode(source, {}, context).ok());
    EXPECT_EQ(session.length(), 0);
    for (const int64_t step : {1, 1, 3, -2, 1, 9, -12, 1, 1, 20}) {
      const int64_t length = session.length();
      if (step < 0) {
        ASSERT_TRUE(session.truncate(length + step).ok());
        continue;
      }
      const auto so_far = std::span(given.ids).first(static_cast<size_t>(length + step));
      const std::vector<float> logits =
          appended(session, given.model, so_far.last(static_cast<size_t>(step)), context);
      expect_near(logits, logits_of(given.model, {.ids = so_far, .source = source}, context, true),
                  tolerance, std::string(name) + " after " + std::to_string(length + step));
    }
  }
}

TEST(EncoderDecoder, EachStepHasTheLogitsOfOnePass) {
  for (const char* const name : kBoth) expect_steps(name, DType::kF32, 2e-4F);
}

TEST(EncoderDecoder, BothCachesHaveTheTypeOfTheOption) {
  expect_steps("bart", DType::kF16, 0.05F);
  Context context(1);
  const Given given("bart", 11, 3);
  int64_t bytes[2] = {};
  for (const bool half : {false, true}) {
    Session session;
    ASSERT_TRUE(
        Session::create(given.model, {.cache_type = half ? DType::kF16 : DType::kF32}, session)
            .ok());
    const int64_t before = session.bytes();
    ASSERT_TRUE(session.encode(given.source, {}, context).ok());
    bytes[half ? 1 : 0] = session.bytes() - before;
  }
  EXPECT_GT(bytes[1], 0);
  EXPECT_LT(bytes[1], bytes[0]);
}

TEST(EncoderDecoder, AStepAllocatesNothing) {
  Context context(1);
  for (const char* const name : kBoth) {
    const Given given(name, 6, 40);
    Session session;
    ASSERT_TRUE(Session::create(given.model, {.capacity = 46}, session).ok());
    ASSERT_TRUE(session.encode(given.source, {}, context).ok());
    std::vector<float> numbers(static_cast<size_t>(given.model.info().vocab_size));
    const Tensor logits(numbers.data(), {given.model.info().vocab_size});
    const auto step = [&](size_t at) {
      return session.append(std::span(given.ids).subspan(at, 1), logits, context);
    };
    // T5's biases grow with the tokens, and their memory by steps.
    for (size_t at = 0; at < 20; ++at) ASSERT_TRUE(step(at).ok());
    ASSERT_TRUE(session.truncate(2).ok());
    const int64_t before = testing::allocations();
    for (size_t at = 0; at < 8; ++at) ASSERT_TRUE(step(at).ok());
    EXPECT_EQ(testing::allocations(), before) << name;
  }
}

TEST(EncoderDecoder, EditsOfASessionAreThoseOfOnePass) {
  Context context(1);
  for (const char* const name : {"t5_gated_seq2seq", "marian", "m2m_100"}) {
    const Given given(name, 7, 9);
    for (const Site site : kCross) {
      Edit edit{.site = site, .layer = 1, .action = Edit::Action::kScale, .factor = 0.5F};
      // In cross_k and cross_v, these are tokens of the source.
      edit.tokens = {1, 3};
      Session session;
      const Status created = Session::create(given.model, {.edits = {edit}}, session);
      ASSERT_TRUE(created.ok()) << created.message();
      ASSERT_TRUE(session.encode(given.source, {}, context).ok());
      for (size_t done = 0; done < given.ids.size();) {
        const size_t next = done + (done == 0 ? 2 : done < 4 ? 1 : 3);
        const size_t end = std::min(next, given.ids.size());
        const auto so_far = std::span(given.ids).first(end);
        const std::vector<float> logits =
            appended(session, given.model, so_far.subspan(done), context);
        Edit of_pass = edit;
        const bool of_source = site == Site::kCrossK || site == Site::kCrossV;
        if (!of_source)
          std::erase_if(of_pass.tokens,
                        [&](int64_t token) { return token >= static_cast<int64_t>(end); });
        const ModelInputs inputs{.ids = so_far, .edits = {&of_pass, 1}, .source = given.source};
        expect_near(logits, logits_of(given.model, inputs, context, true), 2e-4F,
                    std::string(name) + ' ' + models::name_of(site));
        done = end;
      }
    }
    // An edit of the encoder.
    const Edit edit{
        .site = Site::kResidPost, .tokens = {2}, .action = Edit::Action::kScale, .factor = -1.0F};
    Session session;
    ASSERT_TRUE(Session::create(given.model, {}, session).ok());
    ASSERT_TRUE(session.encode(given.source, {&edit, 1}, context).ok());
    const ModelInputs inputs{.ids = given.ids, .source = given.source, .source_edits = {&edit, 1}};
    expect_near(appended(session, given.model, given.ids, context),
                logits_of(given.model, inputs, context, true), 2e-4F, name);
  }
}

// A call that fails in layer 1 has filled the cache of layer 0 alone.
TEST(EncoderDecoder, GoesOnAfterACallThatFailed) {
  Context context(1);
  const Given given("m2m_100", 9, 6);
  const Edit edit{.site = Site::kResidMid,
                  .layer = 1,
                  .tokens = {3},
                  .action = Edit::Action::kScale,
                  .factor = 3e38F};
  Session session;
  ASSERT_TRUE(Session::create(given.model, {.edits = {edit}}, session).ok());
  ASSERT_TRUE(session.encode(given.source, {}, context).ok());
  EXPECT_EQ(session.append(given.ids, {}, context).argument(), "edits");
  EXPECT_EQ(session.length(), 0);
  const auto first = std::span(given.ids).first(3);
  Context fresh(1);  // without memory of the call before
  expect_near(appended(session, given.model, first, fresh),
              logits_of(given.model, {.ids = first, .source = given.source}, context, true), 2e-4F,
              "after an error");
}

TEST(EncoderDecoder, AForkKeepsTheSource) {
  Context context(1);
  const Given given("t5_seq2seq", 13, 12);
  Session session, fork;
  ASSERT_TRUE(Session::create(given.model, {}, session).ok());
  ASSERT_TRUE(session.encode(given.source, {}, context).ok());
  appended(session, given.model, std::span(given.ids).first(6), context);
  ASSERT_TRUE(session.fork(4, 0, fork).ok());
  // Another source of the first session does not change the fork's.
  ASSERT_TRUE(session.encode(std::span(given.source).first(3), {}, context).ok());
  expect_near(appended(fork, given.model, std::span(given.ids).subspan(4), context),
              logits_of(given.model, given.inputs(), context, true), 2e-4F, "t5");
}

TEST(EncoderDecoder, HasTheSameBitsWithAnyNumberOfThreads) {
  for (const char* const name : {"t5_seq2seq", "marian"}) {
    const Given given(name, 13, 12);
    Context one(1), three(3);
    EXPECT_EQ(logits_of(given.model, given.inputs(), one),
              logits_of(given.model, given.inputs(), three));
  }
}

// ---- Rules of tokens. ----

int32_t chosen(const TokenRules& rules, std::vector<int32_t> before, int64_t begin, int64_t end,
               std::vector<float> logits = {1, 5, 4, 3, 2}) {
  Sampler sampler({}, rules, begin, end);
  int32_t token = -1;
  const Status status = sampler.choose({logits.data(), {std::ssize(logits)}}, before, token);
  EXPECT_TRUE(status.ok()) << status.message();
  return token;
}

TEST(TokenRules, AreThoseOfTransformers) {
  EXPECT_EQ(chosen({}, {0}, 1, 0), 1);
  // The second token, whatever the logits say.
  EXPECT_EQ(chosen({.forced_bos = 4}, {0}, 1, 0), 4);
  EXPECT_EQ(chosen({.forced_bos = 4}, {0, 4}, 1, 0), 1);
  // The last one.
  EXPECT_EQ(chosen({.forced_eos = 0}, {0, 2}, 1, 4), 1);
  EXPECT_EQ(chosen({.forced_eos = 0}, {0, 2, 2}, 1, 4), 0);
  EXPECT_EQ(chosen({.forced_eos = 0}, {0, 2, 2}, 1, 0), 1);
  EXPECT_EQ(chosen({.suppress = {1, 2}}, {0}, 1, 0), 3);
  // The first new one, or the one after a forced one.
  EXPECT_EQ(chosen({.begin_suppress = {1}}, {0}, 1, 0), 2);
  EXPECT_EQ(chosen({.begin_suppress = {1}}, {0, 2}, 1, 0), 1);
  EXPECT_EQ(chosen({.forced_bos = 4, .begin_suppress = {1}}, {0, 4}, 1, 0), 2);
  EXPECT_EQ(chosen({.forced_bos = 4, .begin_suppress = {1}}, {0, 2, 3}, 3, 0), 2);
  EXPECT_EQ(chosen({.bad_words = {{1}}}, {0}, 1, 0), 2);
  EXPECT_EQ(chosen({.bad_words = {{3, 2, 1}}}, {0, 3, 2}, 1, 0), 2);
  EXPECT_EQ(chosen({.bad_words = {{3, 2, 1}}}, {0, 2}, 1, 0), 1);
  EXPECT_EQ(chosen({.bad_words = {{3, 2, 1}}}, {2}, 1, 0), 1);
  // A word that is longer than the text does not count.
  EXPECT_EQ(chosen({.bad_words = {{3, 2, 1}}}, {3, 2}, 1, 0), 1);
  EXPECT_EQ(chosen({.no_repeat_ngram_size = 1}, {1, 2}, 1, 0), 3);
  EXPECT_EQ(chosen({.no_repeat_ngram_size = 2}, {3, 1, 3, 2, 3}, 1, 0), 3);
  EXPECT_EQ(chosen({.no_repeat_ngram_size = 2}, {3, 1, 2}, 1, 0), 1);
  EXPECT_EQ(chosen({.no_repeat_ngram_size = 3}, {3, 2, 1, 3, 2}, 1, 0), 2);
  EXPECT_EQ(chosen({.no_repeat_ngram_size = 3}, {2}, 1, 0), 1);
  EXPECT_EQ(chosen({.encoder_no_repeat_ngram_size = 2, .source = {0, 1, 9}}, {0}, 1, 0), 2);
  EXPECT_EQ(chosen({.encoder_no_repeat_ngram_size = 2, .source = {0, 9}}, {0}, 1, 0), 1);
  EXPECT_EQ(chosen({.encoder_no_repeat_ngram_size = 3, .source = {0, 1, 2}}, {0}, 1, 0), 1);
  // The start counts for min_length, and not for min_new_tokens.
  EXPECT_EQ(chosen({.min_length = 2, .ends = {1, 9}}, {0}, 1, 0), 2);
  EXPECT_EQ(chosen({.min_length = 2, .ends = {1}}, {0, 2}, 1, 0), 1);
  EXPECT_EQ(chosen({.min_length = 9, .min_new_tokens = 2, .ends = {1}}, {0, 2}, 1, 0), 2);
  EXPECT_EQ(chosen({.min_length = 9, .min_new_tokens = 2, .ends = {1}}, {0, 2, 2}, 1, 0), 1);
  Sampler wrong({}, {.suppress = {5}});
  std::vector<float> logits(5);
  int32_t token = 0;
  EXPECT_EQ(wrong.choose({logits.data(), {5}}, {}, token).argument(), "suppress");
  Sampler none({}, {.suppress = {0, 1, 2, 3, 4}});
  EXPECT_EQ(none.choose({logits.data(), {5}}, {}, token).argument(), "logits");
  Sampler negative({}, {.min_length = -1});
  EXPECT_EQ(negative.choose({logits.data(), {5}}, {}, token).argument(), "min_length");
}

TEST(TokenRules, AreReadFromTheFolder) {
  const models::ModelInfo marian = open_golden("marian").info();
  EXPECT_EQ(marian.decoder_start, 79);
  EXPECT_EQ(marian.rules.forced_eos, 0);
  EXPECT_EQ(marian.rules.bad_words, (std::vector<std::vector<int32_t>>{{79}}));
  EXPECT_EQ(marian.end_ids, std::vector<int32_t>{0});
  EXPECT_EQ(open_golden("m2m_100").info().rules.forced_bos, 11);
  models::Config config;
  ASSERT_TRUE(models::read_config(testing::model_folder("bart") + "/config.json", config).ok());
  const auto rules_with = [&](const std::vector<std::pair<std::string, double>>& settings) {
    models::Config changed = config;
    for (const auto& [name, value] : settings) {
      changed[name] = {models::ConfigValue::Kind::kNumber, value, {}};
    }
    models::ModelLoader loader;
    return models::ModelLoader::create(changed, {}, {}, loader);
  };
  // Without tensors the weights are missing.
  EXPECT_EQ(rules_with({{"suppress_tokens.0", 3}, {"suppress_tokens.1", 79}}).argument(),
            "weights");
  EXPECT_EQ(rules_with({{"suppress_tokens.0", 80}}).argument(), "config.json: suppress_tokens.0");
  EXPECT_EQ(rules_with({{"generation_config.json/forced_bos_token_id", 1.5}}).argument(),
            "generation_config.json: forced_bos_token_id");
  // If that file exists, rules in config.json do not count.
  EXPECT_EQ(rules_with({{"suppress_tokens.0", 80}, {"generation_config.json/pad_token_id", 1}})
                .argument(),
            "weights");
  for (const char* const name : {"no_repeat_ngram_size", "min_length", "num_beams", "max_length"}) {
    EXPECT_EQ(rules_with({{name, -1}}).argument(), "config.json: " + std::string(name));
  }
  EXPECT_EQ(rules_with({{"repetition_penalty", 0}}).argument(), "config.json: repetition_penalty");
}

// ---- Generation. ----

std::vector<int32_t> generated(const Model& model, std::span<const int32_t> prompt,
                               const GenerateOptions& options, Context& context) {
  std::vector<int32_t> tokens;
  const Status status = models::generate(
      model, prompt, options,
      [&](int32_t token) {
        tokens.push_back(token);
        return true;
      },
      context);
  EXPECT_TRUE(status.ok()) << status.message();
  return tokens;
}

TEST(EncoderDecoder, ContinuesWhatTheDecoderBeginsWith) {
  Context context(1);
  const Given given("t5_gated_seq2seq");
  const GenerateOptions options{.max_new_tokens = 6, .stop_ids = {{}}};
  const std::vector<int32_t> all = generated(given.model, given.source, options, context);
  GenerateOptions later = options;
  later.max_new_tokens = 4;
  later.decoder_prompt = {given.model.info().decoder_start, all[0], all[1]};
  EXPECT_EQ(generated(given.model, given.source, later, context),
            std::vector<int32_t>(all.begin() + 2, all.end()));
  // Sampling with one token left is greedy.
  GenerateOptions sampled = options;
  sampled.sampling = {.temperature = 1.0F, .top_k = 1};
  EXPECT_EQ(generated(given.model, given.source, sampled, context), all);
  const Edit edit{.site = Site::kResidPost, .action = Edit::Action::kScale, .factor = -2.0F};
  GenerateOptions edited = options;
  edited.source_edits = {edit};
  EXPECT_NE(generated(given.model, given.source, edited, context), all);
}

// Tries all continuations of two tokens, and returns the likeliest. A search with many beams finds
// the same.
std::vector<int32_t> likeliest_pair(const Model& model, std::span<const int32_t> source,
                                    std::vector<int32_t> before, Context& context) {
  const auto log_softmax = [](std::vector<float> logits) {
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    for (float& logit : logits) logit -= static_cast<float>(std::log(sum));
    return logits;
  };
  const std::vector<float> first =
      log_softmax(logits_of(model, {.ids = before, .source = source}, context, true));
  std::vector<int32_t> best;
  float most = -std::numeric_limits<float>::infinity();
  for (size_t a = 0; a < first.size(); ++a) {
    std::vector<int32_t> ids = before;
    ids.push_back(static_cast<int32_t>(a));
    const std::vector<float> second =
        log_softmax(logits_of(model, {.ids = ids, .source = source}, context, true));
    const auto b =
        static_cast<size_t>(std::max_element(second.begin(), second.end()) - second.begin());
    if (first[a] + second[b] <= most) continue;
    most = first[a] + second[b];
    best = {static_cast<int32_t>(a), static_cast<int32_t>(b)};
  }
  return best;
}

TEST(BeamSearch, FindsTheLikeliestPair) {
  Context context(1);
  GenerateOptions options{.max_new_tokens = 2, .stop_ids = {{}}, .rules = TokenRules()};
  options.num_beams = 60;
  for (const char* const name : {"t5_seq2seq", "t5_gated_seq2seq", "marian", "mbart"}) {
    const Given given(name);
    const std::vector<int32_t> start(1, given.model.info().decoder_start);
    EXPECT_EQ(generated(given.model, given.source, options, context),
              likeliest_pair(given.model, given.source, start, context))
        << name;
  }
  const Model causal = open_golden("qwen3");
  const std::vector<int32_t> prompt = random_ids(causal.info(), 6, 5);
  EXPECT_EQ(generated(causal, prompt, options, context),
            likeliest_pair(causal, {}, prompt, context));
}

TEST(BeamSearch, OneBeamIsGreedy) {
  Context context(1);
  for (const char* const name : kBoth) {
    const Given given(name);
    const GenerateOptions options{.max_new_tokens = 9};
    BeamSearch search;
    ASSERT_TRUE(BeamSearch::create(given.model, given.source, options, search, context).ok());
    for (bool done = false; !done;) ASSERT_TRUE(search.step(done, context).ok());
    EXPECT_EQ(std::vector<int32_t>(search.ids().begin(), search.ids().end()),
              generated(given.model, given.source, options, context));
  }
}

TEST(BeamSearch, RefusesWrongOptions) {
  Context context(1);
  const Given given("marian");
  const auto refused = [&](const GenerateOptions& options) {
    return models::generate(given.model, given.source, options, {}, context).argument();
  };
  EXPECT_EQ(refused({.num_beams = 0}), "num_beams");
  EXPECT_EQ(refused({.num_beams = 65}), "num_beams");
  EXPECT_EQ(refused({.sampling = {.temperature = 1.0F}, .num_beams = 2}), "temperature");
  EXPECT_EQ(refused({.num_beams = 2, .length_penalty = NAN}), "length_penalty");
  EXPECT_EQ(refused({.rules = TokenRules{.suppress = {99}}, .num_beams = 2}), "suppress");
  EXPECT_TRUE(
      generated(given.model, given.source, {.max_new_tokens = 0, .num_beams = 3}, context).empty());
  BeamSearch none;
  bool done = false;
  EXPECT_EQ(none.step(done, context).argument(), "search");
  EXPECT_TRUE(none.ids().empty());
}

// ---- Heads of cross-attention. ----

TEST(EncoderDecoder, HeadsOfCrossAttentionHaveFactors) {
  Context context(1);
  for (const char* const name : kBoth) {
    const Given given(name);
    const models::ModelInfo& info = given.model.info();
    const auto heads = static_cast<size_t>(info.num_layers * info.num_heads);
    const int64_t layer = info.num_layers - 1, head = info.num_heads - 1;
    std::vector<float> scales(2 * heads, 1.0F);
    ModelInputs inputs = given.inputs();
    inputs.head_scales = scales;
    const std::vector<float> plain = logits_of(given.model, given.inputs(), context, true);
    EXPECT_EQ(logits_of(given.model, inputs, context, true), plain) << name;
    const auto wanted = [&](float factor) {
      const Edit edit{.site = Site::kCrossZ,
                      .layer = layer,
                      .heads = {head},
                      .action = Edit::Action::kScale,
                      .factor = factor};
      return logits_of(given.model, given.inputs({&edit, 1}), context, true);
    };
    for (const float factor : {0.0F, -1.5F}) {
      scales.back() = factor;
      const std::vector<float> logits = logits_of(given.model, inputs, context, true);
      EXPECT_NE(logits, plain) << name;
      expect_near(logits, wanted(factor), 1e-6F, name);
      Session session;
      ASSERT_TRUE(Session::create(given.model, {.head_scales = scales}, session).ok());
      ASSERT_TRUE(session.encode(given.source, {}, context).ok());
      for (const int32_t id : given.ids) {
        const std::vector<float> step = appended(session, given.model, {&id, 1}, context);
        if (id == given.ids.back()) expect_near(step, logits, 2e-4F, name);
      }
    }
    for (const int64_t beams : {1, 3}) {
      GenerateOptions options{.max_new_tokens = 8, .stop_ids = {{}}, .num_beams = beams};
      options.edits = {{.site = Site::kCrossZ, .action = Edit::Action::kScale, .factor = 0.0F}};
      const auto muted = generated(given.model, given.source, options, context);
      options.edits.clear();
      options.head_scales.assign(2 * heads, 1.0F);
      for (size_t h = 0; h < static_cast<size_t>(info.num_heads); ++h) {
        options.head_scales[heads + h] = 0.0F;
      }
      EXPECT_EQ(generated(given.model, given.source, options, context), muted) << name;
    }
  }
  const Given given("t5_seq2seq");
  for (const size_t wrong : {size_t{5}, size_t{7}, size_t{13}}) {
    const std::vector<float> scales(wrong, 1.0F);
    ModelInputs inputs = given.inputs();
    inputs.head_scales = scales;
    EXPECT_EQ(given.model.forward(inputs, {}, context).argument(), "head_scales");
  }
}

TEST(EncoderDecoder, AblatesHeadsOfBothKinds) {
  Context context(2);
  for (const char* const name : {"t5_seq2seq", "marian", "mbart"}) {
    const Given given(name), other(name, 4, 6);
    const models::ModelInfo& info = given.model.info();
    const ModelInputs texts[] = {given.inputs(), other.inputs()};
    const models::Metric metric{.kind = models::Metric::Kind::kLogProbability, .token = 9};
    const auto measured = [&](const Given& of, std::span<const Edit> edits) {
      const std::vector<float> logits = logits_of(of.model, of.inputs(edits), context, true);
      double sum = 0;
      for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
      return static_cast<double>(logits[9]) - std::log(sum);
    };
    for (const Site site : {Site::kZ, Site::kCrossZ}) {
      models::PartResults results;
      const Status status = models::ablate(given.model, texts, metric, models::Ablation::kZero,
                                           results, context, {}, site);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_NEAR(results.clean, (measured(given, {}) + measured(other, {})) / 2, 1e-4);
      for (int64_t layer = 0; layer < info.num_layers; ++layer) {
        for (int64_t head = 0; head < info.num_heads; ++head) {
          const Edit edit{.site = site,
                          .layer = layer,
                          .heads = {head},
                          .action = Edit::Action::kScale,
                          .factor = 0.0F};
          const double wanted = (measured(given, {&edit, 1}) + measured(other, {&edit, 1})) / 2;
          EXPECT_NEAR(results.values[static_cast<size_t>(layer * info.num_heads + head)], wanted,
                      1e-4)
              << name;
        }
      }
      EXPECT_TRUE(models::ablate(given.model, texts, metric, models::Ablation::kMean, results,
                                 context, {}, site)
                      .ok());
    }
    models::PartResults none;
    EXPECT_EQ(
        models::ablate(given.model, texts, metric, {}, none, context, {}, Site::kK).argument(),
        "site");
    const ModelInputs without[] = {{.ids = given.ids}};
    EXPECT_EQ(models::ablate(given.model, without, metric, {}, none, context).argument(), "source");
  }
  const Model gpt2 = open_golden("gpt2");
  const std::vector<int32_t> ids = {5, 6, 7};
  const ModelInputs text[] = {{.ids = ids}};
  models::PartResults none;
  EXPECT_EQ(
      models::ablate(gpt2, text, {.token = 3}, {}, none, context, {}, Site::kCrossZ).argument(),
      "site");
}

// ---- What is refused, in one sentence. ----

TEST(EncoderDecoder, RefusesWhatItIsNot) {
  Context context(1);
  const Given given("marian");
  const Model& model = given.model;
  Numbers logits({1, given.count(), model.info().vocab_size});
  const ModelOutputs outputs{.logits = logits.tensor()};
  EXPECT_EQ(model.forward({.ids = given.ids}, outputs, context).argument(), "source");
  ModelInputs inputs = given.inputs();
  const int32_t beyond[] = {80};
  inputs.source = beyond;
  EXPECT_EQ(model.forward(inputs, outputs, context).argument(), "source");
  inputs = given.inputs();
  const uint8_t mask[] = {1};
  inputs.source_mask = mask;
  EXPECT_EQ(model.forward(inputs, outputs, context).code(), StatusCode::kShape);
  const Model bert = open_golden("bert");
  EXPECT_EQ(bert.forward({.ids = given.ids, .source = given.source}, {}, context).argument(),
            "source");
  Numbers map({1, given.count(), given.source_count()});
  EXPECT_TRUE(model.cross_attentions(given.inputs(), 2, 1, map.tensor(), context).ok());
  EXPECT_EQ(model.cross_attentions(given.inputs(), 3, 1, map.tensor(), context).argument(),
            "layer");
  EXPECT_EQ(model.cross_attentions(given.inputs(), 0, 2, map.tensor(), context).argument(), "head");
  EXPECT_EQ(model.attentions(given.inputs(), 0, 0, map.tensor(), context).code(),
            StatusCode::kShape);
  EXPECT_EQ(open_golden("gpt2")
                .cross_attentions({.ids = given.ids}, 0, 0, map.tensor(), context)
                .argument(),
            "maps");
  Numbers vector({1, model.encoder().info().vector_dim});
  EXPECT_EQ(model.embed(given.inputs(), {}, vector.tensor(), context).argument(), "model");
  EXPECT_TRUE(model.encoder().embed({.ids = given.source}, {}, vector.tensor(), context).ok());
  models::TokenProbabilities rows;
  EXPECT_EQ(models::log_probabilities(model, given.inputs(), rows, context).argument(), "model");
  Trainer trainer;
  Model trained;
  EXPECT_EQ(models::create_trainer(model, {}, {}, trainer, trained).argument(), "model");
  Session session;
  ASSERT_TRUE(Session::create(model, {}, session).ok());
  EXPECT_EQ(session.append(given.ids, {}, context).argument(), "session");
  // A source that is refused leaves none.
  ASSERT_TRUE(session.encode(given.source, {}, context).ok());
  EXPECT_TRUE(session.append(given.ids, {}, context).ok());
  EXPECT_EQ(session.encode(beyond, {}, context).argument(), "source");
  EXPECT_EQ(session.append(given.ids, {}, context).argument(), "session");
  Session of_gpt2;
  ASSERT_TRUE(Session::create(open_golden("gpt2"), {}, of_gpt2).ok());
  EXPECT_EQ(of_gpt2.encode(given.source, {}, context).code(), StatusCode::kOption);
  const Edit edit{.site = Site::kCrossK, .tokens = {7}, .action = Edit::Action::kScale};
  EXPECT_EQ(model.forward(given.inputs({&edit, 1}), outputs, context).argument(),
            "edits[0].tokens");
}

}  // namespace
}  // namespace multihead
