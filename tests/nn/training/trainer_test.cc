// Compares training with the optimizers' definitions on gradients by backward(). Also: schedules,
// accumulation, dropout, checkpoints, losses and gradients that are not finite, invalid calls.
#include "multihead/training.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "support/allocations.h"
#include "support/random_case.h"
#include "support/temporary_folder.h"

namespace multihead {
namespace {

using testing::Random;
using testing::TemporaryFolder;

constexpr int64_t kWords = 7, kBatch = 4, kSequenceLength = 6;

TransformerConfig small_config() {
  return {.block = {.attention = {.embed_dim = 16, .num_heads = 4, .bias = false},
                    .norm = Norm::kRmsNorm},
          .num_layers = 2,
          .vocab_size = kWords,
          .max_positions = kSequenceLength};
}

Transformer model_of(const TransformerConfig& config) {
  Transformer model;
  Status status = Transformer::create(config, model);
  if (status.ok()) status = model.initialize({.seed = 5});
  EXPECT_TRUE(status.ok()) << status.message();
  return model;
}

struct Batch {
  std::vector<int32_t> tokens, targets;
};

// The target is the previous token; the first position does not count.
Batch batch_of(uint64_t seed) {
  Random random(seed);
  Batch batch;
  for (int64_t i = 0; i < kBatch * kSequenceLength; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(random.integer(0, kWords - 1)));
    batch.targets.push_back(i % kSequenceLength == 0 ? -1
                                                     : batch.tokens[static_cast<size_t>(i - 1)]);
  }
  return batch;
}

std::vector<float> parameters_of(const Transformer& model) {
  StateDict dict;
  EXPECT_TRUE(model.state_dict(dict).ok());
  std::vector<float> all;
  for (const auto& [name, tensor] : dict) {
    const auto* data = static_cast<const float*>(tensor.data);
    all.insert(all.end(), data, data + tensor.shape.elements());
  }
  return all;
}

std::vector<float> gradients_of(const Trainer& trainer) {
  StateDict dict;
  EXPECT_TRUE(trainer.gradients(dict).ok());
  std::vector<float> all;
  for (const auto& [name, tensor] : dict) {
    const auto* data = static_cast<const float*>(tensor.data);
    all.insert(all.end(), data, data + tensor.shape.elements());
  }
  return all;
}

Trainer trainer_of(const Transformer& model, const TrainerOptions& options) {
  Trainer trainer;
  const Status status = Trainer::create(model, options, trainer);
  EXPECT_TRUE(status.ok()) << status.message();
  return trainer;
}

TrainingStep step(Trainer& trainer, uint64_t seed, Context& context) {
  const Batch batch = batch_of(seed);
  TrainingStep result;
  const Status status = trainer.step(batch.tokens, kBatch, batch.targets, {}, result, context);
  EXPECT_TRUE(status.ok()) << status.message();
  return result;
}

int64_t files_in(const TemporaryFolder& folder) {
  return std::distance(std::filesystem::directory_iterator(folder.path()),
                       std::filesystem::directory_iterator());
}

TEST(Trainer, AfterTheFirstStepOfAShapeAStepAllocatesNothing) {
  for (const int threads : {1, 3}) {
    Context context(threads);
    for (const bool recompute : {false, true}) {
      for (const bool latent : {false, true}) {
        TransformerConfig config = small_config();
        config.embedding_dropout = 0.1F;
        config.block.mlp_dim = 24;
        config.block.gated = latent;
        MultiHeadAttentionConfig& attention = config.block.attention;
        attention.dropout = attention.out_dropout = 0.1F;
        if (latent) {
          attention.kv_latent_dim = 8;
          attention.rope_head_dim = 2;
          attention.rope.style = Rope::Style::kHalf;
        } else {
          attention.qk_norm = attention.sinks = attention.bias = true;
        }
        Trainer trainer = trainer_of(
            model_of(config), {.weight_decay = 0.1F, .clip_norm = 1.0F, .recompute = recompute});
        step(trainer, 1, context);
        const Batch batch = batch_of(2);
        TrainingStep result;
        const int64_t before = testing::allocations();
        const size_t scratch = context.scratch_bytes();
        const Status status =
            trainer.step(batch.tokens, kBatch, batch.targets, {}, result, context);
        EXPECT_EQ(testing::allocations(), before) << "latent " << latent;
        EXPECT_EQ(context.scratch_bytes(), scratch);
        EXPECT_TRUE(status.ok()) << status.message();
      }
    }
  }
}

TEST(Trainer, AdamWAndSgdFollowTheirDefinitions) {
  Context context(1);
  for (const bool adam : {true, false}) {
    const Transformer model = model_of(small_config());
    TrainerOptions options{.learning_rate = 0.02F, .warmup_steps = 3, .clip_norm = 0.05F};
    if (!adam) {
      options.optimizer = Optimizer::kSgd;
      options.momentum = 0.9F;
      options.nesterov = true;
    }
    Trainer trainer = trainer_of(model, options);
    std::vector<double> first(parameters_of(model).size()), second(first.size());
    for (int t = 1; t <= 5; ++t) {
      const Batch batch = batch_of(static_cast<uint64_t>(t));
      const std::vector<float> before = parameters_of(model);
      ASSERT_TRUE(trainer.accumulate(batch.tokens, kBatch, batch.targets, {}, context).ok());
      const std::vector<float> gradients = gradients_of(trainer);
      TrainingStep result;
      ASSERT_TRUE(trainer.update(result, context).ok());
      const double counted = kBatch * (kSequenceLength - 1);
      EXPECT_EQ(result.counted, kBatch * (kSequenceLength - 1));
      double squares = 0;
      for (const float g : gradients) squares += static_cast<double>(g) * g;
      const double norm = std::sqrt(squares) / counted;
      EXPECT_NEAR(result.gradient_norm, norm, 1e-6 * norm);
      const double scale = std::min(1.0, 0.05 / norm) / counted;
      const double rate = 0.02 * std::min(t, 3) / 3;
      EXPECT_FLOAT_EQ(result.learning_rate, static_cast<float>(rate));
      const std::vector<float> after = parameters_of(model);
      for (size_t i = 0; i < before.size(); ++i) {
        const double g = gradients[i] * scale;
        double change;
        if (adam) {
          first[i] = 0.9 * first[i] + 0.1 * g;
          second[i] = 0.999 * second[i] + 0.001 * g * g;
          change = first[i] / (1 - std::pow(0.9, t)) /
                   (std::sqrt(second[i] / (1 - std::pow(0.999, t))) + 1e-8);
        } else {
          first[i] = t == 1 ? g : 0.9 * first[i] + g;
          change = g + 0.9 * first[i];
        }
        ASSERT_NEAR(after[i], before[i] - rate * change, 2e-5 * rate + 1e-7) << adam << " " << t;
      }
    }
  }
}

TEST(Trainer, WeightsDecayButNotGainsAndBiases) {
  TransformerConfig config = small_config();
  config.block.attention.bias = true;
  const Transformer model = model_of(config);
  Trainer trainer = trainer_of(
      model, {.optimizer = Optimizer::kSgd, .learning_rate = 0.5F, .weight_decay = 0.1F});
  StateDict dict;
  ASSERT_TRUE(model.state_dict(dict).ok());
  Context context(1);
  const Batch batch = batch_of(1);
  StateDict gradients;
  ASSERT_TRUE(trainer.accumulate(batch.tokens, kBatch, batch.targets, {}, context).ok());
  ASSERT_TRUE(trainer.gradients(gradients).ok());
  const auto at = [](const StateDict& from, const char* name) {
    return static_cast<double>(static_cast<const float*>(from.at(name).data)[1]);
  };
  const double counted = kBatch * (kSequenceLength - 1);
  const double weight = at(dict, "layers.0.self_attn.in_proj_weight");
  const double gain = at(dict, "layers.0.norm1.weight");
  const double d_weight = at(gradients, "layers.0.self_attn.in_proj_weight") / counted;
  const double d_gain = at(gradients, "layers.0.norm1.weight") / counted;
  TrainingStep result;
  ASSERT_TRUE(trainer.update(result, context).ok());
  EXPECT_NEAR(at(dict, "layers.0.self_attn.in_proj_weight"),
              weight - 0.5 * (d_weight + 0.1 * weight), 1e-6);
  EXPECT_NEAR(at(dict, "layers.0.norm1.weight"), gain - 0.5 * d_gain, 1e-6);
}

TEST(Trainer, LearnsAndIsTheSameWithThreadsAndRecomputed) {
  TransformerConfig config = small_config();
  config.block.attention.dropout = 0.1F;
  config.block.residual_dropout = 0.1F;
  config.embedding_dropout = 0.1F;
  std::vector<float> expected;
  for (const int kind : {0, 1, 2}) {
    const Transformer model = model_of(config);
    Context context(kind == 1 ? 3 : 1);
    Trainer trainer = trainer_of(
        model, {.learning_rate = 1e-2F, .clip_norm = 1.0F, .recompute = kind == 2, .seed = 4});
    const double first = step(trainer, 1, context).loss;
    EXPECT_NEAR(first, std::log(static_cast<double>(kWords)), 0.5);
    double last = 0;
    int64_t bytes = 0;
    for (uint64_t s = 2; s <= 80; ++s) {
      last = step(trainer, s, context).loss;
      if (s == 2) bytes = trainer.bytes();
    }
    EXPECT_LT(last, 0.6 * first);
    EXPECT_EQ(trainer.bytes(), bytes);
    EXPECT_EQ(trainer.steps(), 80);
    const std::vector<float> parameters = parameters_of(model);
    if (expected.empty()) expected = parameters;
    EXPECT_EQ(parameters, expected) << kind;
  }
}

TEST(Trainer, PartsOfABatchAddUp) {
  Context context(1);
  const Transformer whole = model_of(small_config()), parts = model_of(small_config());
  Trainer a = trainer_of(whole, {}), b = trainer_of(parts, {});
  const Batch batch = batch_of(9);
  TrainingStep of_whole, of_parts;
  ASSERT_TRUE(a.step(batch.tokens, kBatch, batch.targets, {}, of_whole, context).ok());
  for (size_t entry = 0; entry < kBatch; ++entry) {
    const auto part = [&](const std::vector<int32_t>& of) {
      return std::span(of).subspan(entry * kSequenceLength, kSequenceLength);
    };
    ASSERT_TRUE(b.accumulate(part(batch.tokens), 1, part(batch.targets), {}, context).ok());
  }
  ASSERT_TRUE(b.update(of_parts, context).ok());
  EXPECT_NEAR(of_whole.loss, of_parts.loss, 1e-6);
  EXPECT_EQ(of_whole.counted, of_parts.counted);
  EXPECT_EQ(of_whole.correct, of_parts.correct);
  EXPECT_NEAR(of_whole.gradient_norm, of_parts.gradient_norm, 1e-5 * of_whole.gradient_norm);
}

TEST(Trainer, LearningRateFollowsWarmUpAndCosine) {
  Context context(1);
  const Transformer model = model_of(small_config());
  Trainer trainer = trainer_of(model, {.learning_rate = 0.01F,
                                       .warmup_steps = 2,
                                       .decay = LearningRateDecay::kCosine,
                                       .decay_steps = 4,
                                       .final_learning_rate = 0.001F});
  std::vector<float> rates;
  for (uint64_t s = 1; s <= 8; ++s) rates.push_back(step(trainer, s, context).learning_rate);
  const double expected[] = {0.005, 0.01, 0, 0.0055, 0, 0.001, 0.001, 0.001};
  for (size_t s = 0; s < 8; ++s) {
    if (expected[s] > 0) {
      EXPECT_NEAR(rates[s], expected[s], 1e-7) << s;
    }
  }
  ASSERT_TRUE(trainer.set_learning_rate(0.02F).ok());
  EXPECT_EQ(trainer.options().learning_rate, 0.02F);
  EXPECT_EQ(trainer.set_learning_rate(NAN).argument(), "learning_rate");
}

TEST(Trainer, AResumedTrainingHasTheSameBits) {
  TransformerConfig config = small_config();
  config.block.attention.dropout = 0.2F;
  const TemporaryFolder folder;
  const std::string path = folder.file("trainer.safetensors");
  for (const Optimizer optimizer : {Optimizer::kAdamW, Optimizer::kSgd}) {
    Context context(1);
    TrainerOptions options{.optimizer = optimizer, .learning_rate = 1e-2F, .warmup_steps = 6};
    if (optimizer == Optimizer::kSgd) options.momentum = 0.5F;
    options.seed = (uint64_t{7} << 48U) + 11;
    const Transformer model = model_of(config);
    Trainer whole = trainer_of(model, options);
    for (uint64_t s = 1; s <= 4; ++s) step(whole, s, context);
    ASSERT_TRUE(whole.save(path).ok());
    for (uint64_t s = 5; s <= 9; ++s) step(whole, s, context);

    Transformer fresh;
    ASSERT_TRUE(Transformer::create(config, fresh).ok());
    ASSERT_TRUE(fresh.initialize({.seed = 77}).ok());
    options.seed = 0;
    Trainer resumed = trainer_of(fresh, options);
    const Status status = resumed.load(path);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(resumed.steps(), 4);
    EXPECT_EQ(resumed.options().seed, (uint64_t{7} << 48U) + 11);
    for (uint64_t s = 5; s <= 9; ++s) step(resumed, s, context);
    EXPECT_EQ(parameters_of(model), parameters_of(fresh));
  }
  EXPECT_EQ(files_in(folder), 1);
}

// Savers do not write each other's files, and a link stays a link.
TEST(Trainer, SavesBesideOtherSaversAndThroughLinks) {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  const std::string path = folder.file("trainer.safetensors"), link = folder.file("link");
  Trainer trainer = trainer_of(model_of(small_config()), {});
  std::ofstream(path + ".0.part") << "of another saver";
  fs::create_symlink("trainer.safetensors", link);
  for (int time = 0; time < 2; ++time) {
    const Status status = trainer.save(time == 0 ? path : link);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(files_in(folder), 3);
    EXPECT_TRUE(fs::is_symlink(link));
    EXPECT_EQ(fs::file_size(path + ".0.part"), 16U);
    const Status loaded = trainer.load(link);
    EXPECT_TRUE(loaded.ok()) << loaded.message();
  }
  for (int number = 1; number < 16; ++number) {
    std::ofstream(path + "." + std::to_string(number) + ".part") << "of another saver";
  }
  EXPECT_EQ(trainer.save(path).code(), StatusCode::kFormat);
  EXPECT_EQ(files_in(folder), 18);
}

// State dicts hold views: they show the training's state at the time of reading.
TEST(Trainer, ADictShowsTheStateOfItsParameters) {
  Context context(1);
  const Transformer model = model_of(small_config());
  Trainer trainer = trainer_of(model, {.learning_rate = 1e-2F, .seed = (uint64_t{3} << 40U) + 5});
  StateDict dict;
  ASSERT_TRUE(trainer.state_dict(dict).ok());
  const auto steps = [&] { return static_cast<const float*>(dict.at("trainer.state").data)[0]; };
  EXPECT_EQ(steps(), 0.0F);
  step(trainer, 1, context);
  step(trainer, 2, context);
  EXPECT_EQ(steps(), 2.0F);
  Trainer other = trainer_of(model_of(small_config()), {.learning_rate = 1e-2F});
  ASSERT_TRUE(other.load_state_dict(dict).ok());
  EXPECT_EQ(other.steps(), 2);
  EXPECT_EQ(other.options().seed, (uint64_t{3} << 40U) + 5);
  StateDict of_other;
  ASSERT_TRUE(other.state_dict(of_other).ok());
  step(trainer, 3, context);
  step(other, 3, context);
  EXPECT_EQ(parameters_of(trainer.model()), parameters_of(other.model()));
  EXPECT_EQ(static_cast<const float*>(of_other.at("trainer.state").data)[0], 3.0F);
}

// Caches and activations are refused after an update has changed their parameters.
TEST(Trainer, AnUpdateEndsCachesAndActivations) {
  Context context(1);
  const Transformer model = model_of(small_config());
  Trainer trainer = trainer_of(model, {.learning_rate = 1e-2F});
  TransformerCache cache;
  ASSERT_TRUE(model.create_cache({.batch = 1, .capacity = kSequenceLength}, cache).ok());
  const std::vector<int32_t> token{1};
  std::vector<float> logits(kWords);
  const TransformerOutputs outputs{.logits = {logits.data(), {1, 1, kWords}}};
  ASSERT_TRUE(model.step(token, {}, outputs, cache, context).ok());
  TransformerActivations kept;
  TransformerOutputs keeps = outputs;
  keeps.activations = &kept;
  ASSERT_TRUE(model.forward(token, 1, {}, keeps, context).ok());
  step(trainer, 1, context);
  EXPECT_EQ(model.step(token, {}, outputs, cache, context).argument(), "cache");
  EXPECT_EQ(cache.length(), 1);
  std::vector<float> gradients(static_cast<size_t>(model.num_parameters()));
  EXPECT_EQ(model.backward(token, 1, {}, outputs.logits, kept, gradients, context).argument(),
            "activations");
  ASSERT_TRUE(cache.truncate(0).ok());
  EXPECT_TRUE(model.step(token, {}, outputs, cache, context).ok());
}

TEST(Trainer, RefusesCheckpointsThatDoNotFit) {
  const TemporaryFolder folder;
  const std::string path = folder.file("trainer.safetensors");
  Context context(1);
  const Transformer model = model_of(small_config());
  Trainer trainer = trainer_of(model, {});
  step(trainer, 1, context);
  ASSERT_TRUE(trainer.save(path).ok());
  const std::vector<float> before = parameters_of(model);

  TransformerConfig wider = small_config();
  wider.vocab_size = kWords + 1;
  const Transformer other = model_of(wider);
  Status status = trainer_of(other, {}).load(path);
  EXPECT_EQ(status.code(), StatusCode::kShape);
  EXPECT_NE(status.message().find("embedding.weight"), std::string::npos) << status.message();
  status = trainer_of(model, {.optimizer = Optimizer::kSgd}).load(path);
  EXPECT_NE(status.message().find("optimizer.mean"), std::string::npos) << status.message();

  const auto size = std::filesystem::file_size(path);
  std::filesystem::resize_file(path, size - 5);
  EXPECT_EQ(trainer.load(path).code(), StatusCode::kFormat);
  std::ofstream(path) << "not a checkpoint";
  EXPECT_EQ(trainer.load(path).code(), StatusCode::kFormat);
  EXPECT_EQ(trainer.load(path).code(), StatusCode::kFormat);
  EXPECT_EQ(trainer.save("/nonexistent-directory/x").code(), StatusCode::kFormat);
#if !defined(__EMSCRIPTEN__) && !defined(_WIN32)
  // Refuses a device; here, a link to a device would be replaced.
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/dev/null", path);
  EXPECT_NE(trainer.save(path).message().find("got a device"), std::string::npos);
  EXPECT_TRUE(std::filesystem::is_symlink(path));
#endif

  StateDict dict;
  ASSERT_TRUE(trainer.state_dict(dict).ok());
  const std::vector<float> digits{0.5F, 0, 0, 0, 0, 0, 0, 0};
  dict.at("trainer.state") = ConstTensor(digits.data(), {8});
  EXPECT_EQ(trainer.load_state_dict(dict).argument(), "state_dict");
  EXPECT_EQ(parameters_of(model), before);
  EXPECT_EQ(trainer.steps(), 1);
  step(trainer, 2, context);
}

TEST(Trainer, StopsAtALossThatIsNotFinite) {
  Context context(1);
  TransformerConfig config = small_config();
  Transformer model = model_of(config);
  StateDict dict;
  ASSERT_TRUE(model.state_dict(dict).ok());
  Trainer trainer = trainer_of(model, {});
  step(trainer, 1, context);
  auto* weight = const_cast<float*>(
      static_cast<const float*>(dict.at("layers.1.self_attn.out_proj.weight").data));
  const float kept = weight[3];
  weight[3] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> before = parameters_of(model);
  const Batch batch = batch_of(2);
  TrainingStep result;
  Status status = trainer.step(batch.tokens, kBatch, batch.targets, {}, result, context);
  EXPECT_EQ(status.code(), StatusCode::kOption);
  EXPECT_NE(status.message().find("step 2"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("layers.1.self_attn.out_proj.weight"), std::string::npos)
      << status.message();
  EXPECT_EQ(trainer.steps(), 1);
  weight[3] = kept;
  step(trainer, 2, context);
  EXPECT_EQ(trainer.steps(), 2);
}

TEST(Trainer, RefusesInvalidCalls) {
  Context context(1);
  Trainer trainer;
  TrainingStep result;
  StateDict dict;
  const Batch batch = batch_of(1);
  EXPECT_EQ(trainer.step(batch.tokens, kBatch, batch.targets, {}, result, context).argument(),
            "trainer");
  EXPECT_EQ(trainer.state_dict(dict).argument(), "trainer");
  EXPECT_EQ(trainer.gradients(dict).argument(), "trainer");
  EXPECT_EQ(trainer.bytes(), 0);
  Transformer unloaded;
  EXPECT_EQ(Trainer::create(unloaded, {}, trainer).argument(), "model");

  const Transformer model = model_of(small_config());
  const auto refused = [&](const TrainerOptions& options) {
    return Trainer::create(model, options, trainer).argument();
  };
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float rate : {0.0F, -1.0F, NAN, kInf}) {
    EXPECT_EQ(refused({.learning_rate = rate}), "learning_rate");
  }
  EXPECT_EQ(refused({.beta1 = 1.0F}), "beta1");
  EXPECT_EQ(refused({.beta2 = NAN}), "beta2");
  EXPECT_EQ(refused({.eps = -1.0F}), "eps");
  EXPECT_EQ(refused({.eps = 0.0F}), "eps");
  EXPECT_EQ(refused({.momentum = -0.1F}), "momentum");
  EXPECT_EQ(refused({.optimizer = Optimizer::kAdamW, .momentum = 0.5F}), "momentum");
  EXPECT_EQ(refused({.nesterov = true}), "nesterov");
  EXPECT_EQ(refused({.weight_decay = kInf}), "weight_decay");
  EXPECT_EQ(refused({.warmup_steps = -1}), "warmup_steps");
  EXPECT_EQ(refused({.decay = LearningRateDecay::kCosine}), "decay_steps");
  EXPECT_EQ(refused({.clip_norm = NAN}), "clip_norm");
  EXPECT_EQ(refused({.optimizer = static_cast<Optimizer>(9)}), "optimizer");

  ASSERT_TRUE(Trainer::create(model, {}, trainer).ok());
  const std::vector<float> before = parameters_of(model);
  const auto called = [&](std::vector<int32_t> tokens, int64_t entries,
                          std::vector<int32_t> targets,
                          const MultiHeadAttentionOptions& options = {}) {
    return trainer.step(tokens, entries, targets, options, result, context).argument();
  };
  std::vector<int32_t> targets = batch.targets;
  EXPECT_EQ(called(batch.tokens, 0, targets), "tokens");
  EXPECT_EQ(called(batch.tokens, 5, targets), "tokens");
  EXPECT_EQ(called(batch.tokens, kBatch, {1, 2}), "targets");
  targets[3] = kWords;
  EXPECT_EQ(called(batch.tokens, kBatch, targets), "targets");
  targets[3] = -2;
  EXPECT_EQ(called(batch.tokens, kBatch, targets), "targets");
  EXPECT_EQ(called(batch.tokens, kBatch, std::vector<int32_t>(targets.size(), -1)), "targets");
  EXPECT_EQ(called(batch.tokens, kBatch, batch.targets, {.training = true}), "training");
  EXPECT_EQ(called({}, 1, {}), "targets");
  ASSERT_TRUE(trainer.accumulate(batch.tokens, kBatch, batch.targets, {}, context).ok());
  EXPECT_EQ(trainer.state_dict(dict).argument(), "trainer");
  EXPECT_EQ(parameters_of(model), before);
  ASSERT_TRUE(trainer.update(result, context).ok());
}

}  // namespace
}  // namespace multihead
