// Compares the module with its definition in double, in every layout and with every option. Also:
// head interventions and invalid calls.
#include "multihead/multi_head_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cpu/target.h"
#include "multihead/lab.h"
#include "support/closeness.h"
#include "support/random_module.h"
#include "support/simd_targets.h"
#include "support/special_values.h"
#include "support/tile_model.h"

namespace multihead {
namespace {

using testing::expected_of;
using testing::largest_difference;
using testing::module_of;
using testing::Random;
using testing::random_parameters;
using testing::sixteenths;

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

// (B, N, width) as (N, B, width).
std::vector<float> tokens_first(const std::vector<float>& x, int64_t batch, int64_t tokens) {
  const auto width = static_cast<int64_t>(x.size()) / std::max<int64_t>(batch * tokens, 1);
  std::vector<float> y(x.size());
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t n = 0; n < tokens; ++n) {
      std::copy_n(x.begin() + (b * tokens + n) * width, width, y.begin() + (n * batch + b) * width);
    }
  }
  return y;
}

class ModuleOnTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  testing::UseSimdTarget use_{GetParam()};
};

TEST_P(ModuleOnTarget, EqualsItsDefinition) {
  Context context(2);
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    Random random(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    MultiHeadAttentionConfig config;
    config.num_kv_heads = random.integer(1, 3);
    config.num_heads = config.num_kv_heads * random.integer(1, 3);
    config.head_dim = 2 * random.integer(1, 6);
    config.embed_dim =
        random.chance(0.4) ? config.num_heads * config.head_dim : random.integer(1, 30);
    if (random.chance(0.3)) config.value_dim = random.integer(1, 9);
    const bool cross = random.chance(0.4);
    if (cross && random.chance(0.5)) config.kdim = random.integer(1, 20);
    if (cross && random.chance(0.5)) config.vdim = random.integer(1, 20);
    if (random.chance(0.3)) config.out_dim = random.integer(1, 20);
    config.bias = random.chance(0.5);
    config.out_proj = random.chance(0.8);
    config.add_bias_kv = random.chance(0.3);
    config.add_zero_attn = random.chance(0.3);
    config.batch_first = random.chance(0.6);
    config.sinks = random.chance(0.2);
    if (random.chance(0.2)) config.softcap = 3.0F;
    if (random.chance(0.3)) config.window = {random.integer(-1, 3), random.integer(-1, 3)};
    if (random.chance(0.3)) config.rope.style = Rope::Style::kHalf;
    const bool unbatched = random.chance(0.2);
    testing::ModuleTokens tokens{.batch = unbatched ? 1 : random.integer(1, 3),
                                 .queries = random.integer(1, 12)};
    tokens.keys = cross ? random.integer(1, 14) : tokens.queries;

    const auto parameters = random_parameters(config, random, random.chance(0.3));
    const MultiHeadAttention module = module_of(config, parameters.dict);
    const MultiHeadAttentionConfig& c = module.config();
    const int64_t batch = tokens.batch, queries = tokens.queries, keys = tokens.keys;
    tokens.query = sixteenths(random, batch * queries * c.embed_dim);
    const bool own_value = cross && (c.kdim != c.vdim || random.chance(0.5));
    if (cross) tokens.key = sixteenths(random, batch * keys * c.kdim);
    if (own_value) tokens.value = sixteenths(random, batch * keys * c.vdim);

    // Uses all kinds of masks; computes the visible pairs from their definitions.
    MultiHeadAttentionOptions options;
    AttentionOptions& attention = options.attention;
    const bool causal = random.chance(0.4);
    if (causal) attention.causal = Causal::top_left();
    if (random.chance(0.2)) attention.scale = 0.5F;
    std::vector<uint8_t> mask(static_cast<size_t>(queries * keys), 1), blocked, padding;
    std::vector<float> bias, padding_bias;
    const auto random_bytes = [&](int64_t count, double chance) {
      std::vector<uint8_t> bytes(static_cast<size_t>(count));
      for (uint8_t& byte : bytes) byte = random.chance(chance) ? 1 : 0;
      return bytes;
    };
    if (random.chance(0.3)) {
      mask = random_bytes(queries * keys, 0.8);
      attention.mask = {mask.data(), {queries, keys}};
    }
    if (random.chance(0.3)) {
      blocked = random_bytes(batch * c.num_heads * queries * keys, 0.2);
      options.attn_mask_blocked = {blocked.data(), {batch * c.num_heads, queries, keys}};
    }
    if (random.chance(0.3)) {
      padding = random_bytes(batch * keys, 0.3);
      options.key_padding_blocked = {padding.data(), unbatched ? Dims{keys} : Dims{batch, keys}};
    }
    if (random.chance(0.3)) {
      bias = sixteenths(random, queries * keys);
      attention.bias = {bias.data(), {queries, keys}};
    }
    if (random.chance(0.3)) {
      padding_bias = sixteenths(random, batch * keys);
      padding_bias[0] = kNegInf;
      options.key_padding_bias = {padding_bias.data(), unbatched ? Dims{keys} : Dims{batch, keys}};
    }
    std::vector<int32_t> lengths;
    if (random.chance(0.2)) {
      for (int64_t b = 0; b < batch; ++b) {
        lengths.push_back(static_cast<int32_t>(random.integer(0, keys)));
      }
      attention.kv_lengths = lengths;
    }
    std::vector<uint8_t> visible;
    std::vector<float> biases;
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t h = 0; h < c.num_heads; ++h) {
        for (int64_t i = 0; i < queries; ++i) {
          for (int64_t j = 0; j < keys; ++j) {
            const auto cell = static_cast<size_t>(i * keys + j);
            const auto at = static_cast<size_t>(((b * c.num_heads + h) * queries + i) * keys + j);
            const auto key = static_cast<size_t>(b * keys + j);
            const float added = (bias.empty() ? 0.0F : bias[cell]) +
                                (padding_bias.empty() ? 0.0F : padding_bias[key]);
            const bool hidden =
                (causal && j > i) || (c.window.left >= 0 && j < i - c.window.left) ||
                (c.window.right >= 0 && j > i + c.window.right) || mask[cell] == 0 ||
                (!blocked.empty() && blocked[at] != 0) || (!padding.empty() && padding[key] != 0) ||
                (!lengths.empty() && j >= lengths[static_cast<size_t>(b)]);
            visible.push_back(hidden ? 0 : 1);
            biases.push_back(added);
          }
        }
      }
    }
    AttentionOptions of_oracle;
    of_oracle.scale = attention.scale.value_or(
        static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim))));
    of_oracle.softcap = c.softcap;
    of_oracle.rope = c.rope;
    if (c.sinks) of_oracle.sinks = parameters.at("sinks");
    const auto expected = expected_of(config, parameters, tokens, visible, biases, of_oracle);

    const auto layout = [&](std::vector<float>& x, int64_t count) -> ConstTensor {
      if (x.empty()) return {};
      const auto width = static_cast<int64_t>(x.size()) / (batch * count);
      if (unbatched) return {x.data(), {count, width}};
      if (c.batch_first) return {x.data(), {batch, count, width}};
      x = tokens_first(x, batch, count);
      return {x.data(), {count, batch, width}};
    };
    const int64_t total = keys + (c.add_bias_kv ? 1 : 0) + (c.add_zero_attn ? 1 : 0);
    std::vector<float> out(expected.out.size(), kUntouched), weights(expected.weights.size());
    std::vector<float> mean(static_cast<size_t>(batch * queries * total));
    const ConstTensor query = layout(tokens.query, queries);
    Dims out_shape = query.shape;
    out_shape[out_shape.rank() - 1] = c.out_dim;
    MultiHeadAttentionOutputs outputs{.out = {out.data(), out_shape}};
    const bool per_head = random.chance(0.5), averaged = random.chance(0.5);
    if (per_head) {
      outputs.weights = {weights.data(), unbatched ? Dims{c.num_heads, queries, total}
                                                   : Dims{batch, c.num_heads, queries, total}};
    }
    if (averaged) {
      outputs.mean_weights = {mean.data(),
                              unbatched ? Dims{queries, total} : Dims{batch, queries, total}};
    }
    const Status status = module.forward(
        {.query = query, .key = layout(tokens.key, keys), .value = layout(tokens.value, keys)},
        options, outputs, nullptr, context);
    ASSERT_TRUE(status.ok()) << status.message();
    if (!unbatched && !c.batch_first) out = tokens_first(out, queries, batch);
    // Tolerance for scores up to 30 with a rounding error of 2e-6, and values up to 10, projected
    // once more.
    ASSERT_LE(largest_difference(out, expected.out), 1e-4);
    if (per_head) {
      ASSERT_LE(largest_difference(weights, expected.weights), 1e-5);
    }
    if (averaged) {
      std::vector<double> of_heads(mean.size());
      for (size_t i = 0; i < expected.weights.size(); ++i) {
        const size_t cells = static_cast<size_t>(queries * total);
        const size_t b = i / (cells * static_cast<size_t>(c.num_heads));
        of_heads[b * cells + i % cells] += expected.weights[i] / static_cast<double>(c.num_heads);
      }
      ASSERT_LE(largest_difference(mean, of_heads), 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, ModuleOnTarget, ::testing::ValuesIn(testing::simd_targets()),
                         [](const auto& param) { return testing::simd_target_name(param.param); });

// A self-attention module of the given size.
struct Fixture {
  int64_t batch = 2, tokens = 6;
  MultiHeadAttentionConfig config;
  testing::ModuleParameters parameters;
  MultiHeadAttention module;
  std::vector<float> x;
  Context context{2};

  explicit Fixture(const MultiHeadAttentionConfig& config_ = {.embed_dim = 24, .num_heads = 3})
      : config(config_) {
    Random random(7);
    parameters = random_parameters(config, random);
    module = module_of(config, parameters.dict);
    x = sixteenths(random, batch * tokens * config.embed_dim);
  }
  ConstTensor query() const { return {x.data(), {batch, tokens, config.embed_dim}}; }
  std::vector<float> run(const MultiHeadAttentionOptions& options) { return run(module, options); }
  std::vector<float> run(const MultiHeadAttention& which,
                         const MultiHeadAttentionOptions& options) {
    const int64_t width = which.config().out_dim;
    std::vector<float> out(static_cast<size_t>(batch * tokens * width));
    const Status status =
        which.forward({.query = query()}, options, {.out = {out.data(), {batch, tokens, width}}},
                      nullptr, context);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }
  std::vector<float> run_without_out_proj() { return run(without_out_proj(module), {}); }
};

TEST(MultiHeadAttention, MutedHeadsAddNothing) {
  Fixture f;
  const std::vector<float> muted{1.0F, 0.0F, -2.0F};
  const std::vector<float> merged = f.run_without_out_proj();
  const std::vector<float> out = f.run({.heads = {.head_scales = muted}});
  const std::vector<float>& weight = f.parameters.at("out_proj.weight");
  const std::vector<float>& bias = f.parameters.at("out_proj.bias");
  std::vector<double> expected;
  for (size_t row = 0; row < 12; ++row) {
    for (size_t o = 0; o < 24; ++o) {
      double sum = static_cast<double>(bias[o]);
      for (size_t i = 0; i < 24; ++i) {
        sum += static_cast<double>(muted[i / 8] * merged[row * 24 + i] * weight[o * 24 + i]);
      }
      expected.push_back(sum);
    }
  }
  EXPECT_LE(largest_difference(out, expected), 1e-5);
}

TEST(MultiHeadAttention, TemperatureIsAScale) {
  Fixture f;
  const auto scaled = [&](double scale) {
    return f.run({.attention = {.scale = static_cast<float>(scale)}});
  };
  EXPECT_EQ(f.run({}), scaled(1.0 / std::sqrt(8.0)));
  std::vector<double> expected;
  for (const float value : scaled(0.5 / std::sqrt(8.0))) expected.push_back(value);
  EXPECT_LE(largest_difference(f.run({.heads = {.temperature = 2.0F}}), expected), 1e-5);
}

// Dropout needs `training`: without it the call equals a call without dropout; with it the seed
// matters.
TEST(MultiHeadAttention, DropsOutInTrainingOnly) {
  Fixture f({.embed_dim = 24, .num_heads = 3, .dropout = 0.5F});
  Fixture plain;
  EXPECT_EQ(f.run({}), plain.run({}));
  EXPECT_EQ(f.run({.training = true, .dropout_seed = 3}),
            f.run({.attention = {.dropout = {0.5F, 3}}}));
  EXPECT_NE(f.run({.training = true, .dropout_seed = 3}),
            f.run({.training = true, .dropout_seed = 4}));
}

TEST(MultiHeadAttention, NormalisesQueriesAndKeys) {
  Fixture f({.embed_dim = 24, .num_heads = 3, .qk_norm = true});
  const std::vector<float> out = f.run({});
  AttentionOptions options;
  options.qk_norm = {.q_gain = f.parameters.at("q_norm.weight"),
                     .k_gain = f.parameters.at("k_norm.weight"),
                     .enabled = true};
  testing::ModuleTokens tokens{
      .batch = 2, .queries = 6, .keys = 6, .query = f.x, .key = {}, .value = {}};
  const auto expected =
      expected_of(f.config, f.parameters, tokens, std::vector<uint8_t>(2 * 3 * 36, 1), {}, options);
  EXPECT_LE(largest_difference(out, expected.out), 1e-5);
}

// A reshape directly to (B, H, N, d), without the transpose, would mix tokens: the input of each
// head must be columns of the projections.
TEST(MultiHeadAttention, EqualsOneHeadAtATime) {
  Fixture f;
  const std::vector<float> merged = f.run_without_out_proj();
  const auto& weight = f.parameters.at("in_proj_weight");
  const auto& bias = f.parameters.at("in_proj_bias");
  for (int64_t h = 0; h < 3; ++h) {
    const auto rows = [&](int64_t which) {
      return ConstTensor(weight.data() + (which * 24 + h * 8) * 24, {8, 24});
    };
    const auto biases = [&](int64_t which) {
      return ConstTensor(bias.data() + which * 24 + h * 8, {8});
    };
    MultiHeadAttention head;
    ASSERT_TRUE(MultiHeadAttention::create(
                    {.embed_dim = 24, .num_heads = 1, .head_dim = 8, .out_proj = false}, head)
                    .ok());
    ASSERT_TRUE(head.use_weights({.q_proj = rows(0),
                                  .k_proj = rows(1),
                                  .v_proj = rows(2),
                                  .q_bias = biases(0),
                                  .k_bias = biases(1),
                                  .v_bias = biases(2)})
                    .ok());
    std::vector<float> out(12 * 8);
    ASSERT_TRUE(
        head.forward({.query = f.query()}, {}, {.out = {out.data(), {2, 6, 8}}}, nullptr, f.context)
            .ok());
    for (size_t row = 0; row < 12; ++row) {
      for (size_t c = 0; c < 8; ++c) {
        ASSERT_NEAR(out[row * 8 + c], merged[row * 24 + static_cast<size_t>(h) * 8 + c], 1e-6F);
      }
    }
  }
}

// Projections and attention use tiles if the SIMD target has the tile kernels.
TEST(MultiHeadAttention, MultipliesInBf16WhereThatIsAskedFor) {
  const testing::UseTileModel model;
  constexpr int64_t kTokens = 40, kWidth = 24;
  Random random(5);
  const MultiHeadAttentionConfig config{.embed_dim = kWidth, .num_heads = 3};
  const testing::ModuleParameters parameters = random_parameters(config, random);
  const MultiHeadAttention module = module_of(config, parameters.dict);
  const std::vector<float> x = sixteenths(random, kTokens * kWidth);
  Context context(1);
  const auto run = [&](Precision precision, bool projects) {
    std::vector<float> out(x.size(), kUntouched);
    const int64_t before = model.products();
    const Status status =
        (projects ? module : without_out_proj(module))
            .forward({.query = {x.data(), {1, kTokens, kWidth}}},
                     {.attention = {.precision = precision}},
                     {.out = {out.data(), {1, kTokens, kWidth}}}, nullptr, context);
    EXPECT_TRUE(status.ok()) << status.message();
    return std::pair{out, model.products() - before};
  };
  const auto [exact, none] = run(Precision::kF32, true);
  EXPECT_EQ(none, 0);
  const auto [rounded, all] = run(Precision::kBf16, true);
  const auto [heads, without_out] = run(Precision::kBf16, false);
  EXPECT_EQ(all > without_out && without_out > 0, cpu::target_traits().bf16_tiles);
  double largest = 0;
  for (const float value : exact) largest = std::max(largest, std::abs(static_cast<double>(value)));
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_NEAR(rounded[i], exact[i], 0x1p-6 * largest) << i;
  }
}

