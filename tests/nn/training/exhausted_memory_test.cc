// Gradients and training while the n-th memory request fails.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "multihead/multihead.h"
#include "support/allocations.h"
#include "support/exhaustion.h"
#include "support/random_module.h"

namespace multihead {
namespace {

using testing::Attempt;
using testing::bits_of;
using testing::bits_of_dict;
using testing::expect_refusal_survives_exhaustion;
using testing::expect_survives_exhaustion;
using testing::Random;

// A layer whose gradients are computed, with and without kept activations.
struct Layer {
  MultiHeadAttention module;
  MultiHeadAttentionActivations activations;
  std::vector<float> x, d_out, d_x, out, block;
  Context context{2};

  explicit Layer(const MultiHeadAttentionConfig& config) {
    Transformer model;
    StateDict dict, own;
    EXPECT_TRUE(
        Transformer::create(
            {.block = {.attention = config, .norm = Norm::kNone}, .num_layers = 1, .vocab_size = 1},
            model)
            .ok());
    EXPECT_TRUE(model.initialize({}).ok() && model.state_dict(dict).ok());
    const std::string prefix = "layers.0.self_attn.";
    for (const auto& [name, tensor] : dict) {
      if (name.starts_with(prefix)) own.emplace(name.substr(prefix.size()), tensor);
    }
    EXPECT_TRUE(MultiHeadAttention::create(config, module).ok());
    EXPECT_TRUE(module.load_state_dict(own).ok());
    Random random(2);
    x = random.floats(2 * 5 * 8);
    d_out = random.floats(2 * 5 * 8);
    d_x.resize(x.size());
    out.resize(x.size());
    block.resize(static_cast<size_t>(module.num_parameters()));
  }
  Status forward(Context& with) {
    const Dims shape{2, 5, 8};
    return module.forward({.query = {x.data(), shape}}, {.training = true},
                          {.out = {out.data(), shape}, .activations = &activations}, nullptr, with);
  }
  Status backward(bool kept) {
    const Dims shape{2, 5, 8};
    block.assign(block.size(), 0.0F);
    MultiHeadAttentionGradients gradients{.d_query = {d_x.data(), shape}};
    if (Status status = module.gradients_in(block, gradients.weights); !status.ok()) return status;
    return module.backward({.query = {x.data(), shape}}, {.training = true}, {d_out.data(), shape},
                           kept ? &activations : nullptr, gradients, context);
  }
};

TEST(ExhaustedMemory, ModulesKeepActivationsAndDifferentiate) {
  for (const MultiHeadAttentionConfig& config : {MultiHeadAttentionConfig{.embed_dim = 8,
                                                .num_heads = 4,
                                                .sinks = true,
                                                .qk_norm = true,
                                                .rope = {.style = Rope::Style::kHalf},
                                                .out_dropout = 0.5F},
                                                 MultiHeadAttentionConfig{.embed_dim = 8,
                                                 .num_heads = 2,
                                                 .head_dim = 6,
                                                 .bias = false,
                                                 .kv_latent_dim = 5,
                                                 .q_latent_dim = 4,
                                                 .rope_head_dim = 2,
                                                 .rope = {.style = Rope::Style::kHalf}}}) {
    expect_survives_exhaustion("forward", [&]() -> Attempt {
      const auto layer = std::make_shared<Layer>(config);
      return {.call = [=] { return layer->forward(layer->context); },
              .result = [=] { return bits_of(layer->out); },
              .repeats_without_memory = true};
    });
    for (const bool kept : {false, true}) {
      expect_survives_exhaustion("backward", [&]() -> Attempt {
        const auto layer = std::make_shared<Layer>(config);
        Context other(1);
        EXPECT_TRUE(layer->forward(other).ok());
        return {.call = [=] { return layer->backward(kept); },
                .result = [=] { return bits_of(layer->block) + bits_of(layer->d_x); },
                .repeats_without_memory = true};
      });
    }
  }
}

// A small model with every option that takes memory in a step.
struct Model {
  Transformer model;
  Trainer trainer;
  std::vector<int32_t> tokens{1, 2, 0, 4, 3, 3, 2, 1}, targets{2, 0, 4, -1, 3, 2, 1, 0};
  TrainingStep result;
  Context context{2};

