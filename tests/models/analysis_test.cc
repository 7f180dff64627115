// Tests analyses of language models: gradients against finite differences, sweeps against one pass
// for each part, predictions against a plain softmax; and the errors of wrong calls.
#include "multihead/analysis.h"

#include <gtest/gtest.h>
#include <optional>
#include <utility>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "models/site_values.h"
#include "support/slope.h"

namespace multihead {
namespace {

using models::Ablation;
using models::By;
using models::Edit;
using models::GradientOutput;
using models::Lens;
using models::LogitAttribution;
using models::Metric;
using models::Model;
using models::ModelInputs;
using models::PartResults;
using models::Site;
using testing::Numbers;
using testing::OwnInputs;
using testing::Place;
using testing::Random;
using testing::SiteValues;

constexpr int64_t kMany = std::numeric_limits<int64_t>::max();

// Returns half the sum of c_i logit_i^2, with c_i from -1 to 1.
double quadratic(std::span<const float> logits, std::span<float> gradient) {
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double factor = std::sin(static_cast<double>(i)), logit = static_cast<double>(logits[i]);
    sum += 0.5 * factor * logit * logit;
    if (!gradient.empty()) gradient[i] = static_cast<float>(factor * logit);
  }
  return sum;
}

std::vector<Metric> metrics_at(int64_t position) {
  return {{.kind = Metric::Kind::kLogitDifference, .position = position, .token = 3, .against = 9},
          {.kind = Metric::Kind::kLogProbability, .position = position, .token = 7},
          {.kind = Metric::Kind::kMeanLogProbability},
          {.kind = Metric::Kind::kFunction, .position = position, .function = quadratic}};
}

double measured(const Model& model, const ModelInputs& inputs, const Metric& metric,
                Context& context) {
  std::vector<double> result;
  const Status status = models::measure(model, inputs, metric, result, context);
  EXPECT_TRUE(status.ok()) << status.message();
  return result.empty() ? NAN : result[0];
}

// Compares the gradients at places with the slopes along random directions.
void expect_gradients(const std::string& name, const Model& model, const OwnInputs& in,
                      const Metric& metric, const std::vector<Place>& places, Random& random,
                      Context& context) {
  SiteValues values, gradients;
  testing::run_and_capture(model, in, {}, places, values, context);
  std::vector<GradientOutput> outputs;
  for (const Place& place : places) {
    Numbers& to = gradients[place] = Numbers(values[place].shape);
    outputs.push_back({.site = place.first, .layer = place.second, .out = to.tensor()});
  }
  const Status status = models::gradients(model, in.inputs(), metric, outputs, context);
  ASSERT_TRUE(status.ok()) << name << ": " << status.message();
  for (const Place& place : places) {
    const std::vector<float>& gradient = gradients[place].data;
    std::vector<float> direction = testing::random_direction(random, gradient.size());
    // The step is proportional to the size of the value.
    double squares = 0, count = 0;
    for (size_t i = 0; i < direction.size(); ++i) {
      const float number = values[place].data[i];
      if (place.first == Site::kPattern && number == 0.0F) direction[i] = 0.0F;
      if (number == -INFINITY) {
        EXPECT_EQ(gradient[i], 0.0F);
        direction[i] = 0.0F;
        continue;
      }
      squares += static_cast<double>(number) * static_cast<double>(number);
      ++count;
    }
    const double size = std::max(0.05, std::sqrt(squares / count));
    std::vector<float> step(direction.size());
    const double slope = testing::slope(step, direction, [&] {
      std::vector<float> scaled = step;
      for (float& number : scaled) number = static_cast<float>(size * static_cast<double>(number));
      const Edit edit{.site = place.first,
                      .layer = place.second,
                      .action = Edit::Action::kAdd,
                      .value = {scaled.data(), values[place].shape}};
      return measured(model, in.inputs({&edit, 1}), metric, context);
    });
    const double got = size * testing::dot(gradient, direction);
    const double scale = size * testing::size_of_dot(gradient, direction);
    // The step is 1/64: a rounding of the metric by 1e-6 changes the slope by 3e-4.
    EXPECT_NEAR(got, slope, 0.02 * scale + 5e-4)
        << name << ' ' << models::name_of(place.first) << ' ' << place.second << " kind "
        << static_cast<int>(metric.kind);
  }
}

TEST(ModelGradients, AreThoseOfFiniteDifferencesInEveryFamily) {
  Context context(1);
  for (const char* name : testing::kLanguageModels) {
    const Model model = testing::open_golden(name);
    Random random(11);
    const OwnInputs in = testing::random_inputs(model, 1, 10, random);
    for (int turn = 0; turn < 2; ++turn) {
      expect_gradients(name, model, in, {.kind = Metric::Kind::kMeanLogProbability},
                       testing::places_of(model), random, context);
    }
    const std::vector<Place> ends = {{Site::kResidPre, 0}, {Site::kResidPost, 1}};
    for (const Metric& metric : metrics_at(random.integer(-10, 9))) {
      expect_gradients(name, model, in, metric, ends, random, context);
    }
    const OwnInputs one = testing::random_inputs(model, 1, 1, random);
    expect_gradients(name, model, one, {.token = 5, .against = 6}, testing::places_of(model),
                     random, context);
  }
}

// With more than kFewWeightRows rows of x, linear() multiplies with the exact weights.
TEST(ModelGradients, AreThoseOfTheWeightsAsTheyAreStored) {
  Context context(1);
  for (const char* name : {"llama3", "gpt2", "gpt_neox"}) {
    for (const WeightType type :
         {WeightType::kF16, WeightType::kBF16, WeightType::kInt8, WeightType::kInt4}) {
      const Model model = testing::open_golden(name, {.weights = type});
      Random random(12);
      const OwnInputs in = testing::random_inputs(model, 1, kFewWeightRows + 5, random);
      expect_gradients(std::string(name) + ' ' + name_of(type), model, in,
                       {.kind = Metric::Kind::kMeanLogProbability}, testing::places_of(model),
                       random, context);
    }
  }
}

TEST(ModelGradients, OfScaledHeads) {
  Context context(1);
  const Model model = testing::open_golden("qwen3");
  const std::vector<float> scales = {0.5F, -1.5F, 0.0F, 2.0F};
  const std::vector<int32_t> ids = {3, 4, 5, 6, 7};
  const Metric metric{.token = 3, .against = 4};
  Numbers d_z(testing::site_shape(model, Site::kZ, 1, 5)), d_pre({1, 5, 16});
  const GradientOutput outputs[] = {{.site = Site::kZ, .out = d_z.tensor()},
                                    {.site = Site::kResidPre, .out = d_pre.tensor()}};
  ASSERT_TRUE(
      models::gradients(model, {.ids = ids, .head_scales = scales}, metric, outputs, context).ok());
  Random random(13);
  for (const GradientOutput& output : outputs) {
    Numbers step(output.out.shape);
    const std::vector<float> direction = testing::random_direction(random, step.data.size());
    const double slope = testing::slope(step.data, direction, [&] {
      const Edit edit{.site = output.site, .action = Edit::Action::kAdd, .value = step.view()};
      return measured(model, {.ids = ids, .head_scales = scales, .edits = {&edit, 1}}, metric,
                      context);
    });
    const std::span<const float> gradient(output.out.data, direction.size());
    EXPECT_NEAR(testing::dot(gradient, direction), slope,
                0.02 * testing::size_of_dot(gradient, direction) + 1e-3);
  }
}

// ---- Sweeps. ----

Edit replacement(const Place& place, By by, int64_t part, const Numbers& value) {
  Edit edit{.site = place.first, .layer = place.second, .action = Edit::Action::kReplace};
  if (by == By::kHead) edit.heads = {part};
  if (by == By::kPosition) edit.tokens = {part};
  edit.value = value.view();
  return edit;
}

int64_t parts_of(const Model& model, Site site, By by, int64_t tokens) {
  if (by == By::kPosition) return tokens;
  if (by == By::kLayer) return 1;
  return site == Site::kQ || site == Site::kZ ? model.info().num_heads : model.info().num_kv_heads;
}

TEST(Patch, IsAPassWithEditsForEachPart) {
  Context context(1);
  for (const char* name : testing::kLanguageModels) {
    const Model model = testing::open_golden(name);
    Random random(14);
    const OwnInputs clean = testing::random_inputs(model, 1, 7, random);
    const OwnInputs corrupt = testing::random_inputs(model, 1, 7, random);
    SiteValues values;
    testing::run_and_capture(model, corrupt, {}, testing::places_of(model), values, context);
    const std::vector<Metric> metrics = metrics_at(-1);
    size_t turn = 0;
    for (const Site site : testing::sites_of(model)) {
      for (const By by : {By::kLayer, By::kHead, By::kPosition}) {
        const Metric& metric = metrics[turn++ % metrics.size()];
        PartResults result;
        const Status status = models::patch(model, clean.inputs(), corrupt.inputs(), metric, site,
                                            by, result, context);
        if (by == By::kHead && (testing::is_weights(site) || !testing::has_heads(site))) {
          EXPECT_EQ(status.argument(), "by");
          EXPECT_EQ(result.parts, 0);
          continue;
        }
        ASSERT_TRUE(status.ok()) << name << ' ' << models::name_of(site) << status.message();
        EXPECT_NEAR(result.clean, measured(model, clean.inputs(), metric, context), 2e-5);
        EXPECT_NEAR(result.corrupt, measured(model, corrupt.inputs(), metric, context), 2e-5);
        ASSERT_EQ(result.parts, parts_of(model, site, by, 7));
        ASSERT_EQ(std::ssize(result.values), model.info().num_layers * result.parts);
        for (int64_t i = 0; i < std::ssize(result.values); ++i) {
          const Place place{site, i / result.parts};
          const Numbers value = testing::finite_copy(values[place]);
          const Edit edit = replacement(place, by, i % result.parts, value);
          EXPECT_NEAR(static_cast<double>(result.values[static_cast<size_t>(i)]),
                      measured(model, clean.inputs({&edit, 1}), metric, context), 5e-5)
              << name << ' ' << models::name_of(site) << ' ' << i;
        }
      }
    }
  }
}

TEST(Patch, KeepsScalesOfHeadsAndTakesMoreTokensThanRunAtOnce) {
  Context context(1);
  const Model model = testing::open_golden("llama3");
  Random random(15);
  // 600 tokens: one part at a time. The metric's position is early, so that the edit matters.
  for (const int64_t tokens : {5, 200, 600}) {
    const OwnInputs clean = testing::random_inputs(model, 1, tokens, random);
    const OwnInputs corrupt = testing::random_inputs(model, 1, tokens, random);
    const std::vector<float> scales = random.floats(4);
    ModelInputs first = clean.inputs(), second = corrupt.inputs();
    first.head_scales = second.head_scales = scales;
    const Metric metric{.token = 1, .against = 2};
    Numbers z({1, tokens, 2, 8});
    const models::Capture capture{.site = Site::kZ, .layer = 1, .out = z.tensor()};
    ASSERT_TRUE(model.forward(second, {.captures = {&capture, 1}}, context).ok());
    PartResults result;
    ASSERT_TRUE(
        models::patch(model, first, second, metric, Site::kZ, By::kHead, result, context).ok());
    const Edit edit = replacement({Site::kZ, 1}, By::kHead, 1, z);
    first.edits = {&edit, 1};
    EXPECT_NEAR(static_cast<double>(result.values[3]), measured(model, first, metric, context),
                5e-5);
  }
}

TEST(AttributionPatch, SumsGradientsTimesChanges) {
  Context context(1);
  for (const char* name : testing::kLanguageModels) {
    const Model model = testing::open_golden(name);
    Random random(16);
    const OwnInputs clean = testing::random_inputs(model, 1, 6, random);
    const OwnInputs corrupt = testing::random_inputs(model, 1, 6, random);
    SiteValues before, after;
    testing::run_and_capture(model, clean, {}, testing::places_of(model), before, context);
    testing::run_and_capture(model, corrupt, {}, testing::places_of(model), after, context);
    const Metric metric = metrics_at(-2)[random.pick({0U, 1U, 2U, 3U})];
    for (const Site site : testing::sites_of(model)) {
      for (const By by : {By::kLayer, By::kHead, By::kPosition}) {
        for (const bool positions : {false, true}) {
          PartResults result;
          const Status status =
              models::attribution_patch(model, clean.inputs(), corrupt.inputs(), metric, site, by,
                                        positions, result, context);
          if (by == By::kHead && (testing::is_weights(site) || !testing::has_heads(site))) {
            EXPECT_EQ(status.argument(), "by");
            continue;
          }
          ASSERT_TRUE(status.ok()) << status.message();
          EXPECT_NEAR(result.clean, measured(model, clean.inputs(), metric, context), 2e-5);
          EXPECT_NEAR(result.corrupt, measured(model, corrupt.inputs(), metric, context), 2e-5);
          const Dims shape = testing::site_shape(model, site, 1, 6);
          const Dims strides = contiguous_strides(shape);
          const int64_t each = result.parts * (positions ? 6 : 1);
          std::vector<double> expected(static_cast<size_t>(model.info().num_layers * each));
          double size = 1;
          for (int64_t layer = 0; layer < model.info().num_layers; ++layer) {
            Numbers gradient(shape);
            const GradientOutput output{.site = site, .layer = layer, .out = gradient.tensor()};
            ASSERT_TRUE(
                models::gradients(model, clean.inputs(), metric, {&output, 1}, context).ok());
            for (int64_t i = 0; i < shape.elements(); ++i) {
              const auto at = static_cast<size_t>(i);
              if (gradient.data[at] == 0.0F) continue;
              const int token_axis = testing::is_weights(site) ? 2 : 1;
              const int64_t token = i / strides[token_axis] % shape[token_axis];
              int64_t part = by == By::kPosition ? token : 0;
              if (by == By::kHead) part = i / strides[2] % shape[2];
              const Place place{site, layer};
              const double change = static_cast<double>(after[place].data[at]) -
                                    static_cast<double>(before[place].data[at]);
              const double product = static_cast<double>(gradient.data[at]) * change;
              size = std::max(size, std::abs(product));
              const int64_t to = positions ? part * 6 + token : part;
              expected[static_cast<size_t>(layer * each + to)] += product;
            }
          }
          ASSERT_EQ(result.values.size(), expected.size());
          for (size_t i = 0; i < expected.size(); ++i) {
            EXPECT_NEAR(static_cast<double>(result.values[i]), expected[i], 1e-5 * size)
                << name << ' ' << models::name_of(site);
          }
        }
      }
    }
  }
}

TEST(Ablate, IsAPassWithoutEachHead) {
  Context context(1);
  for (const char* name : testing::kLanguageModels) {
    const Model model = testing::open_golden(name);
    const models::ModelInfo& info = model.info();
    Random random(17);
    const std::vector<OwnInputs> own = {testing::random_inputs(model, 1, 3, random),
                                        testing::random_inputs(model, 1, 9, random)};
    const std::vector<ModelInputs> texts = {own[0].inputs(), own[1].inputs()};
    for (const Ablation ablation : {Ablation::kZero, Ablation::kMean}) {
      const Metric metric = metrics_at(-3)[random.pick({0U, 1U, 2U, 3U})];
      PartResults result;
      const Status status = models::ablate(model, texts, metric, ablation, result, context);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(result.corrupt, 0.0);
      ASSERT_EQ(result.parts, info.num_heads);
      double clean = 0;
      for (const ModelInputs& text : texts) clean += measured(model, text, metric, context) / 2;
      EXPECT_NEAR(result.clean, clean, 2e-5);
      for (int64_t i = 0; i < std::ssize(result.values); ++i) {
        const int64_t layer = i / info.num_heads, head = i % info.num_heads;
        std::vector<double> sums(static_cast<size_t>(info.head_dim));
        for (const OwnInputs& text : own) {
          if (ablation == Ablation::kZero) break;
          SiteValues values;
          testing::run_and_capture(model, text, {}, {{Site::kZ, layer}}, values, context);
          const std::vector<float>& z = values[{Site::kZ, layer}].data;
          for (int64_t j = 0; j < std::ssize(z); ++j) {
            if (j / info.head_dim % info.num_heads != head) continue;
            sums[static_cast<size_t>(j % info.head_dim)] +=
                static_cast<double>(z[static_cast<size_t>(j)]) / 12;
          }
        }
        const std::vector<float> mean(sums.begin(), sums.end());
        const Edit edit{.site = Site::kZ,
                        .layer = layer,
                        .heads = {head},
                        .value = {mean.data(), {info.head_dim}}};
        double expected = 0;
        for (const OwnInputs& text : own) {
          expected += measured(model, text.inputs({&edit, 1}), metric, context) / 2;
        }
        EXPECT_NEAR(static_cast<double>(result.values[static_cast<size_t>(i)]), expected, 5e-5)
            << name;
      }
    }
  }
}

TEST(Sweeps, TellTheirProgressAndEndWhenTheyAreTold) {
  Context context(1);
  const Model model = testing::open_golden("gpt2");
  const std::vector<int32_t> ids = {5, 6, 7}, others = {8, 9, 10};
  const std::vector<ModelInputs> texts = {{.ids = ids}, {.ids = others}};
  const Metric metric{.token = 1, .against = 2};
  PartResults result{.clean = 3, .corrupt = 4, .parts = 5, .values = {6}};
  std::vector<double> shares;
  const auto both = [&](const models::Progress& progress) {
    shares.clear();
    const Status first = models::patch(model, texts[0], texts[1], metric, Site::kQ, By::kHead,
                                       result, context, progress);
    const Status second =
        models::ablate(model, texts, metric, Ablation::kMean, result, context, progress);
    EXPECT_EQ(first.argument(), second.argument());
    return second;
  };
  const Status ended = both([](double) { return false; });
  EXPECT_EQ(ended.code(), StatusCode::kOption);
  EXPECT_EQ(ended.argument(), "progress");
  EXPECT_EQ(result.clean, 3);
  EXPECT_EQ(result.values, std::vector<float>{6});
  ASSERT_TRUE(both([&](double share) {
                shares.push_back(share);
                return true;
              }).ok());
  EXPECT_GE(shares.size(), 4U);
  EXPECT_EQ(std::count(shares.begin(), shares.end(), 1.0), 2);
  EXPECT_EQ(shares.back(), 1.0);
  const auto end = std::find(shares.begin(), shares.end(), 1.0) + 1;
  EXPECT_TRUE(std::is_sorted(shares.begin(), end));
  EXPECT_TRUE(std::is_sorted(end, shares.end()));
}

// ---- Logits. ----

// The parts are exact if attention and MLP are added to the stream without a norm, and logits have
// no cap. Other models are refused.
TEST(LogitAttribution, SumsToTheMetricOrIsRefused) {
  Context context(1);
  for (const char* name : testing::kLanguageModels) {
    for (const std::optional<WeightType> weights :
         {std::optional<WeightType>(), std::optional(WeightType::kInt8)}) {
      const Model model = testing::open_golden(name, {.weights = weights});
      Random random(18);
      const OwnInputs in = testing::random_inputs(model, 1, 12, random);
      const std::vector<float> scales =
          random.floats(model.info().num_layers * model.info().num_heads);
      ModelInputs inputs = in.inputs();
      if (random.chance(0.5)) inputs.head_scales = scales;
      const Metric metric{.position = random.integer(-12, 11), .token = 9, .against = 4};
      LogitAttribution result;
      const Status status = models::logit_attribution(model, inputs, metric, result, context);
      const std::string family = model.info().model_type;
      constexpr const char* kRefused[] = {"gemma2",  "gemma3_text", "olmo2",   "olmo3",
                                          "exaone4", "glm4",        "nanochat"};
      if (std::find(std::begin(kRefused), std::end(kRefused), family) != std::end(kRefused)) {
        EXPECT_EQ(status.argument(), "model") << family;
        EXPECT_TRUE(result.heads.empty());
        continue;
      }
      ASSERT_TRUE(status.ok()) << name << ' ' << status.message();
      ASSERT_EQ(std::ssize(result.heads), model.info().num_layers * model.info().num_heads);
      ASSERT_EQ(std::ssize(result.mlp), model.info().num_layers);
      double sum = static_cast<double>(result.embedding) + static_cast<double>(result.rest);
      for (const float part : result.heads) sum += static_cast<double>(part);
      for (const float part : result.mlp) sum += static_cast<double>(part);
      EXPECT_NEAR(sum, static_cast<double>(result.metric), 3e-5) << name;
      EXPECT_NEAR(static_cast<double>(result.metric), measured(model, inputs, metric, context),
                  1e-6);
    }
  }
}

// Computes softmax, ranks and the likeliest tokens of rows of logits in double.
struct Plain {
  std::vector<double> probabilities;
  std::vector<int64_t> ranks;
  std::vector<int32_t> order;

