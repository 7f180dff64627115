// Configs and parameters: valid modules, and errors that list everything wrong with a state dict.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "multihead/multi_head_attention.h"
#include "support/random_module.h"

namespace multihead {
namespace {

using testing::module_of;
using testing::Random;
using testing::random_parameters;

TEST(ModuleConfig, RefusesHeadsThatDoNotDivide) {
  MultiHeadAttention module;
  const Status status = MultiHeadAttention::create({.embed_dim = 64, .num_heads = 7}, module);
  EXPECT_EQ(status.code(), StatusCode::kOption);
  EXPECT_EQ(status.message(),
            "num_heads: expected a divisor of embed_dim = 64 (1, 2, 4, 8, 16, 32 or 64), got 7");
}

TEST(ModuleConfig, RefusesValuesOutOfRange) {
  using Config = MultiHeadAttentionConfig;
  const auto argument = [](const std::function<void(Config&)>& change) {
    Config config{.embed_dim = 16, .num_heads = 4};
    change(config);
    MultiHeadAttention module;
    return MultiHeadAttention::create(config, module).argument();
  };
  EXPECT_EQ(argument([](Config&) {}), "");
  EXPECT_EQ(argument([](Config& c) { c.embed_dim = 0; }), "embed_dim");
  EXPECT_EQ(argument([](Config& c) { c.num_heads = -1; }), "num_heads");
  EXPECT_EQ(argument([](Config& c) { c.num_heads = 0; }), "num_heads");
  EXPECT_EQ(argument([](Config& c) { c.head_dim = -8; }), "head_dim");
  EXPECT_EQ(argument([](Config& c) { c.head_dim = INT64_MAX; }), "head_dim");
  EXPECT_EQ(argument([](Config& c) { c.num_kv_heads = 3; }), "num_kv_heads");
  EXPECT_EQ(argument([](Config& c) { c.kdim = -1; }), "kdim");
  EXPECT_EQ(argument([](Config& c) { c.vdim = -1; }), "vdim");
  EXPECT_EQ(argument([](Config& c) { c.value_dim = -1; }), "value_dim");
  EXPECT_EQ(argument([](Config& c) { c.out_dim = -1; }), "out_dim");
  EXPECT_EQ(argument([](Config& c) { c.window.left = -2; }), "window.left");
  EXPECT_EQ(argument([](Config& c) { c.softcap = -1.0F; }), "softcap");
  EXPECT_NE(argument([](Config& c) { c.dropout = 1.0F; }), "");
  EXPECT_NE(argument([](Config& c) { c.rope = {.style = Rope::Style::kHalf, .rotary_dim = 5}; }),
            "");
  EXPECT_EQ(argument([](Config& c) { c.qk_norm = true, c.qk_norm_eps = -1.0F; }), "qk_norm.eps");
  EXPECT_EQ(argument([](Config& c) { c.rope.style = static_cast<Rope::Style>(3); }), "rope.style");
  EXPECT_EQ(argument([](Config& c) { c.window.alignment = static_cast<Alignment>(77); }),
            "window.alignment");
}

// The parameters of another module; one message names all differences.
TEST(ModuleConfig, NamesEverythingWrongWithAStateDict) {
  const MultiHeadAttentionConfig config{.embed_dim = 8, .num_heads = 2};
  Random random(1);
  const auto parameters = random_parameters(config, random);
  MultiHeadAttention module = module_of(config, parameters.dict);
  StateDict broken = parameters.dict;
  broken.erase("in_proj_bias");
  broken.erase("out_proj.bias");
  broken["out_proj.weight"].shape = {4, 16};
  broken["bias_k"] = broken["out_proj.weight"];
  broken["gamma"] = broken["out_proj.weight"];
  const Status status = module.load_state_dict(broken);
  EXPECT_EQ(status.code(), StatusCode::kShape);
  EXPECT_EQ(status.message(),
            "state_dict: expected the 4 parameters of this module, got missing: in_proj_bias (24), "
            "out_proj.bias (8); unexpected: bias_k, gamma; of another shape: out_proj.weight (4, "
            "16) instead of (8, 8)");
  // The weights are unchanged.
  StateDict kept;
  ASSERT_TRUE(module.state_dict(kept).ok());
  const auto* const first = static_cast<const float*>(kept.at("in_proj_weight").data);
  EXPECT_EQ(std::vector<float>(first, first + 24 * 8), parameters.at("in_proj_weight"));
}

// An unknown element type must be refused; it once left the parameter's memory uninitialized.
TEST(ModuleConfig, RefusesTensorsThatCannotBeRead) {
  const MultiHeadAttentionConfig config{.embed_dim = 8, .num_heads = 2};
  Random random(1);
  const auto parameters = random_parameters(config, random);
  MultiHeadAttention module = module_of(config, parameters.dict);
  StateDict broken = parameters.dict;
  broken["in_proj_bias"].dtype = static_cast<DType>(9);
  broken["out_proj.weight"].strides = {1};
  broken["out_proj.bias"].data = nullptr;
  const Status status = module.load_state_dict(broken);
  EXPECT_EQ(status.code(), StatusCode::kShape);
  EXPECT_EQ(status.got(),
            "not to be read: in_proj_bias of element type number 9, out_proj.weight with 1 "
            "strides, out_proj.bias without data");
}

TEST(ModuleConfig, StateDictsRoundTrip) {
  const MultiHeadAttentionConfig config{.embed_dim = 6,
                                        .num_heads = 2,
                                        .num_kv_heads = 1,
                                        .kdim = 5,
                                        .add_bias_kv = true,
                                        .sinks = true,
                                        .qk_norm = true};
  Random random(2);
  const auto parameters = random_parameters(config, random);
  const MultiHeadAttention module = module_of(config, parameters.dict);
  StateDict dict;
  ASSERT_TRUE(module.state_dict(dict).ok());
  ASSERT_EQ(dict.size(), parameters.dict.size());
  for (const auto& [name, tensor] : dict) {
    const auto& values = parameters.at(name);
    EXPECT_EQ(tensor.shape, parameters.dict.at(name).shape) << name;
    const auto* const data = static_cast<const float*>(tensor.data);
    EXPECT_EQ(std::vector<float>(data, data + values.size()), values) << name;
  }
  module_of(config, dict);
}

// f16 and bf16 represent multiples of 1/16 exactly; any strides are allowed.
TEST(ModuleConfig, ReadsHalvesAndStrides) {
  const MultiHeadAttentionConfig config{.embed_dim = 4, .num_heads = 2, .bias = false};
  Random random(3);
  const auto parameters = random_parameters(config, random);
  testing::RandomCase storage;
  StateDict dict;
  dict["in_proj_weight"] =
      testing::stored(storage, parameters.at("in_proj_weight"), DType::kF16, {12, 4}, {4, 1});
  // Column-major.
  std::vector<float> columns;
  for (size_t c = 0; c < 4; ++c) {
    for (size_t r = 0; r < 4; ++r) columns.push_back(parameters.at("out_proj.weight")[r * 4 + c]);
  }
  dict["out_proj.weight"] = testing::stored(storage, columns, DType::kBF16, {4, 4}, {1, 4});
  StateDict read;
  ASSERT_TRUE(module_of(config, dict).load_state_dict(dict).ok());
  const MultiHeadAttention module = module_of(config, dict);
  ASSERT_TRUE(module.state_dict(read).ok());
  for (const auto& [name, tensor] : read) {
    const auto& values = parameters.at(name);
    const auto* const data = static_cast<const float*>(tensor.data);
    EXPECT_EQ(std::vector<float>(data, data + values.size()), values) << name;
  }
}

TEST(ModuleConfig, RefusesViewsThatDoNotFit) {
  const std::vector<float> data(200);
  using W = MultiHeadAttentionWeights;
  const auto argument = [&](const MultiHeadAttentionConfig& config,
                            const std::function<void(W&)>& change) {
    MultiHeadAttention module;
    EXPECT_TRUE(MultiHeadAttention::create(config, module).ok());
    const ConstTensor square(data.data(), {8, 8});
    W weights{.q_proj = square, .k_proj = square, .v_proj = square};
    if (config.out_proj) weights.out_proj = square;
    change(weights);
    return module.use_weights(weights).argument();
  };
  const MultiHeadAttentionConfig config{.embed_dim = 8, .num_heads = 2};
  const MultiHeadAttentionConfig bare{.embed_dim = 8, .num_heads = 2, .out_proj = false};
  EXPECT_EQ(argument(config, [](W&) {}), "");
  EXPECT_EQ(argument(config, [](W& w) { w.k_proj.shape = {4, 16}; }), "k_proj");
  EXPECT_EQ(argument(config, [](W& w) { w.v_proj = {}; }), "v_proj");
  EXPECT_EQ(argument(config, [](W& w) { w.out_proj = {}; }), "out_proj");
  EXPECT_EQ(argument(bare, [](W& w) { w.out_proj = w.q_proj; }), "out_proj");
  EXPECT_EQ(argument(bare, [&](W& w) { w.out_bias = {data.data(), {8}}; }), "out_bias");
  EXPECT_EQ(argument(config, [&](W& w) { w.out_bias = {data.data(), {7}}; }), "out_bias");
  EXPECT_EQ(argument(config, [&](W& w) { w.sinks = {data.data(), {2}}; }), "sinks");
  EXPECT_EQ(argument({.embed_dim = 8, .num_heads = 2, .add_bias_kv = true}, [](W&) {}), "bias_k");
  MultiHeadAttention none;
  EXPECT_EQ(none.use_weights({}).argument(), "module");
  StateDict dict;
  EXPECT_EQ(none.state_dict(dict).argument(), "state_dict");
}

}  // namespace
}  // namespace multihead
