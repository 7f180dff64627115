// The trace of a module: names, shapes, and that each step follows from earlier steps.
#include "nn/attention/tracer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/random_module.h"

namespace multihead {
namespace {

using testing::Random;
using testing::sixteenths;

struct Traced {
  MultiHeadAttentionConfig config;
  testing::ModuleParameters parameters;
  MultiHeadAttention module;
  std::vector<float> x, key;
  Context context{2};

  explicit Traced(const MultiHeadAttentionConfig& config_) : config(config_) {
    Random random(3);
    parameters = testing::random_parameters(config, random);
    module = testing::module_of(config, parameters.dict);
    x = sixteenths(random, 2 * 5 * config.embed_dim);
    key = sixteenths(random, 2 * 7 * config.embed_dim);
  }
  std::vector<float> run(Trace* trace, bool cross = false,
                         const MultiHeadAttentionOptions& options = {}) {
    std::vector<float> out(static_cast<size_t>(2 * 5 * config.embed_dim));
    MultiHeadAttentionInputs inputs{.query = {x.data(), {2, 5, config.embed_dim}}};
    if (cross) inputs.key = {key.data(), {2, 7, config.embed_dim}};
    const Status status = module.forward(
        inputs, options, {.out = {out.data(), {2, 5, config.embed_dim}}}, trace, context);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }
};

// B, N, d_model, H = 2, 5, 64, 8, the example of an article.
TEST(Trace, NamesEveryStepWithItsShape) {
  Traced m({.embed_dim = 64, .num_heads = 8});
  Trace trace;
  const std::vector<float> out = m.run(&trace);
  const std::vector<std::pair<std::string, Dims>> expected = {
      {"x", {2, 5, 64}},
      {"q", {2, 5, 64}},
      {"k", {2, 5, 64}},
      {"v", {2, 5, 64}},
      {"q_heads", {2, 8, 5, 8}},
      {"k_heads", {2, 8, 5, 8}},
      {"v_heads", {2, 8, 5, 8}},
      {"scores", {2, 8, 5, 5}},
      {"scaled_scores", {2, 8, 5, 5}},
      {"masked_scores", {2, 8, 5, 5}},
      {"weights", {2, 8, 5, 5}},
      {"heads_out", {2, 8, 5, 8}},
      {"merged", {2, 5, 64}},
      {"per_head_output", {2, 8, 5, 64}},
      {"output", {2, 5, 64}},
  };
  ASSERT_EQ(trace.steps.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(trace.steps[i].name, expected[i].first);
    EXPECT_EQ(trace.steps[i].shape, expected[i].second);
  }
  EXPECT_EQ(testing::vector_of(trace.find("output")->values), out);
  EXPECT_EQ(trace.find("nothing"), nullptr);
}

TEST(Trace, RecordsWhatIsWantedAndChangesNothing) {
  Traced m({.embed_dim = 24, .num_heads = 4, .num_kv_heads = 2, .add_zero_attn = true});
  const std::vector<float> out = m.run(nullptr, true);
  Trace all;
  EXPECT_EQ(m.run(&all, true), out);
  // Latent attention's four steps are missing.
  EXPECT_EQ(all.steps.size(), trace_names().size() - 4);
  for (const auto& [name, shape, values] : all.steps) {
    Trace one{.wanted = {name}};
    EXPECT_EQ(m.run(&one, true), out) << name;
    ASSERT_EQ(one.steps.size(), 1U) << name;
    EXPECT_EQ(one.steps[0].name, name);
    EXPECT_EQ(testing::vector_of(one.steps[0].values), testing::vector_of(values)) << name;
  }
  EXPECT_EQ(all.find("weights")->shape, (Dims{2, 4, 5, 8}));
  EXPECT_EQ(all.find("k")->shape, (Dims{2, 7, 12}));
  EXPECT_EQ(all.find("k_heads")->shape, (Dims{2, 2, 8, 6}));
}

TEST(Trace, RefusesUnknownNames) {
  Traced m({.embed_dim = 24, .num_heads = 4});
  std::vector<float> out(240, 42.0F);
  Trace trace{.wanted = {"weights", "scrores"}};
  const Status status = m.module.forward({.query = {m.x.data(), {2, 5, 24}}}, {},
                                         {.out = {out.data(), {2, 5, 24}}}, &trace, m.context);
  EXPECT_EQ(status.argument(), "trace.wanted");
  EXPECT_EQ(status.got(), "scrores");
  EXPECT_EQ(out, std::vector<float>(240, 42.0F));
}

#ifdef __EMSCRIPTEN__
// With memory limited to 4 GiB, 37 GB of scores give an error, and the next call works.
TEST(Trace, OfMoreThanAMemoryHoldsIsAnError) {
  const MultiHeadAttentionConfig config{
      .embed_dim = 2, .num_heads = 1024, .head_dim = 1, .bias = false};
  Random random(1);
  const MultiHeadAttention module =
      testing::module_of(config, testing::random_parameters(config, random).dict);
  const std::vector<float> x = sixteenths(random, 3000 * 2);
  std::vector<float> out(x.size());
  Context context(1);
  Trace trace{.wanted = {"scores"}};
  for (const int64_t tokens : {3000, 3}) {
    const Dims shape{tokens, 2};
    const Status status = module.forward({.query = {x.data(), shape}}, {},
                                         {.out = {out.data(), shape}}, &trace, context);
    EXPECT_EQ(status.code(), tokens == 3 ? StatusCode::kOk : StatusCode::kMemory);
    EXPECT_EQ(trace.steps.size(), tokens == 3 ? 1U : 0U);
  }
}
#endif

// The sum of z_h W_O^h over all heads is the output.
TEST(Trace, PerHeadOutputsAddUpToTheOutput) {
  Traced m({.embed_dim = 24, .num_heads = 3});
  const std::vector<float> factors{1.0F, 0.0F, 2.0F};
  Trace trace;
  const std::vector<float> out = m.run(&trace, false, {.heads = {.head_scales = factors}});
  const TraceValues& shares = trace.find("per_head_output")->values;
  const std::vector<float>& bias = m.parameters.at("out_proj.bias");
  for (size_t b = 0; b < 2; ++b) {
    for (size_t cell = 0; cell < 5 * 24; ++cell) {
      double sum = static_cast<double>(bias[cell % 24]);
      for (size_t h = 0; h < 3; ++h) {
        const float share = shares[(b * 3 + h) * 120 + cell];
        if (h == 1) {
          EXPECT_EQ(share, 0.0F);
        }
        sum += static_cast<double>(share);
      }
      EXPECT_NEAR(out[b * 120 + cell], sum, 1e-5);
    }
  }
}

TEST(Trace, IsConsistent) {
  Traced m({.embed_dim = 24, .num_heads = 3});
  Trace trace;
  m.run(&trace, false, {.attention = {.causal = Causal::top_left()}});
  const auto& scores = trace.find("scores")->values;
  const auto& scaled = trace.find("scaled_scores")->values;
  const auto& masked = trace.find("masked_scores")->values;
  const auto& weights = trace.find("weights")->values;
  const auto& q = trace.find("q_heads")->values;
  const auto& k = trace.find("k_heads")->values;
  size_t cell = 0;
  for (size_t head = 0; head < 6; ++head) {
    for (size_t i = 0; i < 5; ++i) {
      double sum = 0;
      for (size_t j = 0; j < 5; ++j, ++cell) {
        double dot = 0;
        for (size_t d = 0; d < 8; ++d) {
          dot += static_cast<double>(q[(head * 5 + i) * 8 + d]) *
                 static_cast<double>(k[(head * 5 + j) * 8 + d]);
        }
        EXPECT_NEAR(scores[cell], dot, 1e-5);
        // The divisor is the square root of head_dim, not of embed_dim.
        EXPECT_NEAR(scaled[cell], dot / std::sqrt(8.0), 1e-5);
        if (j <= i) {
          EXPECT_EQ(masked[cell], scaled[cell]);
        } else {
          EXPECT_EQ(masked[cell], -std::numeric_limits<float>::infinity());
          EXPECT_EQ(weights[cell], 0.0F);
        }
        sum += static_cast<double>(weights[cell]);
      }
      EXPECT_NEAR(sum, 1.0, 1e-6);
    }
  }
}

}  // namespace
}  // namespace multihead