  explicit Plain(std::span<const float> logits)
      : probabilities(logits.size()), ranks(logits.size()) {
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    for (size_t i = 0; i < logits.size(); ++i) {
      probabilities[i] = std::exp(static_cast<double>(logits[i])) / sum;
      for (const float other : logits) ranks[i] += other > logits[i] ? 1 : 0;
      order.push_back(static_cast<int32_t>(i));
    }
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
      return x > y || (x == y && a < b);
    });
  }
};

TEST(Predictions, AreThoseOfTheLogits) {
  Context context(1);
  for (const char* name : testing::kLanguageModels) {
    const Model model = testing::open_golden(name);
    const int64_t vocabulary = model.info().vocab_size, layers = model.info().num_layers;
    Random random(19);
    const OwnInputs in = testing::random_inputs(model, 2, 10, random);
    const std::vector<float> change = random.floats(model.info().embed_dim);
    const Edit edit{.layer = 1,
                    .action = Edit::Action::kAdd,
                    .value = {change.data(), {model.info().embed_dim}}};
    for (const std::span<const Edit> edits : {std::span<const Edit>(), std::span(&edit, 1)}) {
      Numbers logits({2, 10, vocabulary});
      ASSERT_TRUE(model.forward(in.inputs(edits), {.logits = logits.tensor()}, context).ok());
      const auto row_of = [&](int64_t row) {
        return std::span<const float>(logits.data)
            .subspan(static_cast<size_t>(row * vocabulary), static_cast<size_t>(vocabulary));
      };
      models::TokenProbabilities probabilities;
      ASSERT_TRUE(models::log_probabilities(model, in.inputs(edits), probabilities, context).ok());
      ASSERT_EQ(probabilities.values.size(), 18U);
      std::vector<double> means(2);
      for (int64_t i = 0; i < 18; ++i) {
        const int64_t b = i / 9, row = b * 10 + i % 9;
        const auto id = static_cast<size_t>(in.ids[static_cast<size_t>(row + 1)]);
        const Plain plain(row_of(row));
        const auto at = static_cast<size_t>(i);
        EXPECT_NEAR(static_cast<double>(probabilities.values[at]),
                    std::log(plain.probabilities[id]), 2e-5);
        EXPECT_EQ(probabilities.ranks[at], plain.ranks[id]) << name;
        means[static_cast<size_t>(b)] += std::log(plain.probabilities[id]) / 9;
      }
      const std::vector<Metric> metrics = metrics_at(4);
      for (int64_t b = 0; b < 2; ++b) {
        const std::span<const float> row = row_of(b * 10 + 4);
        const double expected[] = {static_cast<double>(row[3]) - static_cast<double>(row[9]),
                                   std::log(Plain(row).probabilities[7]),
                                   means[static_cast<size_t>(b)], quadratic(row, {})};
        for (size_t kind = 0; kind < metrics.size(); ++kind) {
          std::vector<double> got;
          ASSERT_TRUE(models::measure(model, in.inputs(edits), metrics[kind], got, context).ok());
          ASSERT_EQ(got.size(), 2U);
          EXPECT_NEAR(got[static_cast<size_t>(b)], expected[kind], 5e-5) << name << kind;
        }
      }
      Lens lens;
      Numbers of_lens({2, 2, 10, vocabulary});
      ASSERT_TRUE(models::lens(model, in.inputs(edits),
                               {.layers = {layers, 1}, .top = 4, .tokens = {6, 2, 6}}, lens,
                               of_lens.tensor(), context)
                      .ok());
      ASSERT_EQ(lens.ids.size(), 2U * 20 * 4);
      ASSERT_EQ(lens.ranks.size(), 2U * 20 * 3);
      for (size_t i = 0; i < logits.data.size(); ++i) {
        ASSERT_NEAR(of_lens.data[i], logits.data[i], 3e-5F) << name;  // of the last layer
      }
      for (int64_t row = 0; row < 40; ++row) {
        const Plain plain(
            std::span<const float>(of_lens.data)
                .subspan(static_cast<size_t>(row * vocabulary), static_cast<size_t>(vocabulary)));
        const auto at = static_cast<size_t>(row);
        for (size_t i = 0; i < 4; ++i) {
          EXPECT_EQ(lens.ids[at * 4 + i], plain.order[i]);
          EXPECT_NEAR(static_cast<double>(lens.probabilities[at * 4 + i]),
                      plain.probabilities[static_cast<size_t>(plain.order[i])], 1e-6);
        }
        for (size_t i = 0; i < 3; ++i) {
          const size_t id = i == 1 ? 2 : 6;
          EXPECT_EQ(lens.ranks[at * 3 + i], plain.ranks[id]);
          EXPECT_NEAR(static_cast<double>(lens.token_probabilities[at * 3 + i]),
                      plain.probabilities[id], 1e-6);
        }
      }
      // Another call, without logits, reads all layers.
      Lens all;
      ASSERT_TRUE(models::lens(model, in.inputs(edits), {.top = 4}, all, {}, context).ok());
      ASSERT_EQ(std::ssize(all.ids), (layers + 1) * 80);
      EXPECT_TRUE(
          std::equal(lens.ids.begin(), lens.ids.begin() + 80, all.ids.begin() + layers * 80));
      EXPECT_TRUE(std::equal(lens.ids.begin() + 80, lens.ids.end(), all.ids.begin() + 80));
    }
  }
}

