// Compares transformers with their definition in double: a GPT-2 with GPT-2's names, post-norm and
// gated blocks. Also: generation token by token, invalid calls.
#include "multihead/transformer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <numbers>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/closeness.h"
#include "support/random_module.h"

namespace multihead {
namespace {

using testing::largest_difference;
using testing::Random;

using Rows = std::vector<double>;

// Named random tensors; the views are valid while this object exists.
struct Weights {
  Random random;
  StateDict dict;
  std::map<std::string, std::vector<float>> values;

  explicit Weights(uint64_t seed) : random(seed) {}
  void add(const std::string& name, const Dims& shape, float center = 0.0F) {
    auto& data = values[name] = random.floats(shape.elements(), center - 0.4F, center + 0.4F);
    dict.emplace(name, ConstTensor(data.data(), shape));
  }
  double at(const std::string& name, int64_t index) const {
    return static_cast<double>(values.at(name)[static_cast<size_t>(index)]);
  }

  // Rows of `in` times an (out, in) matrix, or an (in, out) matrix if `conv1d`, plus the bias if
  // there is one.
  Rows linear(const Rows& x, const std::string& name, int64_t in, int64_t out, bool conv1d) const {
    Rows y;
    const bool biased = values.contains(name + ".bias");
    for (size_t row = 0; row < x.size(); row += static_cast<size_t>(in)) {
      for (int64_t o = 0; o < out; ++o) {
        double sum = biased ? at(name + ".bias", o) : 0.0;
        for (int64_t i = 0; i < in; ++i) {
          sum += x[row + static_cast<size_t>(i)] *
                 at(name + ".weight", conv1d ? i * out + o : o * in + i);
        }
        y.push_back(sum);
      }
    }
    return y;
  }

  Rows norm(const Rows& x, const std::string& name, int64_t width, bool centered) const {
    Rows y = x;
    for (size_t row = 0; row < x.size(); row += static_cast<size_t>(width)) {
      double mean = 0, squares = 0;
      for (int64_t c = 0; centered && c < width; ++c) mean += x[row + static_cast<size_t>(c)];
      mean /= static_cast<double>(width);
      for (int64_t c = 0; c < width; ++c) {
        const double value = x[row + static_cast<size_t>(c)] - mean;
        squares += value * value;
      }
      for (int64_t c = 0; c < width; ++c) {
        double& value = y[row + static_cast<size_t>(c)];
        value = (value - mean) / std::sqrt(squares / static_cast<double>(width) + 1e-5) *
                at(name + ".weight", c);
        if (centered) value += at(name + ".bias", c);
      }
    }
    return y;
  }
};

// Causal self-attention of packed (rows, 3 * width) QKV of one sequence.
Rows attend(const Rows& qkv, int64_t tokens, int64_t width, int64_t heads) {
  const int64_t head = width / heads;
  Rows merged(static_cast<size_t>(tokens * width));
  const auto at = [&](int64_t token, int64_t which, int64_t column) {
    return qkv[static_cast<size_t>(token * 3 * width + which * width + column)];
  };
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < tokens; ++i) {
      Rows weights;
      double sum = 0;
      for (int64_t j = 0; j <= i; ++j) {
        double dot = 0;
        for (int64_t c = h * head; c < (h + 1) * head; ++c) dot += at(i, 0, c) * at(j, 1, c);
        weights.push_back(std::exp(dot / std::sqrt(static_cast<double>(head))));
        sum += weights.back();
      }
      for (int64_t c = h * head; c < (h + 1) * head; ++c) {
        double value = 0;
        for (int64_t j = 0; j <= i; ++j) value += weights[static_cast<size_t>(j)] * at(j, 2, c);
        merged[static_cast<size_t>(i * width + c)] = value / sum;
      }
    }
  }
  return merged;
}

Rows sum_of(const Rows& a, const Rows& b) {
  Rows sum = a;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
  return sum;
}

Rows each(Rows x, const std::function<double(double)>& f) {
  for (double& value : x) value = f(value);
  return x;
}

double gelu_tanh(double u) {
  return u / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (u + 0.044715 * u * u * u)));
}

