// Parameter lists of all modules: they match the state dict, have roles, and are contiguous in one
// block of memory, which the views point into.
#include "nn/parameters.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "multihead/transformer.h"
#include "nn/attention/attention_parameters.h"
#include "nn/transformer/transformer_block.h"

namespace multihead::nn {
namespace {

// A value for every element of a list, in the form of a state dict.
struct Values {
  std::map<std::string, std::vector<float>> data;
  StateDict dict;

  explicit Values(const ParameterList& list) {
    float next = 0;
    for (const Parameter& parameter : list.parameters()) {
      std::vector<float>& values = data[parameter.name];
      values.resize(static_cast<size_t>(parameter.shape.elements()));
      for (float& value : values) value = ++next;
      dict.emplace(parameter.name, ConstTensor(values.data(), parameter.shape));
    }
  }
};

using Listed = std::vector<std::pair<std::string, ParameterRole>>;

Listed names_and_roles(const ParameterList& list) {
  Listed result;
  for (const Parameter& parameter : list.parameters()) {
    result.emplace_back(parameter.name, parameter.role);
  }
  return result;
}

void expect_lies_without_gaps(const ParameterList& list) {
  int64_t offset = 0;
  for (const Parameter& parameter : list.parameters()) {
    EXPECT_EQ(parameter.offset, offset) << parameter.name;
    offset += parameter.shape.elements();
  }
  EXPECT_EQ(list.elements(), offset);
}

MultiHeadAttentionConfig created(const MultiHeadAttentionConfig& config) {
  MultiHeadAttention module;
  EXPECT_TRUE(MultiHeadAttention::create(config, module).ok());
  return module.config();
}

TEST(Parameters, OfAttentionHaveNamesRolesAndPlaces) {
  using enum ParameterRole;
  const MultiHeadAttentionConfig config = created(
      {.embed_dim = 12, .num_heads = 3, .add_bias_kv = true, .sinks = true, .qk_norm = true});
  MultiHeadAttentionWeights weights;
  ParameterList list;
  list_attention(config, "a.", {}, weights, list);
  EXPECT_EQ(names_and_roles(list), (Listed{{"a.in_proj_weight", kWeight},
                                           {"a.in_proj_bias", kBias},
                                           {"a.out_proj.weight", kResidualWeight},
                                           {"a.out_proj.bias", kBias},
                                           {"a.bias_k", kAppended},
                                           {"a.bias_v", kAppended},
                                           {"a.sinks", kSink},
                                           {"a.q_norm.weight", kGain},
                                           {"a.k_norm.weight", kGain}}));
  EXPECT_EQ(list.parameters()[0].shape, (Dims{36, 12}));
  EXPECT_EQ(list.parameters()[4].shape, (Dims{1, 1, 12}));
  expect_lies_without_gaps(list);

  const Values values(list);
  Parameters parameters;
  ASSERT_TRUE(parameters.load(list, values.dict).ok());
  ASSERT_EQ(parameters.list().size(), list.parameters().size());
  for (const Parameter& parameter : parameters.list()) {
    const std::vector<float>& expected = values.data.at(parameter.name);
    const float* const got = parameters.values(parameter);
    EXPECT_EQ(std::vector<float>(got, got + expected.size()), expected) << parameter.name;
  }
  // The rows of in_proj_weight for q, k and v, each as a separate matrix.
  EXPECT_EQ(weights.q_proj.data, parameters.values(parameters.list()[0]));
  EXPECT_EQ(weights.k_proj.data, weights.q_proj.data + 144);
  EXPECT_EQ(weights.v_proj.data, weights.k_proj.data + 144);
  EXPECT_EQ(weights.v_proj.shape, (Dims{12, 12}));
  EXPECT_EQ(weights.bias_v.shape, (Dims{12}));
  EXPECT_TRUE(validate_weights(config, weights).ok());

  // Lists the parameters again over other memory, as for gradients.
  MultiHeadAttentionWeights gradients;
  ParameterList again;
  list_attention(config, "a.", {}, gradients, again);
  const std::vector<float> memory(static_cast<size_t>(again.elements()));
  again.bind(memory.data());
  EXPECT_EQ(gradients.k_proj.data, memory.data() + 144);
  EXPECT_EQ(gradients.k_norm.data + 4, memory.data() + memory.size());
}

TEST(Parameters, ErrorsShortenAndCountTheNamesOfADict) {
  ParameterList list;
  ConstTensor view;
  list.add("weight", {2}, ParameterRole::kWeight, view);
  const float numbers[2] = {};
  StateDict dict;
  const std::string huge = "a\n" + std::string(1'000'000, 'a');
  for (int i = 0; i < 522; ++i) {
    dict.emplace((i == 0 ? huge : "extra.") + std::to_string(i), ConstTensor(numbers, {2}));
  }
  Parameters parameters;
  const std::string got = parameters.load(list, dict).got();
  EXPECT_TRUE(got.starts_with("missing: weight (2); unexpected: a\\u000a" + std::string(78, 'a') +
                              "…, extra.1, extra.10, "))
      << got.substr(0, 1000);
  EXPECT_TRUE(got.ends_with(" and 512 more")) << got.substr(0, 1000);
  EXPECT_TRUE(parameters.empty());
}

TEST(Parameters, OfLatentAttentionAreThoseOfItsConfig) {
  using enum ParameterRole;
  const MultiHeadAttentionConfig config = created({.embed_dim = 12,
                                                   .num_heads = 3,
                                                   .head_dim = 10,
                                                   .bias = false,
                                                   .kv_latent_dim = 8,
                                                   .q_latent_dim = 7,
                                                   .rope_head_dim = 4});
  MultiHeadAttentionWeights weights;
  ParameterList list;
  list_attention(config, "", {}, weights, list);
  EXPECT_EQ(names_and_roles(list), (Listed{{"q_a_proj.weight", kWeight},
                                           {"q_a_layernorm.weight", kGain},
                                           {"q_b_proj.weight", kWeight},
                                           {"kv_a_proj_with_mqa.weight", kWeight},
                                           {"kv_a_layernorm.weight", kGain},
                                           {"kv_b_proj.weight", kWeight},
                                           {"o_proj.weight", kResidualWeight}}));
  expect_lies_without_gaps(list);
}

TEST(Parameters, LieTransposedInGpt2sStateDicts) {
  for (const DictLayout layout : {DictLayout::kAsInMemory, DictLayout::kTransposed}) {
    const bool transposed = layout == DictLayout::kTransposed;
    ConstTensor weight, bias, gain, no_bias;
    ParameterList list;
    list.add_linear("linear", 3, 2, ParameterRole::kWeight, layout, weight, &bias);
    list_norm("norm", {.attention = {.embed_dim = 5}, .norm = Norm::kRmsNorm}, gain, no_bias, list);
    EXPECT_EQ(list.parameters()[0].shape, transposed ? (Dims{2, 3}) : (Dims{3, 2}));
    EXPECT_EQ(list.parameters().size(), 3U);
    const Values values(list);
    Parameters parameters;
    ASSERT_TRUE(parameters.load(list, values.dict).ok());
    EXPECT_EQ(weight.shape, (Dims{3, 2}));
    EXPECT_EQ(weight.data[1], transposed ? 4.0F : 2.0F);
    EXPECT_FALSE(no_bias.given());
    const StateDict dict = parameters.state_dict();
    ASSERT_EQ(dict.size(), 3U);
    const ConstAnyTensor& matrix = dict.at("linear.weight");
    EXPECT_EQ(matrix.shape, list.parameters()[0].shape);
    EXPECT_EQ(matrix.data, weight.data);
    EXPECT_EQ(matrix.strides, transposed ? (Dims{1, 2}) : (Dims{2, 1}));
  }
}

// The parameters of all layers are contiguous. Gradients and optimizer moments have the same
// layout.
TEST(Parameters, OfATransformerLieInOneBlock) {
  Transformer model;
  ASSERT_TRUE(
      Transformer::create(
          {.block = {.attention = {.embed_dim = 8, .num_heads = 2}, .mlp_dim = 6, .gated = true},
           .num_layers = 2,
           .vocab_size = 5,
           .max_positions = 3},
          model)
          .ok());
  std::vector<std::pair<std::string, Dims>> expected = {{"embedding.weight", {5, 8}},
                                                        {"position.weight", {3, 8}}};
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    const std::pair<const char*, Dims> of_layer[] = {{"norm1.weight", {8}},
                                                     {"norm1.bias", {8}},
                                                     {"self_attn.in_proj_weight", {24, 8}},
                                                     {"self_attn.in_proj_bias", {24}},
                                                     {"self_attn.out_proj.weight", {8, 8}},
                                                     {"self_attn.out_proj.bias", {8}},
                                                     {"norm2.weight", {8}},
                                                     {"norm2.bias", {8}},
                                                     {"linear1.weight", {6, 8}},
                                                     {"linear1.bias", {6}},
                                                     {"linear_gate.weight", {6, 8}},
                                                     {"linear_gate.bias", {6}},
                                                     {"linear2.weight", {8, 6}},
                                                     {"linear2.bias", {8}}};
    for (const auto& [name, shape] : of_layer) expected.emplace_back(layer + name, shape);
  }
  expected.insert(expected.end(),
                  {{"norm.weight", {8}}, {"norm.bias", {8}}, {"output.weight", {5, 8}}});
  const std::vector<float> zeros(24 * 8);
  StateDict dict;
  for (const auto& [name, shape] : expected) dict.emplace(name, ConstTensor(zeros.data(), shape));
  const Status status = model.load_state_dict(dict);
  ASSERT_TRUE(status.ok()) << status.message();
  StateDict loaded;
  ASSERT_TRUE(model.state_dict(loaded).ok());
  ASSERT_EQ(loaded.size(), expected.size());
  const auto* next = static_cast<const float*>(loaded.at("embedding.weight").data);
  for (const auto& [name, shape] : expected) {
    EXPECT_EQ(loaded.at(name).data, next) << name;
    next += shape.elements();
  }
}

// 2^62 floats are 2^64 bytes, and two such parameters more elements than 64 bits count.
TEST(Parameters, OfMoreBytesThanSixtyFourBitsCountAreRefused) {
  for (const size_t copies : {size_t{1}, size_t{2}, size_t{5}}) {
    std::vector<ConstTensor> views(copies);
    ParameterList list;
    for (ConstTensor& view : views) {
      list.add("w" + std::to_string(&view - views.data()), {int64_t{1} << 42, int64_t{1} << 20},
               ParameterRole::kWeight, view);
    }
    Parameters parameters;
    EXPECT_EQ(parameters.make(list).code(), StatusCode::kMemory);
    EXPECT_TRUE(parameters.empty());
    EXPECT_EQ(views[0].data, nullptr);
  }
  constexpr int64_t kMost = 1 << 20;
  Transformer model;
  ASSERT_TRUE(Transformer::create({.block = {.attention = {.embed_dim = kMost,
                                                           .num_heads = kMost,
                                                           .head_dim = kMost,
                                                           .bias = false}},
                                   .num_layers = 1,
                                   .vocab_size = 1},
                                  model)
                  .ok());
  EXPECT_EQ(model.initialize({}).code(), StatusCode::kMemory);
  EXPECT_EQ(model.num_parameters(), 0);
}

TEST(Parameters, RefusalsChangeNothing) {
  ConstTensor weight;
  ParameterList list;
  list.add("w", {2, 3}, ParameterRole::kWeight, weight);
  const Values values(list);
  Parameters parameters;
  EXPECT_TRUE(parameters.empty());
  EXPECT_FALSE(parameters.load(list, {}).ok());
  EXPECT_TRUE(parameters.empty());
  EXPECT_EQ(weight.data, nullptr);
  ASSERT_TRUE(parameters.load(list, values.dict).ok());
  const float* const loaded = weight.data;
  StateDict more = values.dict;
  more.emplace("x", values.dict.at("w"));
  EXPECT_FALSE(parameters.load(list, more).ok());
  EXPECT_EQ(weight.data, loaded);
  EXPECT_TRUE(
      parameters.load(list, more, {}, [](std::string_view name) { return name == "x"; }).ok());
}

}  // namespace
}  // namespace multihead::nn