TEST(Analyses, HaveTheSameBitsWithAnyNumberOfThreads) {
  Context one(1), three(3);
  for (const char* name : {"gemma2", "gpt_neox"}) {
    const Model model = testing::open_golden(name);
    Random random(20);
    const OwnInputs clean = testing::random_inputs(model, 1, 40, random);
    const OwnInputs corrupt = testing::random_inputs(model, 1, 40, random);
    for (const Metric& metric : metrics_at(-1)) {
      std::vector<std::vector<float>> results[2];
      for (Context* context : {&one, &three}) {
        auto& to = results[context == &one ? 0 : 1];
        PartResults parts;
        ASSERT_TRUE(models::patch(model, clean.inputs(), corrupt.inputs(), metric, Site::kZ,
                                  By::kHead, parts, *context)
                        .ok());
        to.push_back(parts.values);
        ASSERT_TRUE(models::attribution_patch(model, clean.inputs(), corrupt.inputs(), metric,
                                              Site::kScores, By::kPosition, true, parts, *context)
                        .ok());
        to.push_back(parts.values);
        for (const Place& place : testing::places_of(model)) {
          Numbers gradient(testing::site_shape(model, place.first, 1, 40));
          const GradientOutput output{place.first, place.second, gradient.tensor()};
          ASSERT_TRUE(
              models::gradients(model, clean.inputs(), metric, {&output, 1}, *context).ok());
          to.push_back(gradient.data);
        }
      }
      EXPECT_EQ(results[0], results[1]) << name;
    }
  }
}