// A GPT-2 of 2 layers, 3 heads of 4, 11 words, 9 positions.
struct Gpt2 {
  static constexpr int64_t kWidth = 12, kHeads = 3, kWords = 11, kPositions = 9, kInner = 20;
  Weights weights;
  TransformerConfig config;
  Transformer model;
  Context context{2};

  explicit Gpt2(const std::string& prefix = "") : weights(5) {
    weights.add(prefix + "wte.weight", {kWords, kWidth});
    weights.add(prefix + "wpe.weight", {kPositions, kWidth});
    for (const char* layer : {"h.0.", "h.1."}) {
      const std::string p = prefix + layer;
      weights.add(p + "ln_1.weight", {kWidth}, 1.0F);
      weights.add(p + "ln_1.bias", {kWidth});
      weights.add(p + "attn.c_attn.weight", {kWidth, 3 * kWidth});
      weights.add(p + "attn.c_attn.bias", {3 * kWidth});
      weights.add(p + "attn.c_proj.weight", {kWidth, kWidth});
      weights.add(p + "attn.c_proj.bias", {kWidth});
      weights.add(p + "ln_2.weight", {kWidth}, 1.0F);
      weights.add(p + "ln_2.bias", {kWidth});
      weights.add(p + "mlp.c_fc.weight", {kWidth, kInner});
      weights.add(p + "mlp.c_fc.bias", {kInner});
      weights.add(p + "mlp.c_proj.weight", {kInner, kWidth});
      weights.add(p + "mlp.c_proj.bias", {kWidth});
      // The buffers of GPT-2's checkpoints.
      weights.add(p + "attn.bias", {1, 1, kPositions, kPositions});
      weights.add(p + "attn.masked_bias", {1});
    }
    weights.add(prefix + "ln_f.weight", {kWidth}, 1.0F);
    weights.add(prefix + "ln_f.bias", {kWidth});
    Status status = gpt2_config(weights.dict, kHeads, config);
    if (status.ok()) status = Transformer::create(config, model);
    if (status.ok()) status = model.load_state_dict(weights.dict, ParameterNames::kGpt2);
    EXPECT_TRUE(status.ok()) << status.message();
  }

  Rows expected(const std::vector<int32_t>& tokens) const {
    Rows x;
    for (size_t n = 0; n < tokens.size(); ++n) {
      for (int64_t c = 0; c < kWidth; ++c) {
        x.push_back(weights.at("wte.weight", tokens[n] * kWidth + c) +
                    weights.at("wpe.weight", static_cast<int64_t>(n) * kWidth + c));
      }
    }
    const auto length = static_cast<int64_t>(tokens.size());
    for (const std::string p : {"h.0.", "h.1."}) {
      const Rows qkv = weights.linear(weights.norm(x, p + "ln_1", kWidth, true), p + "attn.c_attn",
                                      kWidth, 3 * kWidth, true);
      x = sum_of(x, weights.linear(attend(qkv, length, kWidth, kHeads), p + "attn.c_proj", kWidth,
                                   kWidth, true));
      const Rows inner = each(weights.linear(weights.norm(x, p + "ln_2", kWidth, true),
                                             p + "mlp.c_fc", kWidth, kInner, true),
                              gelu_tanh);
      x = sum_of(x, weights.linear(inner, p + "mlp.c_proj", kInner, kWidth, true));
    }
    // The embedding, (words, width), is also the output's matrix.
    return weights.linear(weights.norm(x, "ln_f", kWidth, true), "wte", kWidth, kWords, false);
  }
};

TEST(Transformer, Gpt2EqualsItsDefinition) {
  Gpt2 gpt2;
  EXPECT_EQ(gpt2.model.config().num_layers, 2);
  const std::vector<int32_t> tokens{3, 1, 4, 1, 5, 9, 2, 6};
  const Rows expected = gpt2.expected(tokens);
  std::vector<float> logits(8 * 11);
  ASSERT_TRUE(
      gpt2.model.forward(tokens, 1, {}, {.logits = {logits.data(), {1, 8, 11}}}, gpt2.context)
          .ok());
  EXPECT_LE(largest_difference(logits, expected), 2e-5);

  // Two sequences at once, with the names of a checkpoint that has lm_head.
  Gpt2 prefixed("transformer.");
  std::vector<int32_t> both = tokens;
  both.insert(both.end(), {10, 0, 7, 7, 8, 2, 1, 0});
  std::vector<float> twice(2 * 8 * 11);
  ASSERT_TRUE(
      prefixed.model.forward(both, 2, {}, {.logits = {twice.data(), {2, 8, 11}}}, prefixed.context)
          .ok());
  EXPECT_TRUE(std::equal(logits.begin(), logits.end(), twice.begin()));
}