  explicit Model(bool recompute = false) {
    const Status status =
        Transformer::create({.block = {.attention = {.embed_dim = 8,
                                                     .num_heads = 2,
                                                     .rope = {.style = Rope::Style::kHalf}},
                                       .mlp_dim = 12,
                                       .gated = true,
                                       .residual_dropout = 0.2F},
                             .num_layers = 2,
                             .vocab_size = 5},
                            model);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(model.initialize({}).ok());
    EXPECT_TRUE(Trainer::create(model, {.clip_norm = 1.0F, .recompute = recompute}, trainer).ok());
  }
  Status step() { return trainer.step(tokens, 2, targets, {}, result, context); }
  std::string bits() const {
    StateDict dict;
    return model.state_dict(dict).ok() ? bits_of_dict(dict) + std::to_string(trainer.steps())
                                       : "none";
  }
};

TEST(ExhaustedMemory, ModelsAreInitialized) {
  expect_survives_exhaustion("initialize", []() -> Attempt {
    const auto m = std::make_shared<Model>();
    return {.call = [=] { return m->model.initialize({.seed = 5}); },
            .result = [=] { return m->bits(); },
            .state = [=] { return m->bits(); }};
  });
}

TEST(ExhaustedMemory, TrainersAreCreatedAndStep) {
  expect_survives_exhaustion("create", []() -> Attempt {
    const auto m = std::make_shared<Model>();
    const auto made = std::make_shared<Trainer>();
    return {.call = [=] { return Trainer::create(m->model, {}, *made); },
            .result = [=] { return std::to_string(made->model().num_parameters()); },
            .state = [=] { return std::to_string(made->model().num_parameters()); }};
  });
  for (const bool recompute : {false, true}) {
    expect_survives_exhaustion("step", [=]() -> Attempt {
      const auto m = std::make_shared<Model>(recompute);
      return {.call = [=] { return m->step(); },
              .result = [=] { return m->bits(); },
              .state = [=] { return m->bits(); },
              .repeats_without_memory = true};
    });
  }
}

TEST(ExhaustedMemory, TrainersSaveAndRestoreTheirState) {
  expect_survives_exhaustion("state_dict", []() -> Attempt {
    const auto m = std::make_shared<Model>();
    EXPECT_TRUE(m->step().ok());
    const auto dict = std::make_shared<StateDict>();
    return {.call = [=] { return m->trainer.state_dict(*dict); },
            .result = [=] { return bits_of_dict(*dict); },
            .state = [=] { return bits_of_dict(*dict); }};
  });
  expect_survives_exhaustion("load_state_dict", []() -> Attempt {
    const auto from = std::make_shared<Model>(), m = std::make_shared<Model>();
    EXPECT_TRUE(from->step().ok());
    const auto dict = std::make_shared<StateDict>();
    EXPECT_TRUE(from->trainer.state_dict(*dict).ok());
    return {.call = [=] { return m->trainer.load_state_dict(*dict); },
            .result = [=] { return m->bits() + std::to_string(from->trainer.steps()); },
            .state = [=] { return m->bits(); }};
  });
}

TEST(ExhaustedMemory, RefusalsOfTrainersStayRefusals) {
  expect_refusal_survives_exhaustion("create", [] {
    Transformer none;
    Trainer trainer;
    return Trainer::create(none, {}, trainer);
  });
  Context context(1);
  expect_refusal_survives_exhaustion("step", [&] {
    Trainer trainer;
    TrainingStep result;
    return trainer.step({}, 1, {}, {}, result, context);
  });
}

}  // namespace
}  // namespace multihead