// ---- Wrong calls. ----

// Calls every analysis with the same inputs and metric. Returns the argument of their error, which
// is the same.
struct Analyses {
  Context context{1};
  std::vector<int32_t> ids = {5, 6, 7, 8};
  std::vector<float> out = std::vector<float>(64, 7.0F);
  Lens lens{.ids = {1}, .probabilities = {}, .ranks = {}, .token_probabilities = {}};
  PartResults parts{.clean = 1, .corrupt = 2, .parts = 3, .values = {4}};
  std::vector<double> metrics = {5};
  LogitAttribution attribution{.heads = {6}, .mlp = {}};
  models::TokenProbabilities probabilities{.values = {7}, .ranks = {}};

  std::vector<Status> with_metric(const Model& model, const ModelInputs& in, const Metric& metric,
                                  const ModelInputs& other) {
    const GradientOutput output{.out = {out.data(), {1, 4, 16}}};
    std::vector<Status> all;
    all.push_back(models::gradients(model, in, metric, {&output, 1}, context));
    all.push_back(models::patch(model, in, other, metric, Site::kZ, By::kHead, parts, context));
    all.push_back(models::attribution_patch(model, in, other, metric, Site::kZ, By::kHead, false,
                                            parts, context));
    all.push_back(models::ablate(model, {&in, 1}, metric, Ablation::kMean, parts, context));
    all.push_back(models::logit_attribution(model, in, metric, attribution, context));
    return all;
  }
  std::vector<Status> all(const Model& model, const ModelInputs& in, const Metric& metric) {
    std::vector<Status> all = with_metric(model, in, metric, in);
    all.push_back(models::lens(model, in, {}, lens, {}, context));
    all.push_back(models::log_probabilities(model, in, probabilities, context));
    all.push_back(models::measure(model, in, metric, metrics, context));
    return all;
  }
  std::string argument(const std::vector<Status>& statuses) {
    for (const Status& status : statuses) {
      EXPECT_FALSE(status.ok());
      EXPECT_EQ(status.argument(), statuses[0].argument()) << status.message();
    }
    EXPECT_EQ(out, std::vector<float>(out.size(), 7.0F)) << "wrote";
    EXPECT_EQ(lens.ids, std::vector<int32_t>{1});
    EXPECT_EQ(parts.values, std::vector<float>{4});
    EXPECT_EQ(parts.parts, 3);
    EXPECT_EQ(metrics, std::vector<double>{5});
    EXPECT_EQ(attribution.heads, std::vector<float>{6});
    EXPECT_EQ(probabilities.values, std::vector<float>{7});
    return statuses[0].argument();
  }
};

