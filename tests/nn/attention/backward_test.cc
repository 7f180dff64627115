// Compares the module's backward with finite differences of its forward, for every parameter and
// input and random options. Also: activations kept or not, threads, accumulation, invalid calls.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "multihead/multi_head_attention.h"
#include "nn/attention/attention_parameters.h"
#include "nn/parameters.h"
#include "support/random_case.h"
#include "support/slope.h"

namespace multihead {
namespace {

using testing::dot;
using testing::Random;
using testing::random_direction;

// A module whose parameters lie in `values`, where a test can change them.
struct Module {
  MultiHeadAttention module;
  MultiHeadAttentionWeights weights;
  std::vector<nn::Parameter> parameters;
  std::vector<float> values;

  Module(const MultiHeadAttentionConfig& config, Random& random) {
    Status status = MultiHeadAttention::create(config, module);
    EXPECT_TRUE(status.ok()) << status.message();
    nn::ParameterList list;
    const MultiHeadAttentionConfig& c = module.config();
    const bool separate = c.kdim != c.embed_dim || c.vdim != c.embed_dim || random.chance(0.4);
    nn::list_attention(c, "", {.separate = separate}, weights, list);
    parameters.assign(list.parameters().begin(), list.parameters().end());
    values = random.floats(list.elements(), -0.5F, 0.5F);
    list.bind(values.data());
    for (const nn::Parameter& p : parameters) {
      if (p.role == nn::ParameterRole::kGain) {
        for (float& value : part_of(p, values)) value += 1.0F;
      }
    }
    status = module.use_weights(weights);
    EXPECT_TRUE(status.ok()) << status.message();
  }

  static std::span<float> part_of(const nn::Parameter& p, std::vector<float>& block) {
    return {block.data() + p.offset, static_cast<size_t>(p.shape.elements())};
  }
};

// A call with random inputs.
struct Call {
  Dims query_shape, key_shape, value_shape, out_shape;
  std::vector<float> query, key, value, d_out;  // key and value may be empty
  MultiHeadAttentionOptions options;
  std::vector<uint8_t> mask, padding;
  std::vector<float> bias, scales;
  std::vector<int32_t> lengths;

