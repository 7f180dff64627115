// Compares a transformer's backward with finite differences of its logits for every parameter.
// Also: activations kept and recomputed, threads, initialization, invalid calls.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpu/target.h"
#include "multihead/transformer.h"
#include "support/random_case.h"
#include "support/simd_targets.h"
#include "support/slope.h"
#include "support/tile_model.h"

namespace multihead {
namespace {

using testing::dot;
using testing::Random;
using testing::random_direction;

// A model with parameters that a test can change: it is loaded again from `dict`.
struct Model {
  TransformerConfig config;
  Transformer model;
  ParameterNames names;
  std::map<std::string, std::vector<float>> values;
  StateDict dict;

  Model(const TransformerConfig& given, ParameterNames style, Random& random)
      : config(given), names(style) {
    Status status = Transformer::create(config, model);
    if (status.ok()) status = model.initialize({.seed = 3}, names);
    EXPECT_TRUE(status.ok()) << status.message();
    StateDict made;
    EXPECT_TRUE(model.state_dict(made).ok());
    for (const auto& [name, tensor] : made) {
      // Norms near 1, so that no gradient is large.
      const float center = name.find("norm") != std::string::npos && name.ends_with("weight");
      auto& data = values[name] =
          random.floats(tensor.shape.elements(), center - 0.4F, center + 0.4F);
      dict.emplace(name, ConstTensor(data.data(), tensor.shape));
    }
    load();
  }
  void load() {
    const Status status = model.load_state_dict(dict, names);
    EXPECT_TRUE(status.ok()) << status.message();
  }
};

TransformerConfig random_config(Random& random, bool gpt2) {
  TransformerConfig config;
  MultiHeadAttentionConfig& attention = config.block.attention;
  attention.num_heads = random.integer(1, 3);
  attention.embed_dim = attention.num_heads * 2 * random.integer(1, 4);
  attention.bias = gpt2 || random.chance(0.5);
  if (random.chance(0.3)) attention.dropout = 0.3F;
  if (random.chance(0.3)) attention.out_dropout = 0.2F;
  if (random.chance(0.4)) attention.rope.style = Rope::Style::kHalf;
  config.block.mlp_dim = random.chance(0.7) ? random.integer(1, 20) : 0;
  config.block.activation =
      random.pick({Activation::kGelu, Activation::kGeluTanh, Activation::kSilu});
  config.block.gated = random.chance(0.4);
  config.block.mlp_bias = random.chance(0.5);
  config.block.norm = random.pick({Norm::kNone, Norm::kLayerNorm, Norm::kRmsNorm});
  config.block.norm_first = random.chance(0.6);
  config.block.norm_affine = random.chance(0.7);
  config.block.norm_eps = 0.5F;  // if smaller, rows near 0 have no slope
  if (random.chance(0.4)) config.block.residual_dropout = 0.3F;
  if (random.chance(0.3)) config.embedding_dropout = 0.3F;
  config.num_layers = random.integer(0, 3);
  config.vocab_size = random.integer(2, 9);
  config.max_positions = random.chance(0.5) ? 12 : 0;
  config.final_norm = random.chance(0.7);
  config.tied_output = random.chance(0.3);
  config.num_readouts = config.tied_output ? 1 : random.integer(1, 3);
  config.causal = random.chance(0.7);
  return config;
}

TEST(TransformerBackward, EqualsTheSlopeOfTheLogits) {
  Context context(1), many(3);
  for (const uint64_t seed : testing::random_seeds(40)) {
    Random random(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    const bool gpt2 = random.chance(0.3);
    Model m(random_config(random, gpt2), gpt2 ? ParameterNames::kGpt2 : ParameterNames::kTorch,
            random);
    if (HasFailure()) return;
    const TransformerConfig& c = m.config;
    const int64_t batch = random.integer(1, 3), length = random.integer(1, 9);
    std::vector<int32_t> tokens(static_cast<size_t>(batch * length));
    for (int32_t& token : tokens) token = static_cast<int32_t>(random.integer(0, c.vocab_size - 1));
    const Dims shape{batch, length, c.num_readouts * c.vocab_size};
    std::vector<float> logits(static_cast<size_t>(shape.elements())), again(logits.size());
    const std::vector<float> d_logits = random.floats(shape.elements());
    MultiHeadAttentionOptions options;
    options.training = true;
    options.dropout_seed = seed;
    std::vector<float> scales;
    if (random.chance(0.3)) {  // for every head of every layer
      scales = random.floats(c.num_layers * c.block.attention.num_heads);
      if (c.num_layers > 0) options.heads.head_scales = scales;
    }
    const auto forward = [&](std::vector<float>& to, TransformerActivations* activations) {
      const Status status =
          m.model.forward(tokens, batch, options,
                          {.logits = {to.data(), shape}, .activations = activations}, context);
      ASSERT_TRUE(status.ok()) << status.message();
    };
    const auto backward = [&](TransformerActivations& activations, Context& with) {
      std::vector<float> gradients(static_cast<size_t>(m.model.num_parameters()), 0.0F);
      const Status status = m.model.backward(tokens, batch, options, {d_logits.data(), shape},
                                             activations, gradients, with);
      EXPECT_TRUE(status.ok()) << status.message();
      return gradients;
    };
    TransformerActivations kept, inputs(true);
    forward(logits, nullptr);
    forward(again, &kept);
    ASSERT_EQ(logits, again);
    forward(again, &inputs);
    ASSERT_EQ(logits, again);
    const std::vector<float> gradients = backward(kept, context);
    ASSERT_EQ(gradients, backward(inputs, context));
    ASSERT_EQ(gradients, backward(kept, many));
    if (c.num_layers > 1) {
      EXPECT_LT(inputs.bytes(), kept.bytes());
    }

    StateDict named;
    ASSERT_TRUE(m.model.named(gradients, named).ok());
    ASSERT_EQ(named.size(), m.dict.size());
    for (auto& [name, numbers] : m.values) {
      const ConstAnyTensor& gradient = named.at(name);
      std::vector<float> dense;
      const int rank = gradient.shape.rank();
      for (int64_t i = 0; i < gradient.shape.elements(); ++i) {
        const int64_t columns = gradient.shape[rank - 1];
        const int64_t offset =
            rank == 1 ? i * gradient.strides[0]
                      : i / columns * gradient.strides[0] + i % columns * gradient.strides[1];
        dense.push_back(static_cast<const float*>(gradient.data)[offset]);
      }
      const std::vector<float> direction = random_direction(random, numbers.size());
      const double expected = testing::slope(numbers, direction, [&] {
        m.load();
        forward(again, nullptr);
        return dot(again, d_logits);
      });
      const double error = std::abs(dot(dense, direction) - expected);
      EXPECT_LE(error, 4e-3 * testing::size_of_dot(dense, direction) + 4e-3) << name;
    }
    if (HasFailure()) return;
  }
}

// A single block has the same gradients as in a model of one layer.
TEST(TransformerBlockBackward, EqualsThatOfAModelsLayer) {
  Context context(1);
  for (const uint64_t seed : testing::random_seeds(40)) {
    Random random(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    TransformerConfig config = random_config(random, false);
    config.num_layers = 1;
    config.max_positions = 0;
    config.embedding_dropout = 0.0F;
    Model m(config, ParameterNames::kTorch, random);
    if (HasFailure()) return;
    const TransformerBlock& block = m.model.layer(0);
    const int64_t width = block.config().attention.embed_dim;
    const Dims shape{2, 5, width};
    const std::vector<float> x = random.floats(shape.elements()),
                             d_out = random.floats(shape.elements());
    MultiHeadAttentionOptions options;
    options.training = true;
    options.dropout_seed = seed;
    std::vector<float> out(x.size()), plain(x.size()), d_x(x.size());
    std::vector<float> moved = x;
    const ConstTensor input(moved.data(), shape);
    TransformerBlockActivations kept;
    ASSERT_TRUE(
        block.forward(input, options, {.out = {plain.data(), shape}}, nullptr, context).ok());
    Status status = block.forward(
        input, options, {.out = {out.data(), shape}, .activations = &kept}, nullptr, context);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(out, plain);
    std::vector<float> gradients(static_cast<size_t>(block.num_parameters()), 0.0F);
    std::vector<float> again = gradients;
    status = block.backward(input, options, {d_out.data(), shape}, kept, {d_x.data(), shape},
                            gradients, context);
    ASSERT_TRUE(status.ok()) << status.message();
    std::vector<float> in_place = d_out;
    const Tensor place(in_place.data(), shape);
    ASSERT_TRUE(block.backward(input, options, place, kept, place, again, context).ok());
    EXPECT_EQ(in_place, d_x);
    EXPECT_EQ(again, gradients);
    again.assign(again.size(), 0.0F);
    ASSERT_TRUE(
        block.backward(input, options, {d_out.data(), shape}, kept, {}, again, context).ok());
    EXPECT_EQ(again, gradients);

    const std::vector<float> direction = random_direction(random, moved.size());
    const double expected = testing::slope(moved, direction, [&] {
      EXPECT_TRUE(
          block.forward(input, options, {.out = {plain.data(), shape}}, nullptr, context).ok());
      return dot(plain, d_out);
    });
    EXPECT_LE(std::abs(dot(d_x, direction) - expected),
              4e-3 * testing::size_of_dot(d_x, direction) + 4e-3);
  }
}

TEST(TransformerBlockBackward, RefusesInvalidCallsAndWritesNothing) {
  Random random(1);
  Context context(1);
  Model m(
      {.block = {.attention = {.embed_dim = 8, .num_heads = 2}}, .num_layers = 1, .vocab_size = 3},
      ParameterNames::kTorch, random);
  const TransformerBlock& block = m.model.layer(0);
  const Dims shape{1, 2, 8};
  std::vector<float> x(16), d(16), d_x(16, 7.0F);
  std::vector<float> gradients(static_cast<size_t>(block.num_parameters()), 7.0F);
  const std::vector<float> before = gradients;
  TransformerBlockActivations kept, empty;
  EXPECT_EQ(block
                .forward({x.data(), shape}, {}, {.out = {x.data(), shape}, .activations = &kept},
                         nullptr, context)
                .argument(),
            "out");
  ASSERT_TRUE(block
                  .forward({x.data(), shape}, {}, {.out = {d.data(), shape}, .activations = &kept},
                           nullptr, context)
                  .ok());
  const auto argument = [&](const Dims& of_x, const Dims& of_d, const Dims& of_d_x,
                            const TransformerBlockActivations& activations, size_t floats) {
    return block
        .backward({x.data(), of_x}, {}, {d.data(), of_d}, activations, {d_x.data(), of_d_x},
                  std::span(gradients).first(floats), context)
        .argument();
  };
  const size_t all = gradients.size();
  EXPECT_EQ(argument({1, 8, 2}, shape, shape, kept, all), "x");
  EXPECT_EQ(argument(shape, {2, 1, 8}, shape, kept, all), "d_out");
  EXPECT_EQ(argument(shape, shape, {1, 2, 4}, kept, all), "d_x");
  EXPECT_EQ(argument(shape, shape, shape, empty, all), "activations");
  EXPECT_EQ(argument({2, 1, 8}, {2, 1, 8}, {2, 1, 8}, kept, all), "activations");
  EXPECT_EQ(argument(shape, shape, shape, kept, all - 1), "gradients");
  EXPECT_EQ(gradients, before);
  EXPECT_EQ(d_x, std::vector<float>(16, 7.0F));
  EXPECT_EQ(argument(shape, shape, shape, kept, all), "");
}

// New parameters may be at the same address as earlier ones.
TEST(TransformerBackward, RefusesActivationsOfEarlierParameters) {
  Random random(1);
  Context context(1);
  const TransformerConfig config{
      .block = {.attention = {.embed_dim = 8, .num_heads = 2}}, .num_layers = 1, .vocab_size = 3};
  Model m(config, ParameterNames::kTorch, random);
  TransformerBlock block;
  ASSERT_TRUE(TransformerBlock::create(config.block, block).ok());
  StateDict of_block;
  for (const auto& [name, tensor] : m.dict) {
    if (name.starts_with("layers.0.")) of_block.emplace(name.substr(9), tensor);
  }
  ASSERT_TRUE(block.load_state_dict(of_block).ok());
  const Dims shape{1, 2, 8}, of_logits{1, 2, 3};
  const std::vector<int32_t> tokens{0, 1};
  std::vector<float> x(16, 0.5F), out(16), d(16), logits(6);
  std::vector<float> gradients(static_cast<size_t>(m.model.num_parameters()));
  TransformerBlockActivations of_x;
  TransformerActivations of_tokens;
  ASSERT_TRUE(block
                  .forward({x.data(), shape}, {},
                           {.out = {out.data(), shape}, .activations = &of_x}, nullptr, context)
                  .ok());
  ASSERT_TRUE(m.model
                  .forward(tokens, 1, {},
                           {.logits = {logits.data(), of_logits}, .activations = &of_tokens},
                           context)
                  .ok());
  for (int again = 0; again < 10; ++again) {
    ASSERT_TRUE(block.load_state_dict(of_block).ok());
    m.load();
    EXPECT_EQ(block
                  .backward({x.data(), shape}, {}, {d.data(), shape}, of_x, {},
                            std::span(gradients).first(static_cast<size_t>(block.num_parameters())),
                            context)
                  .argument(),
              "activations");
    EXPECT_EQ(
        m.model.backward(tokens, 1, {}, {logits.data(), of_logits}, of_tokens, gradients, context)
            .argument(),
        "activations");
  }
}

// Otherwise a model would silently keep all activations instead of the inputs of its layers.
TEST(TransformerBackward, ActivationsKeepTheirChoiceToRecompute) {
  Context context(1);
  Transformer model;
  ASSERT_TRUE(Transformer::create({.block = {.attention = {.embed_dim = 8, .num_heads = 2}},
                                   .num_layers = 3,
                                   .vocab_size = 5},
                                  model)
                  .ok());
  ASSERT_TRUE(model.initialize({}).ok());
  const auto bytes_after_forward = [&](TransformerActivations& activations) {
    const std::vector<int32_t> tokens{1, 2, 3, 4};
    EXPECT_TRUE(model.forward(tokens, 1, {}, {.activations = &activations}, context).ok());
    return activations.bytes();
  };
  TransformerActivations all, inputs(true);
  const int64_t bytes = bytes_after_forward(inputs);
  EXPECT_GT(bytes_after_forward(all), bytes);
  TransformerActivations moved = std::move(inputs);
  EXPECT_EQ(bytes_after_forward(moved), bytes);
  EXPECT_EQ(bytes_after_forward(inputs), bytes);  // NOLINT(bugprone-use-after-move)
}

TEST(Transformer, InitialisesFromASeed) {
  TransformerConfig config{
      .block = {.attention = {.embed_dim = 64, .num_heads = 4}, .mlp_dim = 128},
      .num_layers = 2,
      .vocab_size = 24,
      .max_positions = 16};
  Transformer first, second, other;
  for (Transformer* model : {&first, &second, &other}) {
    ASSERT_TRUE(Transformer::create(config, *model).ok());
    ASSERT_TRUE(model->initialize({.seed = model == &other ? 2U : 1U}).ok());
  }
  StateDict a, b, c;
  ASSERT_TRUE(first.state_dict(a).ok());
  ASSERT_TRUE(second.state_dict(b).ok());
  ASSERT_TRUE(other.state_dict(c).ok());
  const auto numbers = [](const ConstAnyTensor& tensor) {
    const auto* data = static_cast<const float*>(tensor.data);
    return std::vector<float>(data, data + tensor.shape.elements());
  };
  int64_t elements = 0;
  for (const auto& [name, tensor] : a) {
    const std::vector<float> values = numbers(tensor);
    elements += tensor.shape.elements();
    EXPECT_EQ(values, numbers(b.at(name))) << name;
    double squares = 0;
    for (const float value : values) squares += static_cast<double>(value) * value;
    const double deviation = std::sqrt(squares / static_cast<double>(values.size()));
    const bool vector = tensor.shape.rank() == 1;
    if (vector) {
      const bool gain = name.find("norm") != std::string::npos && name.ends_with("weight");
      EXPECT_EQ(values, std::vector<float>(values.size(), gain ? 1.0F : 0.0F)) << name;
      continue;
    }
    EXPECT_NE(values, numbers(c.at(name))) << name;
    const double columns = static_cast<double>(tensor.shape[1]);
    const bool residual = name.ends_with("out_proj.weight") || name.ends_with("linear2.weight");
    const bool half =
        name == "embedding.weight" || name == "position.weight" || name == "output.weight";
    const double factor = residual ? 0.7 : half ? 0.5 : 1.0;
    EXPECT_NEAR(deviation * std::sqrt(columns), factor, 0.08 * factor) << name;
  }
  EXPECT_EQ(first.num_parameters(), elements);
  EXPECT_EQ(first.initialize({.weight = -1.0F}).argument(), "weight");
  EXPECT_EQ(first.initialize({.residual = NAN}).argument(), "residual");
  EXPECT_EQ(Transformer().initialize({}).argument(), "model");
}

TEST(TransformerBackward, RefusesInvalidCallsAndWritesNothing) {
  Transformer model;
  ASSERT_TRUE(Transformer::create({.block = {.attention = {.embed_dim = 8, .num_heads = 2}},
                                   .num_layers = 1,
                                   .vocab_size = 5},
                                  model)
                  .ok());
  Context context(1);
  const std::vector<int32_t> tokens{1, 2, 3, 4};
  std::vector<float> logits(20), d(20), none;
  TransformerActivations kept, empty;
  StateDict dict;
  EXPECT_EQ(model.num_parameters(), 0);
  EXPECT_EQ(model.named(none, dict).argument(), "block");
  EXPECT_EQ(model.backward(tokens, 1, {}, {d.data(), {1, 4, 5}}, kept, none, context).argument(),
            "model");
  ASSERT_TRUE(model.initialize({}).ok());
  std::vector<float> gradients(static_cast<size_t>(model.num_parameters()), 7.0F);
  const std::vector<float> before = gradients;
  ASSERT_TRUE(model
                  .forward(tokens, 1, {},
                           {.logits = {logits.data(), {1, 4, 5}}, .activations = &kept}, context)
                  .ok());
  const auto argument = [&](std::span<const int32_t> words, int64_t batch, const Dims& shape,
                            TransformerActivations& activations, size_t floats) {
    return model
        .backward(words, batch, {}, {d.data(), shape}, activations,
                  std::span(gradients).first(floats), context)
        .argument();
  };
  const size_t all = gradients.size();
  EXPECT_EQ(argument(tokens, 1, {1, 4, 6}, kept, all), "d_logits");
  EXPECT_EQ(argument(tokens, 1, {1, 4, 5}, kept, all - 1), "gradients");
  EXPECT_EQ(argument(tokens, 1, {1, 4, 5}, empty, all), "activations");
  EXPECT_EQ(argument(tokens, 2, {2, 2, 5}, kept, all), "activations");
  EXPECT_EQ(argument(std::span(tokens).first(3), 1, {1, 3, 5}, kept, all), "activations");
  EXPECT_EQ(argument(std::vector<int32_t>{1, 2, 3, 9}, 1, {1, 4, 5}, kept, all), "tokens");
  EXPECT_EQ(gradients, before);
  Transformer other;
  EXPECT_EQ(Transformer::create({.block = {.attention = {.embed_dim = 8, .num_heads = 2}},
                                 .vocab_size = 5,
                                 .tied_output = true,
                                 .num_readouts = 2},
                                other)
                .argument(),
            "num_readouts");
  EXPECT_EQ(Transformer::create({.block = {.attention = {.embed_dim = 8, .num_heads = 2}},
                                 .vocab_size = 5,
                                 .embedding_dropout = 1.0F},
                                other)
                .argument(),
            "embedding_dropout");
}

// One forward and backward of a model: the number of tile products of each, and the gradients.
struct Bf16Run {
  int64_t forward, backward;
  std::vector<float> gradients;
};

Bf16Run run_with_tiles(const TransformerConfig& config, Precision precision) {
  const testing::UseTileModel model;
  Transformer transformer;
  Status status = Transformer::create(config, transformer);
  if (status.ok()) status = transformer.initialize({.seed = 3});
  constexpr int64_t kBatch = 2, kLength = 32;
  Random random(1);
  std::vector<int32_t> tokens(kBatch * kLength);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.integer(0, 31));
  const Dims shape{kBatch, kLength, config.vocab_size};
  std::vector<float> logits(static_cast<size_t>(shape.elements()));
  const std::vector<float> d_logits = random.floats(shape.elements());
  MultiHeadAttentionOptions options;
  options.attention.precision = precision;
  TransformerActivations activations;
  Context context(1);
  Bf16Run run{.forward = 0,
              .backward = 0,
              .gradients = std::vector<float>(static_cast<size_t>(transformer.num_parameters()))};
  if (status.ok()) {
    status = transformer.forward(tokens, kBatch, options,
                                 {.logits = {logits.data(), shape}, .activations = &activations},
                                 context);
  }
  run.forward = model.products();
  if (status.ok()) {
    status = transformer.backward(tokens, kBatch, options, {d_logits.data(), shape}, activations,
                                  run.gradients, context);
  }
  run.backward = model.products() - run.forward;
  EXPECT_TRUE(status.ok()) << status.message();
  return run;
}

// Each product of 64 rows with a 32 x 32 matrix is two blocks of tiles; its backward is three: two
// for d_x, one for d_weight.
TEST(TransformerBackward, MultipliesBf16ByAllMatrices) {
  TransformerConfig config;
  config.block.attention.num_heads = 1;
  config.block.attention.embed_dim = 32;
  config.vocab_size = 32;
  config.num_layers = 0;
  testing::on_every_target([&] {
    const bool tiles = cpu::target_traits().bf16_tiles;
    const auto expect_products = [&](const TransformerConfig& with,
                                     const TransformerConfig& without, int64_t matrices) {
      const Bf16Run more = run_with_tiles(with, Precision::kBf16);
      const Bf16Run less = run_with_tiles(without, Precision::kBf16);
      EXPECT_EQ(more.forward - less.forward, tiles ? 2 * matrices : 0);
      EXPECT_EQ(more.backward - less.backward, tiles ? 3 * matrices : 0);
      const Bf16Run exact = run_with_tiles(with, Precision::kF32);
      EXPECT_EQ(exact.forward + exact.backward, 0);
      double difference = 0, size = 0;
      for (size_t i = 0; i < exact.gradients.size(); ++i) {
        difference += std::pow(more.gradients[i] - exact.gradients[i], 2);
        size += std::pow(exact.gradients[i], 2);
      }
      EXPECT_LT(std::sqrt(difference), 0.02 * std::sqrt(size));
    };
    const Bf16Run output = run_with_tiles(config, Precision::kBf16);
    EXPECT_EQ(output.forward, tiles ? 2 : 0);
    EXPECT_EQ(output.backward, tiles ? 3 : 0);
    TransformerConfig no_mlp = config, mlp = config, gated = config;
    no_mlp.num_layers = mlp.num_layers = gated.num_layers = 1;
    mlp.block.mlp_dim = gated.block.mlp_dim = 32;
    gated.block.gated = true;
    expect_products(mlp, no_mlp, 2);
    expect_products(gated, no_mlp, 3);
  });
}

}  // namespace
}  // namespace multihead