TEST(Analyses, AreForCausalLanguageModels) {
  Analyses questions;
  const ModelInputs in{.ids = questions.ids};
  EXPECT_EQ(questions.argument(questions.all(Model(), in, {})), "model");
  for (const char* name : testing::kOtherModels) {
    const Model model = testing::open_golden(name);
    EXPECT_EQ(questions.argument(questions.all(model, in, {})), "model") << name;
  }
}

TEST(Analyses, RefuseWrongInputs) {
  Analyses questions;
  const std::vector<int32_t> ids = questions.ids;
  const Model model = testing::open_golden("gpt2");
  const std::vector<int32_t> wrong = {5, 6, 120}, many(200, 1);
  const std::vector<uint8_t> mask(4, 1), short_mask(3, 1);
  const std::vector<float> scales(3);
  const Edit edit{.layer = 5, .action = Edit::Action::kScale};
  const auto argument = [&](const ModelInputs& in) {
    return questions.argument(questions.all(model, in, {}));
  };
  EXPECT_EQ(argument({}), "ids");
  EXPECT_EQ(argument({.ids = wrong}), "ids");
  EXPECT_EQ(argument({.ids = many}), "ids");
  EXPECT_EQ(argument({.ids = ids, .batch = 3}), "ids");
  EXPECT_EQ(argument({.ids = ids, .batch = -1}), "batch");
  EXPECT_EQ(argument({.ids = ids, .batch = kMany}), "ids");
  EXPECT_EQ(argument({.ids = ids, .mask = short_mask}), "mask");
  EXPECT_EQ(argument({.ids = ids, .token_types = ids}), "token_types");
  EXPECT_EQ(argument({.ids = ids, .head_scales = scales}), "head_scales");
  EXPECT_EQ(argument({.ids = ids, .edits = {&edit, 1}}), "edits[0].layer");
  // These analyses take one sequence.
  const Edit fine{.action = Edit::Action::kScale};
  const ModelInputs one{.ids = ids};
  const auto of_one = [&](const ModelInputs& in, const ModelInputs& other) {
    return questions.argument(questions.with_metric(model, in, {}, other));
  };
  EXPECT_EQ(of_one({.ids = ids, .batch = 2}, one), "batch");
  EXPECT_EQ(of_one({.ids = ids, .mask = mask}, one), "mask");
  EXPECT_EQ(of_one({.ids = ids, .edits = {&fine, 1}}, one), "edits");
  // The corrupt sequence is wrong.
  const ModelInputs shorter{.ids = std::span(ids).first(3)};
  for (const auto& [other, name] : {std::pair{shorter, "corrupt"}, {ModelInputs(), "ids"}}) {
    const std::vector<Status> all = questions.with_metric(model, one, {}, other);
    EXPECT_EQ(all[1].argument(), name);
    EXPECT_EQ(all[2].argument(), name);
    questions = {};
  }
}