TEST(MultiHeadAttention, RefusesWhatDoesNotFit) {
  Fixture f;
  std::vector<float> out(2 * 6 * 24, kUntouched), weights(2 * 3 * 36, kUntouched);
  const std::vector<uint8_t> bytes(2 * 3 * 36);
  const std::vector<float> two(2, 1.0F);
  using In = MultiHeadAttentionInputs;
  using Options = MultiHeadAttentionOptions;
  using Out = MultiHeadAttentionOutputs;
  const auto expect_refused = [&](const char* argument,
                                  const std::function<void(In&, Options&, Out&)>& change) {
    In inputs{.query = f.query()};
    Options options;
    Out outputs{.out = {out.data(), {2, 6, 24}}, .weights = {weights.data(), {2, 3, 6, 6}}};
    change(inputs, options, outputs);
    Trace trace{.wanted = {"x"}};
    const Status status = f.module.forward(inputs, options, outputs, &trace, f.context);
    EXPECT_EQ(status.argument(), argument) << status.message();
    EXPECT_EQ(out, std::vector<float>(out.size(), kUntouched));
    EXPECT_EQ(weights, std::vector<float>(weights.size(), kUntouched));
    EXPECT_TRUE(trace.steps.empty());
  };
  expect_refused("query", [&](In& in, Options&, Out&) { in.query = {f.x.data(), {2, 1, 6, 24}}; });
  expect_refused("query", [&](In& in, Options&, Out&) { in.query = {f.x.data(), {12, 6, 4}}; });
  expect_refused("query", [&](In& in, Options&, Out&) { in.query.data = nullptr; });
  expect_refused("key", [&](In& in, Options&, Out&) { in.key = {f.x.data(), {6, 24}}; });
  expect_refused("key", [&](In& in, Options&, Out&) { in.key = {f.x.data(), {1, 6, 24}}; });
  expect_refused("key", [&](In& in, Options&, Out&) { in.key = {f.x.data(), {2, 6, 20}}; });
  expect_refused("value", [&](In& in, Options&, Out&) { in.value = {f.x.data(), {2, 5, 24}}; });
  expect_refused("out", [](In&, Options&, Out& o) { o.out.shape[2] = 23; });
  expect_refused("weights", [](In&, Options&, Out& o) { o.weights.shape = {2, 6, 6}; });
  expect_refused("mean_weights", [&](In&, Options&, Out& o) {
    o.mean_weights = {weights.data(), {2, 3, 6, 6}};
  });
  expect_refused("scale", [](In&, Options& o, Out&) { o.attention.scale = NAN; });
  expect_refused("mask", [&](In&, Options& o, Out&) {
    o.attention.mask = {bytes.data(), {3, 6, 6}};
  });
  expect_refused("attn_mask_blocked", [&](In&, Options& o, Out&) {
    o.attn_mask_blocked = {bytes.data(), {3, 6, 6}};
  });
  expect_refused("attn_mask_blocked", [&](In&, Options& o, Out&) {
    o.attn_mask_blocked = {nullptr, {6, 6}};
  });
  expect_refused("key_padding_blocked", [&](In&, Options& o, Out&) {
    o.key_padding_blocked = {bytes.data(), {2, 5}};
  });
  expect_refused("key_padding_bias", [&](In&, Options& o, Out&) {
    o.key_padding_bias = {f.x.data(), {3, 6}};
  });
  expect_refused("head_scales", [&](In&, Options& o, Out&) { o.heads.head_scales = two; });
  expect_refused("temperature", [](In&, Options& o, Out&) { o.heads.temperature = 0.0F; });
  f.run({});
  MultiHeadAttention none;
  EXPECT_EQ(none.forward({.query = f.query()}, {}, {}, nullptr, f.context).argument(), "module");
}

}  // namespace
}  // namespace multihead
