// Tests training of opened models.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/golden_models.h"
#include "multihead/analysis.h"
#include "multihead/model_training.h"

namespace multihead::testing {
namespace {

const std::vector<int32_t> kTokens{5, 9, 2, 5, 7, 1, 3, 8, 4, 2};
const std::vector<int32_t> kTargets{9, 2, 5, 7, -1, 3, 8, 4, 2, -1};

double loss_of(Trainer& trainer, Context& context) {
  TrainingStep step;
  const Status status = trainer.step(kTokens, 2, kTargets, {}, step, context);
  if (!status.ok()) ADD_FAILURE() << status.message();
  return step.loss;
}

class ModelTraining : public ::testing::TestWithParam<const char*> {};

TEST_P(ModelTraining, LowersTheLossAndSavesWhatItLearnt) {
  const std::string name = GetParam();
  Context context(1);
  const models::Model model = open_golden(name);
  const std::vector<float> before = logits_of(model, kTokens, context);
  Trainer trainer;
  models::Model trained;
  Status status = models::create_trainer(model, {.learning_rate = 0.01F}, {}, trainer, trained);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(logits_of(trained, kTokens, context).size(), before.size());
  const double first = loss_of(trainer, context);
  double last = first;
  for (int step = 0; step < 15; ++step) last = loss_of(trainer, context);
  EXPECT_LT(last, 0.7 * first) << name;
  EXPECT_EQ(logits_of(model, kTokens, context), before) << "the opened model stays as it is";
  const std::vector<float> learnt = logits_of(trained, kTokens, context);
  EXPECT_NE(learnt, before);

  const std::string folder = ::testing::TempDir() + "trained_" + name;
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(model_folder(name) + "/config.json", folder + "/config.json",
                             std::filesystem::copy_options::overwrite_existing);
  status = models::save_weights(trained, SafetensorsType::kAsGiven, folder + "/model.safetensors");
  ASSERT_TRUE(status.ok()) << status.message();
  models::Model reopened;
  status = models::open(folder, {}, reopened);
  ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<float> again = logits_of(reopened, kTokens, context);
  ASSERT_EQ(again.size(), learnt.size());
  // Gemma stores gains minus 1, and the subtraction rounds.
  for (size_t i = 0; i < again.size(); ++i) ASSERT_NEAR(again[i], learnt[i], 2e-4) << name;
  std::filesystem::remove_all(folder);
}

TEST_P(ModelTraining, HasTheGradientsOfTheMetric) {
  const std::string name = GetParam();
  Context context(1);
  const models::Model model = open_golden(name);
  Trainer trainer;
  models::Model trained;
  ASSERT_TRUE(models::create_trainer(model, {}, {}, trainer, trained).ok());
  const std::vector<int32_t> ids(kTokens.begin(), kTokens.begin() + 5);
  const std::vector<int32_t> targets{9, 2, 5, 7, -1};
  ASSERT_TRUE(trainer.accumulate(ids, 1, targets, {}, context).ok());
  StateDict gradients;
  ASSERT_TRUE(trainer.gradients(gradients).ok());
  for (const models::StoredTensor& tensor : models::parameters(model)) {
    std::vector<float> of_metric(static_cast<size_t>(tensor.shape.elements()));
    const models::ParameterGradient wanted{tensor.name, {of_metric.data(), tensor.shape}};
    ASSERT_TRUE(models::parameter_gradients(model, {.ids = ids},
                                            {.kind = models::Metric::Kind::kMeanLogProbability},
                                            {&wanted, 1}, context)
                    .ok());
    const ConstAnyTensor& own = gradients.at(tensor.name);
    ASSERT_EQ(own.shape, tensor.shape) << tensor.name;
    double most = 1e-3;
    for (const float value : of_metric) most = std::max(most, std::abs(4.0 * value));
    for (size_t i = 0; i < of_metric.size(); ++i) {
      int64_t rest = static_cast<int64_t>(i), offset = 0;
      for (int axis = own.shape.rank(); axis-- > 0; rest /= own.shape[axis]) {
        offset += rest % own.shape[axis] * own.strides[axis];
      }
      // The loss is a sum over the four targets, the metric minus their mean.
      ASSERT_NEAR(static_cast<const float*>(own.data)[offset], -4.0 * of_metric[i], 1e-4 * most)
          << name << ' ' << tensor.name << ' ' << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ModelTraining,
                         ::testing::Values("gpt2", "gpt_neox", "gemma2", "olmo2", "qwen2", "phi3",
                                           "gptj", "granite", "olmo", "bloom"),
                         [](const auto& info) { return std::string(info.param); });

TEST(ModelTraining, ChangesTheChosenLayersOnly) {
  Context context(1);
  const models::Model model = open_golden("qwen2");
  Trainer trainer;
  models::Model trained;
  ASSERT_TRUE(
      models::create_trainer(model, {.learning_rate = 0.01F}, {.layers = {{1}}}, trainer, trained)
          .ok());
  StateDict dict;
  ASSERT_TRUE(trainer.state_dict(dict).ok());
  for (const auto& [name, tensor] : dict) {
    EXPECT_TRUE(name.find("layers.1.") != std::string::npos || name == "trainer.state") << name;
  }
  const double first = loss_of(trainer, context);
  for (int step = 0; step < 10; ++step) loss_of(trainer, context);
  EXPECT_LT(loss_of(trainer, context), first);
  // Layer 0, which is not differentiated, changes no gradient of layer 1.
  Trainer all;
  models::Model other;
  Trainer chosen;
  ASSERT_TRUE(models::create_trainer(trained, {}, {}, all, other).ok());
  ASSERT_TRUE(models::create_trainer(trained, {}, {.layers = {{1}}}, chosen, other).ok());
  StateDict of_all, of_chosen;
  ASSERT_TRUE(all.accumulate(kTokens, 2, kTargets, {}, context).ok());
  ASSERT_TRUE(chosen.accumulate(kTokens, 2, kTargets, {}, context).ok());
  ASSERT_TRUE(all.gradients(of_all).ok() && chosen.gradients(of_chosen).ok());
  EXPECT_GT(of_chosen.size(), 5U);
  for (const auto& [name, tensor] : of_chosen) {
    const auto* const got = static_cast<const float*>(tensor.data);
    const auto* const want = static_cast<const float*>(of_all.at(name).data);
    EXPECT_TRUE(std::equal(got, got + tensor.shape.elements(), want)) << name;
  }
  // Layer 1 gets the input that it has in the opened model, and gives another output.
  const int64_t width = model.info().embed_dim, layers = model.info().num_layers;
  const auto tokens = static_cast<int64_t>(kTokens.size());
  const auto states = [&](const models::Model& of) {
    std::vector<float> all(static_cast<size_t>((layers + 1) * tokens * width));
    EXPECT_TRUE(of.forward({.ids = kTokens},
                           {.hidden_states = {all.data(), {layers + 1, 1, tokens, width}}}, context)
                    .ok());
    return all;
  };
  const std::vector<float> own = states(trained), given = states(model);
  const auto input = static_cast<ptrdiff_t>(2 * tokens * width);
  EXPECT_TRUE(std::equal(own.begin(), own.begin() + input, given.begin()));
  EXPECT_FALSE(
      std::equal(own.begin() + input, own.begin() + input + input / 2, given.begin() + input));
}

// The copies live as long as the trainer or the trained model. With all parameters copied, the
// opened model's memory is not kept.
TEST(ModelTraining, TheTrainedModelOutlivesItsTrainer) {
  Context context(1);
  for (const auto& layers : {std::optional<std::vector<int64_t>>(), {std::vector<int64_t>{0}}}) {
    models::Model trained;
    std::vector<float> learnt;
    {
      const models::Model model = open_golden("llama3");
      Trainer trainer;
      ASSERT_TRUE(models::create_trainer(model, {}, {.layers = layers}, trainer, trained).ok());
      loss_of(trainer, context);
      learnt = logits_of(trained, kTokens, context);
    }
    EXPECT_EQ(logits_of(trained, kTokens, context), learnt);
    std::vector<std::byte> bytes;
    ASSERT_TRUE(models::save_weights(trained, SafetensorsType::kF16, bytes).ok());
    Safetensors file;
    ASSERT_TRUE(Safetensors::parse(std::move(bytes), file).ok());
    EXPECT_EQ(file.entries().size(), models::parameters(trained).size());
  }
}

// Files may have more axes than the parameters, with as many elements.
TEST(ModelTraining, TensorsOfMoreAxes) {
  Context context(1);
  const models::Model model = open_changed(
      "llama3", [](const auto&, auto) {},
      [](const Dims& shape) {
        Dims more{1, 1};
        for (int axis = 0; axis < shape.rank(); ++axis) more.push_back(shape[axis]);
        return more;
      });
  Trainer trainer, usual;
  models::Model trained;
  Status status = models::create_trainer(model, {}, {}, trainer, trained);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(logits_of(trained, kTokens, context), logits_of(model, kTokens, context));
  ASSERT_TRUE(models::create_trainer(open_golden("llama3"), {}, {}, usual, trained).ok());
  EXPECT_EQ(loss_of(trainer, context), loss_of(usual, context));
  EXPECT_EQ(loss_of(trainer, context), loss_of(usual, context));
}

TEST(ModelTraining, RefusesWhatItCannotTrain) {
  Trainer trainer;
  models::Model trained;
  EXPECT_EQ(models::create_trainer({}, {}, {}, trainer, trained).code(), StatusCode::kOption);
  EXPECT_EQ(models::create_trainer(open_golden("bert"), {}, {}, trainer, trained).argument(),
            "model");
  const models::Model model = open_golden("gpt2");
  EXPECT_EQ(models::create_trainer(model, {}, {.layers = {{99}}}, trainer, trained).argument(),
            "layers");
  const std::vector<int64_t> none;
  EXPECT_EQ(models::create_trainer(model, {}, {.layers = none}, trainer, trained).argument(),
            "layers");
  EXPECT_EQ(models::create_trainer(model, {.recompute = true}, {}, trainer, trained).argument(),
            "recompute");
  EXPECT_FALSE(models::create_trainer(model, {.learning_rate = NAN}, {}, trainer, trained).ok());
  EXPECT_EQ(trained.info().num_layers, 0);
  EXPECT_FALSE(models::save_weights({}, SafetensorsType::kAsGiven, "/nowhere/x").ok());
  EXPECT_EQ(models::save_weights(model, SafetensorsType::kAsGiven, "/nowhere/x").code(),
            StatusCode::kFormat);
  Context context(1);
  ASSERT_TRUE(models::create_trainer(model, {}, {}, trainer, trained).ok());
  EXPECT_EQ(
      trainer
          .accumulate(std::vector<int32_t>{1, 100000}, 1, std::vector<int32_t>{1, 2}, {}, context)
          .argument(),
      "tokens");
  loss_of(trainer, context);
}

}  // namespace
}  // namespace multihead::testing