TEST(Analyses, RefuseWrongMetrics) {
  Analyses questions;
  const Model model = testing::open_golden("gpt2");
  const auto argument = [&](const Metric& metric) {
    std::vector<Status> all =
        questions.with_metric(model, {.ids = questions.ids}, metric, {.ids = questions.ids});
    all.push_back(models::measure(model, {.ids = questions.ids}, metric, questions.metrics,
                                  questions.context));
    return questions.argument(all);
  };
  constexpr int32_t kLargest = std::numeric_limits<int32_t>::max();
  for (const int32_t token : {-1, 120, kLargest, -kLargest - 1}) {
    EXPECT_EQ(argument({.token = token}), "metric.token");
    EXPECT_EQ(argument({.against = token}), "metric.against");
    EXPECT_EQ(argument({.kind = Metric::Kind::kLogProbability, .token = token}), "metric.token");
  }
  for (const int64_t position : {int64_t{4}, int64_t{-5}, kMany, -kMany - 1}) {
    for (const Metric::Kind kind :
         {Metric::Kind::kLogitDifference, Metric::Kind::kLogProbability, Metric::Kind::kFunction}) {
      EXPECT_EQ(argument({.kind = kind, .position = position, .function = quadratic}),
                "metric.position");
    }
  }
  EXPECT_EQ(argument({.kind = Metric::Kind::kFunction}), "metric.function");
  EXPECT_EQ(argument({.kind = static_cast<Metric::Kind>(4)}), "metric.kind");
  questions.ids = {5};
  EXPECT_EQ(argument({.kind = Metric::Kind::kMeanLogProbability}), "metric");
  // A difference of logits is a sum of parts; other metrics are not.
  EXPECT_EQ(models::logit_attribution(model, {.ids = questions.ids},
                                      {.kind = Metric::Kind::kLogProbability},
                                      questions.attribution, questions.context)
                .argument(),
            "metric");
}