  MultiHeadAttentionInputs inputs() {
    MultiHeadAttentionInputs in{.query = {query.data(), query_shape}};
    if (!key.empty()) in.key = {key.data(), key_shape};
    if (!value.empty()) in.value = {value.data(), value_shape};
    return in;
  }
};

MultiHeadAttentionConfig random_config(Random& random) {
  MultiHeadAttentionConfig config;
  config.num_kv_heads = random.integer(1, 3);
  config.num_heads = config.num_kv_heads * random.integer(1, 3);
  config.head_dim = 2 * random.integer(1, 5);
  config.embed_dim = random.integer(1, 20);
  config.latent_norm_eps = config.qk_norm_eps = 0.5F;  // if smaller, rows near 0 have no slope
  config.bias = random.chance(0.5);
  config.out_proj = random.chance(0.8);
  config.batch_first = random.chance(0.6);
  config.sinks = random.chance(0.3);
  if (random.chance(0.3)) config.softcap = 3.0F;
  if (random.chance(0.3)) config.dropout = 0.3F;
  if (random.chance(0.3)) config.out_dropout = 0.3F;
  if (random.chance(0.3)) config.window = {random.integer(-1, 3), random.integer(-1, 3)};
  if (random.chance(0.3)) config.value_dim = random.integer(1, 9);
  if (random.chance(0.3)) config.out_dim = random.integer(1, 20);
  if (random.chance(0.25)) {  // latent attention
    config.num_kv_heads = 0;
    config.kv_latent_dim = random.integer(1, 9);
    if (random.chance(0.5)) config.q_latent_dim = random.integer(1, 9);
    config.rope_head_dim = 2 * random.integer(0, config.head_dim / 2 - 1);
    if (config.rope_head_dim > 0 && random.chance(0.7)) {
      config.rope.style = random.pick({Rope::Style::kHalf, Rope::Style::kInterleaved});
    }
    return config;
  }
  if (random.chance(0.4)) config.rope.style = Rope::Style::kHalf;
  config.qk_norm = random.chance(0.3);
  config.add_bias_kv = random.chance(0.25);
  config.add_zero_attn = random.chance(0.25);
  if (random.chance(0.2)) config.kdim = random.integer(1, 12);
  if (random.chance(0.2)) config.vdim = random.integer(1, 12);
  return config;
}

void fill(const MultiHeadAttentionConfig& c, Random& random, Call& call) {
  const bool latent = c.kv_latent_dim > 0;
  const bool cross = c.kdim != c.embed_dim || c.vdim != c.embed_dim || random.chance(0.4);
  const bool unbatched = random.chance(0.2);
  const int64_t batch = unbatched ? 1 : random.integer(1, 3);
  const int64_t queries = random.integer(1, 10), keys = cross ? random.integer(1, 12) : queries;
  const auto shape = [&](int64_t tokens, int64_t width) {
    if (unbatched) return Dims{tokens, width};
    return c.batch_first ? Dims{batch, tokens, width} : Dims{tokens, batch, width};
  };
  call.query_shape = shape(queries, c.embed_dim);
  call.key_shape = shape(keys, c.kdim);
  call.value_shape = shape(keys, c.vdim);
  call.out_shape = shape(queries, c.out_dim);
  call.query = random.floats(call.query_shape.elements());
  if (cross) call.key = random.floats(call.key_shape.elements());
  if (cross && !latent && (c.kdim != c.vdim || random.chance(0.5))) {
    call.value = random.floats(call.value_shape.elements());
  }
  call.d_out = random.floats(call.out_shape.elements());
  call.options.training = true;
  call.options.dropout_seed = static_cast<uint64_t>(random.integer(0, 1000));
  AttentionOptions& attention = call.options.attention;
  if (random.chance(0.4)) attention.causal = Causal::top_left();
  if (random.chance(0.2)) attention.scale = 0.5F;
  const auto bytes = [&](int64_t count, double chance) {
    std::vector<uint8_t> values(static_cast<size_t>(count));
    for (uint8_t& value : values) value = random.chance(chance) ? 1 : 0;
    return values;
  };
  if (random.chance(0.3)) {
    call.mask = bytes(queries * keys, 0.8);
    attention.mask = {call.mask.data(), {queries, keys}};
  }
  if (random.chance(0.3)) {
    call.padding = bytes(batch * keys, 0.3);
    call.options.key_padding_blocked = {call.padding.data(), {batch, keys}};
  }
  if (random.chance(0.3)) {
    call.bias = random.floats(queries * keys);
    attention.bias = {call.bias.data(), {queries, keys}};
  }
  if (random.chance(0.2)) {
    for (int64_t b = 0; b < batch; ++b) {
      call.lengths.push_back(static_cast<int32_t>(random.integer(0, keys)));
    }
    attention.kv_lengths = call.lengths;
  }
  if (random.chance(0.3)) {
    call.scales = random.floats(c.num_heads);
    call.scales[0] = random.chance(0.5) ? 0.0F : call.scales[0];
    call.options.heads.head_scales = call.scales;
  }
}

// All gradients of a call; the parameters' gradients are in one block.
struct Gradients {
  std::vector<float> query, key, value, parameters;
  bool operator==(const Gradients&) const = default;
};

Status backward(Module& m, Call& call, const MultiHeadAttentionActivations* activations,
                Gradients& g, Context& context) {
  g.query.assign(call.query.size(), 42.0F);
  g.key.assign(call.key.size(), 42.0F);
  g.value.assign(call.value.size(), 42.0F);
  g.parameters.assign(m.values.size(), 0.0F);
  MultiHeadAttentionGradients gradients{.d_query = {g.query.data(), call.query_shape}};
  if (!call.key.empty()) gradients.d_key = {g.key.data(), call.key_shape};
  if (!call.value.empty()) gradients.d_value = {g.value.data(), call.value_shape};
  gradients.weights = nn::gradients_of(m.weights, {m.values.data(), g.parameters.data()});
  return m.module.backward(call.inputs(), call.options, {call.d_out.data(), call.out_shape},
                           activations, gradients, context);
}

TEST(ModuleBackward, EqualsTheSlopeOfTheForward) {
  Context context(1), many(3);
  for (const uint64_t seed : testing::random_seeds(60)) {
    Random random(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    Module m(random_config(random), random);
    if (HasFailure()) return;
    Call call;
    fill(m.module.config(), random, call);
    std::vector<float> out(call.d_out.size()), again(out.size());
    const auto forward = [&](std::vector<float>& to, MultiHeadAttentionActivations* activations) {
      Status status = m.module.forward(
          call.inputs(), call.options,
          {.out = {to.data(), call.out_shape}, .activations = activations}, nullptr, context);
      ASSERT_TRUE(status.ok()) << status.message();
    };
    MultiHeadAttentionActivations activations;
    forward(out, nullptr);
    forward(again, &activations);
    ASSERT_EQ(out, again);

    Gradients gradients, recomputed, threaded;
    Status status = backward(m, call, &activations, gradients, context);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(backward(m, call, nullptr, recomputed, context).ok());
    ASSERT_TRUE(backward(m, call, &activations, threaded, many).ok());
    ASSERT_EQ(gradients, recomputed);
    ASSERT_EQ(gradients, threaded);

    const auto loss = [&] {
      forward(again, nullptr);
      return dot(again, call.d_out);
    };
    const auto check = [&](const std::string& name, std::span<float> numbers,
                           std::span<const float> gradient) {
      if (numbers.empty()) return;
      const std::vector<float> direction = random_direction(random, numbers.size());
      const double expected = testing::slope(numbers, direction, loss);
      const double error = std::abs(dot(gradient, direction) - expected);
      EXPECT_LE(error, 2e-3 * testing::size_of_dot(gradient, direction) + 2e-3) << name;
    };
    check("query", call.query, gradients.query);
    check("key", call.key, gradients.key);
    check("value", call.value, gradients.value);
    for (const nn::Parameter& p : m.parameters) {
      check(p.name, Module::part_of(p, m.values), Module::part_of(p, gradients.parameters));
    }
    if (HasFailure()) return;
  }
}

TEST(ModuleBackward, AddsToTheGradientsOfWeightsAndComputesWhatIsAsked) {
  Random random(3);
  Context context(1);
  Module m({.embed_dim = 8, .num_heads = 2}, random);
  Call call;
  call.query_shape = call.out_shape = {2, 5, 8};
  call.query = random.floats(80);
  call.d_out = random.floats(80);
  Gradients all;
  ASSERT_TRUE(backward(m, call, nullptr, all, context).ok());
  std::vector<float> sums(all.parameters.size(), 0.0F), only(64, 0.0F);
  for (int round = 0; round < 2; ++round) {
    MultiHeadAttentionGradients gradients;
    gradients.weights = nn::gradients_of(m.weights, {m.values.data(), sums.data()});
    ASSERT_TRUE(m.module
                    .backward(call.inputs(), {}, {call.d_out.data(), call.out_shape}, nullptr,
                              gradients, context)
                    .ok());
  }
  for (size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i], 2 * all.parameters[i]);
  ASSERT_TRUE(m.module
                  .backward(call.inputs(), {}, {call.d_out.data(), call.out_shape}, nullptr,
                            {.weights = {.k_proj = {only.data(), {8, 8}}}}, context)
                  .ok());
  const auto offset = m.weights.k_proj.data - m.values.data();
  for (size_t i = 0; i < 64; ++i) {
    EXPECT_NEAR(only[i], all.parameters[static_cast<size_t>(offset) + i], 1e-5F);
  }
}

TEST(ModuleBackward, RefusesInvalidCallsAndWritesNothing) {
  Random random(4);
  Context context(1);
  Module m({.embed_dim = 8, .num_heads = 2, .bias = false}, random);
  std::vector<float> x(80), d_out(80), out(80), d_x(80, 42.0F), d_w(64, 42.0F);
  const ConstTensor query(x.data(), {2, 5, 8}), d(d_out.data(), {2, 5, 8});
  const Tensor gradient(d_x.data(), {2, 5, 8});
  MultiHeadAttentionActivations kept, empty, shorter;
  ASSERT_TRUE(m.module
                  .forward({.query = query}, {},
                           {.out = {out.data(), {2, 5, 8}}, .activations = &kept}, nullptr, context)
                  .ok());
  ASSERT_TRUE(m.module
                  .forward({.query = {x.data(), {2, 4, 8}}}, {},
                           {.out = {out.data(), {2, 4, 8}}, .activations = &shorter}, nullptr,
                           context)
                  .ok());
  const auto refused = [&](const char* argument, StatusCode code, const ConstTensor& given,
                           const MultiHeadAttentionActivations* activations,
                           const MultiHeadAttentionGradients& gradients) {
    const Status status =
        m.module.backward({.query = query}, {}, given, activations, gradients, context);
    EXPECT_EQ(status.argument(), argument) << status.message();
    EXPECT_EQ(status.code(), code) << status.message();
  };
  refused("d_out", StatusCode::kShape, {d_out.data(), {2, 4, 8}}, &kept, {.d_query = gradient});
  refused("d_query", StatusCode::kShape, d, &kept, {.d_query = {d_x.data(), {2, 8, 5}}});
  refused("d_key", StatusCode::kOption, d, &kept, {.d_key = gradient});
  refused("d_value", StatusCode::kOption, d, &kept, {.d_value = gradient});
  refused("activations", StatusCode::kOption, d, &empty, {.d_query = gradient});
  refused("activations", StatusCode::kOption, d, &shorter, {.d_query = gradient});
  refused("q_bias", StatusCode::kOption, d, &kept,
          {.d_query = gradient, .weights = {.q_bias = {d_w.data(), {8}}}});
  refused("out_proj", StatusCode::kShape, d, &kept,
          {.d_query = gradient, .weights = {.out_proj = {d_w.data(), {8, 4}}}});
  EXPECT_EQ(d_x, std::vector<float>(80, 42.0F));
  EXPECT_EQ(d_w, std::vector<float>(64, 42.0F));
  MultiHeadAttention none;
  EXPECT_EQ(none.backward({.query = query}, {}, d, nullptr, {}, context).argument(), "module");
  EXPECT_TRUE(
      m.module.backward({.query = query}, {}, d, &kept, {.d_query = gradient}, context).ok());
  // Activations of earlier weights are refused.
  const MultiHeadAttentionWeights weights = m.module.weights();
  ASSERT_TRUE(m.module.use_weights(weights).ok());
  d_x.assign(80, 42.0F);
  refused("activations", StatusCode::kOption, d, &kept, {.d_query = gradient});
  EXPECT_EQ(d_x, std::vector<float>(80, 42.0F));
}

}  // namespace
}  // namespace multihead