TEST(Transformer, GeneratesTokenByToken) {
  Gpt2 gpt2;
  const std::vector<int32_t> tokens{3, 1, 4, 1, 5, 9, 2, 6};
  std::vector<float> logits(8 * 11), stepped(8 * 11);
  ASSERT_TRUE(
      gpt2.model.forward(tokens, 1, {}, {.logits = {logits.data(), {1, 8, 11}}}, gpt2.context)
          .ok());
  TransformerCache cache;
  ASSERT_TRUE(gpt2.model.create_cache({.capacity = 20}, cache).ok());
  const auto step = [&](size_t first, size_t count) {
    return gpt2.model.step(
        std::span(tokens).subspan(first, count), {},
        {.logits = {stepped.data() + first * 11, {1, static_cast<int64_t>(count), 11}}}, cache,
        gpt2.context);
  };
  ASSERT_TRUE(step(0, 3).ok());
  ASSERT_TRUE(step(3, 2).ok());
  ASSERT_TRUE(cache.truncate(4).ok());
  for (size_t n = 4; n < 8; ++n) ASSERT_TRUE(step(n, 1).ok());
  for (size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(logits[i], stepped[i], 1e-5F);
  TransformerCache small;
  ASSERT_TRUE(gpt2.model.create_cache({.capacity = 4}, small).ok());
  EXPECT_EQ(gpt2.model.step(tokens, {}, {}, small, gpt2.context).argument(), "tokens");
  EXPECT_EQ(small.length(), 0);
  EXPECT_GE(small.bytes(), int64_t{2} * 2 * 4 * Gpt2::kWidth * 4);
  // Eight of the model's nine positions are used.
  EXPECT_EQ(step(0, 2).argument(), "tokens");
  EXPECT_EQ(cache.length(), 8);
  ASSERT_TRUE(step(0, 1).ok());
  EXPECT_EQ(cache.truncate(10).argument(), "length");
  Gpt2 other;
  EXPECT_EQ(other.model.step(std::span(tokens).first(1), {}, {}, cache, gpt2.context).argument(),
            "tokens");
  ASSERT_TRUE(cache.truncate(3).ok());
  EXPECT_EQ(other.model.step(std::span(tokens).first(1), {}, {}, cache, gpt2.context).argument(),
            "cache");
}

TEST(Transformer, PostNormAndGatedBlocksEqualTheirDefinition) {
  for (const bool norm_first : {true, false}) {
    for (const bool gated : {true, false}) {
      for (const Norm norm : {Norm::kLayerNorm, Norm::kRmsNorm, Norm::kNone}) {
        SCOPED_TRACE(std::to_string(norm_first) + std::to_string(gated));
        Weights w(9);
        w.add("self_attn.in_proj_weight", {36, 12});
        w.add("self_attn.out_proj.weight", {12, 12});
        w.add("linear1.weight", {20, 12});
        w.add("linear2.weight", {12, 20});
        if (gated) w.add("linear_gate.weight", {20, 12});
        for (const std::string name : {"norm1", "norm2"}) {
          if (norm != Norm::kNone) w.add(name + ".weight", {12}, 1.0F);
          if (norm == Norm::kLayerNorm) w.add(name + ".bias", {12});
        }
        TransformerBlock block;
        Status status =
            TransformerBlock::create({.attention = {.embed_dim = 12, .num_heads = 3, .bias = false},
                                      .mlp_dim = 20,
                                      .activation = gated ? Activation::kSilu : Activation::kGelu,
                                      .gated = gated,
                                      .mlp_bias = false,
                                      .norm = norm,
                                      .norm_first = norm_first},
                                     block);
        if (status.ok()) status = block.load_state_dict(w.dict);
        ASSERT_TRUE(status.ok()) << status.message();
        const std::vector<float> x = w.random.floats(5 * 12);
        const Rows in(x.begin(), x.end());
        const auto normed = [&](const Rows& rows, const char* name, bool here) {
          return here && norm != Norm::kNone ? w.norm(rows, name, 12, norm == Norm::kLayerNorm)
                                             : rows;
        };
        // The bias is named like its matrix.
        w.values["qkv.weight"] = w.values.at("self_attn.in_proj_weight");
        const Rows qkv = w.linear(normed(in, "norm1", norm_first), "qkv", 12, 36, false);
        Rows y = sum_of(in, w.linear(attend(qkv, 5, 12, 3), "self_attn.out_proj", 12, 12, false));
        y = normed(y, "norm1", !norm_first);
        const Rows mlp_in = normed(y, "norm2", norm_first);
        Rows inner = w.linear(mlp_in, "linear1", 12, 20, false);
        if (gated) {
          const Rows gate = w.linear(mlp_in, "linear_gate", 12, 20, false);
          for (size_t i = 0; i < inner.size(); ++i) inner[i] *= gate[i] / (1 + std::exp(-gate[i]));
        } else {
          inner = each(inner, [](double u) { return 0.5 * u * std::erfc(-u / std::sqrt(2.0)); });
        }
        y = normed(sum_of(y, w.linear(inner, "linear2", 20, 12, false)), "norm2", !norm_first);
        std::vector<float> out(60);
        Context context(1);
        status =
            block.forward({x.data(), {1, 5, 12}}, {.attention = {.causal = Causal::top_left()}},
                          {.out = {out.data(), {1, 5, 12}}}, nullptr, context);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_LE(largest_difference(out, y), 2e-5);
      }
    }
  }
}

// Norms without parameters are norms with gains of 1 and biases of 0, bit for bit.
TEST(Transformer, NormsWithoutParameters) {
  const std::vector<int32_t> tokens{3, 1, 4, 1, 5};
  Context context(1);
  for (const Norm norm : {Norm::kLayerNorm, Norm::kRmsNorm}) {
    std::vector<float> logits[2];
    for (const bool affine : {false, true}) {
      const TransformerConfig config{.block = {.attention = {.embed_dim = 8, .num_heads = 2},
                                               .mlp_dim = 16,
                                               .norm = norm,
                                               .norm_affine = affine},
                                     .num_layers = 2,
                                     .vocab_size = 7};
      Transformer model;
      ASSERT_TRUE(Transformer::create(config, model).ok());
      Transformer plain;
      TransformerConfig without = config;
      without.block.norm_affine = false;
      ASSERT_TRUE(Transformer::create(without, plain).ok());
      ASSERT_TRUE(plain.initialize({.seed = 2}).ok());
      StateDict dict;
      ASSERT_TRUE(plain.state_dict(dict).ok());
      const std::vector<float> ones(8, 1.0F), zeros(8, 0.0F);
      for (const char* name :
           {"layers.0.norm1", "layers.0.norm2", "layers.1.norm1", "layers.1.norm2", "norm"}) {
        EXPECT_FALSE(dict.contains(std::string(name) + ".weight"));
        if (!affine) continue;
        dict.emplace(std::string(name) + ".weight", ConstTensor(ones.data(), {8}));
        if (norm == Norm::kLayerNorm) {
          dict.emplace(std::string(name) + ".bias", ConstTensor(zeros.data(), {8}));
        }
      }
      const Status loaded = model.load_state_dict(dict);
      ASSERT_TRUE(loaded.ok()) << loaded.message();
      logits[affine].resize(5 * 7);
      ASSERT_TRUE(
          model.forward(tokens, 1, {}, {.logits = {logits[affine].data(), {1, 5, 7}}}, context)
              .ok());
    }
    EXPECT_EQ(logits[0], logits[1]);
  }
}

TEST(Transformer, NamesWhatIsWrongInEveryLayer) {
  Gpt2 gpt2;
  StateDict broken = gpt2.weights.dict;
  broken.erase("h.1.ln_1.bias");
  broken["h.0.mlp.c_fc.weight"].shape = {Gpt2::kInner, Gpt2::kWidth};
  broken["h.2.ln_1.bias"] = broken["ln_f.bias"];
  broken["h.2.attn.c_attn.bias"] = broken["ln_f.bias"];
  const Status status = gpt2.model.load_state_dict(broken, ParameterNames::kGpt2);
  EXPECT_EQ(status.got(),
            "missing: h.1.ln_1.bias (12); unexpected: h.2.attn.c_attn.bias, h.2.ln_1.bias; of "
            "another shape: "
            "h.0.mlp.c_fc.weight (20, 12) instead of (12, 20)");
  StateDict dict;
  ASSERT_TRUE(gpt2.model.state_dict(dict).ok());
  // The dict has no buffers. It loads again, with transposed matrices.
  EXPECT_EQ(dict.size(), gpt2.weights.dict.size() - 4);
  Gpt2 again;
  ASSERT_TRUE(again.model.load_state_dict(dict, ParameterNames::kGpt2).ok());
  TransformerConfig config;
  broken.erase("wpe.weight");
  EXPECT_EQ(gpt2_config(broken, 3, config).expected(), "a matrix wpe.weight");
}

TEST(Transformer, CopiesShareTheParametersUntilOneLoadsOthers) {
  TransformerConfig config;
  config.block.attention.embed_dim = 8;
  config.block.attention.num_heads = 2;
  config.num_layers = 2;
  config.vocab_size = 5;
  Transformer model;
  ASSERT_TRUE(Transformer::create(config, model).ok());
  ASSERT_TRUE(model.initialize({.seed = 1}).ok());
  Transformer copy = model;
  const auto address = [](const Transformer& of) {
    StateDict dict;
    EXPECT_TRUE(of.state_dict(dict).ok());
    return dict.at("layers.1.self_attn.in_proj_weight").data;
  };
  EXPECT_EQ(address(copy), address(model));
  Context context(1);
  const std::vector<int32_t> tokens{0, 3, 4};
  const auto logits = [&](const Transformer& of) {
    std::vector<float> numbers(15);
    const Status status =
        of.forward(tokens, 1, {}, {.logits = {numbers.data(), {1, 3, 5}}}, context);
    EXPECT_TRUE(status.ok()) << status.message();
    return numbers;
  };
  const std::vector<float> before = logits(model);
  EXPECT_EQ(logits(copy), before);
  // Both models can use the cache.
  TransformerCache cache;
  ASSERT_TRUE(model.create_cache({.capacity = 3}, cache).ok());
  std::vector<float> stepped(15);
  ASSERT_TRUE(copy.step(tokens, {}, {.logits = {stepped.data(), {1, 3, 5}}}, cache, context).ok());
  ASSERT_TRUE(copy.initialize({.seed = 2}).ok());
  EXPECT_NE(address(copy), address(model));
  EXPECT_EQ(logits(model), before);
  EXPECT_NE(logits(copy), before);
  model = copy;
  EXPECT_EQ(logits(model), logits(copy));
  copy = {};
  EXPECT_NE(logits(model), before);
}

TEST(Transformer, MovedFromIsRefused) {
  TransformerConfig config;
  config.block.attention.embed_dim = 8;
  config.block.attention.num_heads = 2;
  config.num_layers = 1;
  config.vocab_size = 5;
  Transformer model;
  ASSERT_TRUE(Transformer::create(config, model).ok());
  ASSERT_TRUE(model.initialize({}).ok());
  StateDict dict;
  const Transformer moved = std::move(model);
  ASSERT_TRUE(moved.state_dict(dict).ok());
  // NOLINTBEGIN(bugprone-use-after-move)
  EXPECT_EQ(model.initialize({}).argument(), "model");
  EXPECT_EQ(model.load_state_dict(dict).argument(), "model");
  // NOLINTEND(bugprone-use-after-move)
  ASSERT_TRUE(Transformer::create(config, model).ok());
  EXPECT_TRUE(model.load_state_dict(dict).ok());
}

TEST(Transformer, RefusesWhatDoesNotFit) {
  Gpt2 gpt2;
  std::vector<float> logits(2 * 4 * 11, 42.0F);
  const Tensor good{logits.data(), {2, 4, 11}};
  const auto argument = [&](const std::vector<int32_t>& tokens, int64_t batch,
                            const MultiHeadAttentionOptions& options,
                            const TransformerOutputs& outputs) {
    return gpt2.model.forward(tokens, batch, options, outputs, gpt2.context).argument();
  };
  const std::vector<int32_t> tokens{0, 1, 2, 3, 4, 5, 6, 7};
  Trace trace;
  EXPECT_EQ(argument({0, 1, 2, 3, 4, 5, 6, 11}, 2, {}, {.logits = good}), "tokens");
  EXPECT_EQ(argument({0, 1, 2, 3, 4, 5, 6, -1}, 2, {}, {.logits = good}), "tokens");
  EXPECT_EQ(argument(tokens, 3, {}, {.logits = good}), "tokens");
  EXPECT_EQ(argument(std::vector<int32_t>(20), 2, {}, {.logits = good}), "tokens");
  EXPECT_EQ(argument(tokens, 1, {}, {.logits = good}), "logits");
  EXPECT_EQ(argument(tokens, 2, {}, {.logits = good, .hidden = good}), "hidden");
  EXPECT_EQ(argument(tokens, 2, {}, {.logits = good, .traces = {&trace, 1}}), "traces");
  EXPECT_EQ(argument(tokens, 2, {.attention = {.causal = Causal::top_left()}}, {.logits = good}),
            "causal");
  EXPECT_EQ(argument(tokens, 2, {.attention = {.scale = NAN}}, {.logits = good}), "scale");
  EXPECT_EQ(logits, std::vector<float>(logits.size(), 42.0F));
  // Arguments of the last layer alone are checked before the first layer is computed.
  const TransformerConfig& of_gpt2 = gpt2.model.config();
  const int64_t layers = of_gpt2.num_layers;
  ASSERT_GT(layers, 1);
  const Dims hidden_shape{layers, 2, 4, of_gpt2.block.attention.embed_dim};
  std::vector<float> hidden(static_cast<size_t>(hidden_shape.elements()), 42.0F);
  std::vector<Trace> traces(static_cast<size_t>(layers));
  const TransformerOutputs outputs{
      .logits = good, .hidden = {hidden.data(), hidden_shape}, .traces = traces};
  std::vector<float> scales(static_cast<size_t>(layers * of_gpt2.block.attention.num_heads), 1.0F);
  scales.back() = NAN;
  EXPECT_EQ(argument(tokens, 2, {.heads = {.head_scales = scales}}, outputs), "head_scales");
  traces.back().wanted = {"no step"};
  EXPECT_EQ(argument(tokens, 2, {}, outputs), "trace.wanted");
  EXPECT_TRUE(traces.front().steps.empty());
  EXPECT_EQ(hidden, std::vector<float>(hidden.size(), 42.0F));
  EXPECT_EQ(logits, std::vector<float>(logits.size(), 42.0F));
  Transformer model;
  TransformerConfig config = gpt2.config;
  config.block.attention.num_heads = 5;
  EXPECT_EQ(Transformer::create(config, model).argument(), "num_heads");
  config = gpt2.config;
  config.vocab_size = 0;
  EXPECT_EQ(Transformer::create(config, model).argument(), "vocab_size");
  EXPECT_EQ(model.forward(tokens, 1, {}, {}, gpt2.context).argument(), "model");
  TransformerBlock block;
  EXPECT_EQ(
      TransformerBlock::create({.attention = {.embed_dim = 4, .num_heads = 2, .out_dim = 3}}, block)
          .argument(),
      "out_dim");
  TransformerBlockConfig unknown{.attention = {.embed_dim = 4, .num_heads = 2}};
  unknown.norm = static_cast<Norm>(3);
  EXPECT_EQ(TransformerBlock::create(unknown, block).argument(), "norm");
  unknown.norm = Norm::kNone;
  unknown.activation = static_cast<Activation>(4);
  EXPECT_EQ(TransformerBlock::create(unknown, block).argument(), "activation");
  unknown.activation = Activation::kRelu;
  ASSERT_TRUE(TransformerBlock::create(unknown, block).ok());
  EXPECT_EQ(block.load_state_dict({}, static_cast<ParameterNames>(2)).argument(), "names");
  EXPECT_EQ(gpt2.model.load_state_dict({}, static_cast<ParameterNames>(2)).argument(), "names");
}

}  // namespace
}  // namespace multihead