TEST(Analyses, RefuseResultsThatAreNotFinite) {
  Analyses questions;
  const Model model = testing::open_golden("gpt2");
  const ModelInputs in{.ids = questions.ids};
  for (const double value : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    const Metric metric{.kind = Metric::Kind::kFunction,
                        .function = [&](std::span<const float>, std::span<float> gradient) {
                          std::fill(gradient.begin(), gradient.end(), static_cast<float>(value));
                          return value;
                        }};
    for (const Status& status : questions.with_metric(model, in, metric, in)) {
      EXPECT_EQ(status.code(), StatusCode::kOption) << status.message();
    }
    EXPECT_EQ(questions.argument(
                  {models::measure(model, in, metric, questions.metrics, questions.context)}),
              "metric");
  }
  // One weight is NaN.
  const Model broken =
      testing::open_changed("gpt2", [](const std::string& tensor, std::span<std::byte> bytes) {
        if (tensor.find("ln_f.weight") != std::string::npos) testing::break_last(bytes);
      });
  for (const Status& status : questions.all(broken, in, {.token = 1})) {
    EXPECT_EQ(status.code(), StatusCode::kOption) << status.message();
  }
  Numbers logits({3, 1, 4, 120});
  EXPECT_FALSE(
      models::lens(broken, in, {}, questions.lens, logits.tensor(), questions.context).ok());
  EXPECT_EQ(logits.data, std::vector<float>(logits.data.size())) << "wrote";
  questions.argument({models::measure(broken, in, {}, questions.metrics, questions.context)});
}

TEST(Analyses, RefuseWrongOptions) {
  Analyses questions;
  const Model model = testing::open_golden("gpt_neox");
  const ModelInputs in{.ids = questions.ids};
  const Metric metric{.token = 1, .against = 2};
  const auto lens = [&](const models::LensOptions& options, const Tensor& logits = {}) {
    return questions.argument(
        {models::lens(model, in, options, questions.lens, logits, questions.context)});
  };
  for (const int64_t layer : {int64_t{-1}, int64_t{3}, kMany}) {
    EXPECT_EQ(lens({.layers = {0, layer}}), "layers");
  }
  for (const int64_t top : {int64_t{-1}, int64_t{121}, kMany}) {
    EXPECT_EQ(lens({.top = top}), "top");
  }
  EXPECT_EQ(lens({.tokens = {0, 120}}), "tokens");
  EXPECT_EQ(lens({.tokens = {-1}}), "tokens");
  EXPECT_EQ(lens({}, {questions.out.data(), {3, 1, 4, 119}}), "logits");
  EXPECT_EQ(lens({}, {nullptr, {3, 1, 4, 120}}), "logits");
  Numbers logits({3, 1, 4, 120});
  EXPECT_EQ(lens({}, {logits.data.data(), {3, 1, 4, 120}, {480, 480, 1, 4}}), "logits");
  // Without top and tokens, the lists of results are empty.
  Lens none;
  EXPECT_TRUE(models::lens(model, in, {.top = 0}, none, {}, questions.context).ok());
  EXPECT_TRUE(none.ids.empty() && none.ranks.empty());

  const auto patch = [&](Site site, By by) {
    const std::vector<Status> both = {
        models::patch(model, in, in, metric, site, by, questions.parts, questions.context),
        models::attribution_patch(model, in, in, metric, site, by, false, questions.parts,
                                  questions.context)};
    return questions.argument(both);
  };
  EXPECT_EQ(patch(Site::kResidMid, By::kLayer), "site");
  EXPECT_EQ(patch(static_cast<Site>(12), By::kLayer), "site");
  EXPECT_EQ(patch(static_cast<Site>(255), By::kPosition), "site");
  EXPECT_EQ(patch(Site::kZ, static_cast<By>(3)), "by");
  EXPECT_EQ(patch(Site::kResidPre, By::kHead), "by");
  const auto ablate = [&](std::span<const ModelInputs> texts, Ablation ablation) {
    return questions.argument(
        {models::ablate(model, texts, metric, ablation, questions.parts, questions.context)});
  };
  EXPECT_EQ(ablate({}, Ablation::kZero), "texts");
  EXPECT_EQ(ablate({&in, 1}, static_cast<Ablation>(2)), "ablation");

  const auto gradient = [&](const GradientOutput& output) {
    return questions.argument(
        {models::gradients(model, in, metric, {&output, 1}, questions.context)});
  };
  float* const data = questions.out.data();
  EXPECT_EQ(gradient({.site = Site::kResidMid, .out = {data, {1, 4, 16}}}), "outputs[0].site");
  EXPECT_EQ(gradient({.layer = 2, .out = {data, {1, 4, 16}}}), "outputs[0].layer");
  EXPECT_EQ(gradient({.layer = -kMany, .out = {data, {1, 4, 16}}}), "outputs[0].layer");
  EXPECT_EQ(gradient({}), "outputs[0].out");
  EXPECT_EQ(gradient({.out = {data, {4, 16}}}), "outputs[0].out");
  EXPECT_EQ(gradient({.out = {nullptr, {1, 4, 16}}}), "outputs[0].out");
  const GradientOutput twice[] = {{.out = {data, {1, 4, 16}}},
                                  {.site = Site::kZ, .out = {data, {1, 4, 2, 8}}}};
  EXPECT_EQ(questions.argument({models::gradients(model, in, metric, twice, questions.context)}),
            "outputs");
  EXPECT_TRUE(models::gradients(model, in, metric, {}, questions.context).ok());
  EXPECT_TRUE(models::gradients(model, in, metric, {twice, 1}, questions.context).ok());
}

// A sequence of one token has no token to rate, and the token attends to itself.
TEST(Analyses, OfOneToken) {
  Context context(1);
  for (const char* name : testing::kLanguageModels) {
    const Model model = testing::open_golden(name);
    const std::vector<int32_t> ids = {5}, other = {8};
    models::TokenProbabilities none{.values = {1}, .ranks = {2}};
    ASSERT_TRUE(models::log_probabilities(model, {.ids = ids}, none, context).ok());
    EXPECT_TRUE(none.values.empty() && none.ranks.empty());
    PartResults result;
    const Metric metric{.token = 1, .against = 2};
    ASSERT_TRUE(models::patch(model, {.ids = ids}, {.ids = other}, metric, Site::kPattern,
                              By::kPosition, result, context)
                    .ok());
    for (const float value : result.values) {
      EXPECT_NEAR(static_cast<double>(value), result.clean, 1e-5) << name;
    }
  }
}

}  // namespace
}  // namespace multihead
