#include "multihead/multi_head_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "multihead/linear.h"
#include "support/random_case.h"

namespace multihead {
namespace {

using testing::Random;

struct Module {
  int64_t batch, tokens, embed, heads, width;
  std::vector<float> x, q, k, v, o;
  Context context{2};

  Module(uint64_t seed, int64_t batch_, int64_t tokens_, int64_t embed_, int64_t heads_,
         int64_t width_)
      : batch(batch_), tokens(tokens_), embed(embed_), heads(heads_), width(width_) {
    Random random(seed);
    x = random.floats(batch * tokens * embed);
    for (std::vector<float>* matrix : {&q, &k, &v, &o}) *matrix = random.floats(embed * merged());
  }

  int64_t merged() const { return heads * width; }
  MultiHeadAttentionConfig config() const { return {embed, heads, width}; }
  MultiHeadAttentionWeights weights() const {
    const Dims projection{merged(), embed};
    return {.q_proj = {q.data(), projection},
            .k_proj = {k.data(), projection},
            .v_proj = {v.data(), projection},
            .out_proj = {o.data(), {embed, merged()}}};
  }
  ConstTensor input() const { return {x.data(), {batch, tokens, embed}}; }

  std::vector<float> run(const AttentionOptions& options, Trace* trace = nullptr) {
    std::vector<float> output(static_cast<size_t>(batch * tokens * embed));
    const Status status =
        multi_head_attention(config(), weights(), input(), options,
                             {output.data(), {batch, tokens, embed}}, trace, context);
    EXPECT_TRUE(status.ok()) << status.message();
    return output;
  }
};

// "One head at a time, then concatenate" gives what the fused module gives.
TEST(MultiHeadAttention, EqualsOneHeadAtATime) {
  Module m(1, 2, 10, 32, 4, 8);
  const std::vector<float> fused = m.run({.causal = Causal::top_left()});

  const int64_t rows = m.batch * m.tokens;
  std::vector<float> merged(static_cast<size_t>(rows * m.merged()));
  for (int64_t head = 0; head < m.heads; ++head) {
    const auto project = [&](const std::vector<float>& matrix) {
      std::vector<float> y(static_cast<size_t>(rows * m.width));
      EXPECT_TRUE(linear({m.x.data(), {rows, m.embed}},
                         {matrix.data() + head * m.width * m.embed, {m.width, m.embed}}, {},
                         {y.data(), {rows, m.width}}, m.context)
                      .ok());
      return y;
    };
    const Dims shape{m.batch, 1, m.tokens, m.width};
    const std::vector<float> q = project(m.q), k = project(m.k), v = project(m.v);
    const Dims strides{m.tokens * m.merged(), 0, m.merged(), 1};
    ASSERT_TRUE(attention({q.data(), shape}, {k.data(), shape}, {v.data(), shape},
                          {.causal = Causal::top_left()},
                          {.out = {merged.data() + head * m.width, shape, strides}}, m.context)
                    .ok());
  }
  std::vector<float> expected(fused.size());
  ASSERT_TRUE(linear({merged.data(), {rows, m.merged()}}, m.weights().out_proj, {},
                     {expected.data(), {rows, m.embed}}, m.context)
                  .ok());
  for (size_t i = 0; i < fused.size(); ++i) ASSERT_NEAR(fused[i], expected[i], 1e-5F);
}

TEST(MultiHeadAttention, TraceNamesEveryStepWithItsShape) {
  Module m(2, 2, 5, 64, 8, 8);
  Trace trace;
  const std::vector<float> output = m.run({.causal = Causal::top_left()}, &trace);
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
      {"output", {2, 5, 64}},
  };
  ASSERT_EQ(trace.steps.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(trace.steps[i].name, expected[i].first);
    EXPECT_EQ(trace.steps[i].shape, expected[i].second);
  }
  EXPECT_EQ(trace.find("output")->values, output);
  EXPECT_EQ(trace.find("nothing"), nullptr);
}

TEST(MultiHeadAttention, TraceChangesNothing) {
  Module m(3, 1, 33, 48, 3, 16);
  Trace trace;
  EXPECT_EQ(m.run({}), m.run({}, &trace));
}

// Each step of a trace follows from the one before.
TEST(MultiHeadAttention, TraceIsConsistent) {
  Module m(4, 1, 9, 24, 3, 8);
  Trace trace;
  m.run({.causal = Causal::top_left()}, &trace);
  const auto& scores = trace.find("scores")->values;
  const auto& scaled = trace.find("scaled_scores")->values;
  const auto& masked = trace.find("masked_scores")->values;
  const auto& weights = trace.find("weights")->values;
  const auto& q = trace.find("q_heads")->values;
  const auto& k = trace.find("k_heads")->values;
  size_t cell = 0;
  for (int64_t h = 0; h < 3; ++h) {
    for (int64_t i = 0; i < 9; ++i) {
      double sum = 0;
      double exponentials = 0;
      for (int64_t j = 0; j < 9; ++j, ++cell) {
        double dot = 0;
        for (int64_t d = 0; d < 8; ++d) {
          dot += static_cast<double>(q[static_cast<size_t>((h * 9 + i) * 8 + d)]) *
                 static_cast<double>(k[static_cast<size_t>((h * 9 + j) * 8 + d)]);
        }
        EXPECT_NEAR(scores[cell], dot, 1e-5);
        // Divided by the square root of the head's width, not the model's.
        EXPECT_NEAR(scaled[cell], dot / std::sqrt(8.0), 1e-5);
        if (j <= i) {
          EXPECT_EQ(masked[cell], scaled[cell]);
          exponentials += std::exp(static_cast<double>(masked[cell]));
        } else {
          EXPECT_EQ(masked[cell], -std::numeric_limits<float>::infinity());
          EXPECT_EQ(weights[cell], 0.0F);
        }
        sum += static_cast<double>(weights[cell]);
      }
      EXPECT_NEAR(sum, 1.0, 1e-6);
      const size_t diagonal = cell - 9 + static_cast<size_t>(i);
      EXPECT_NEAR(weights[diagonal], std::exp(static_cast<double>(masked[diagonal])) / exponentials,
                  1e-6);
    }
  }
}

// Heads as wide as one likes: 6 tokens of 3, two heads of 2 concatenate to 6 x 4.
TEST(MultiHeadAttention, HeadsOfAnyWidthWithoutOutputProjection) {
  Module m(5, 1, 6, 3, 2, 2);
  MultiHeadAttentionWeights weights = m.weights();
  weights.out_proj = {};
  std::vector<float> output(6 * 4);
  ASSERT_TRUE(multi_head_attention(m.config(), weights, m.input(), {}, {output.data(), {1, 6, 4}},
                                   nullptr, m.context)
                  .ok());
}

TEST(MultiHeadAttention, RefusesHeadsThatDoNotDivide) {
  Module m(6, 1, 4, 64, 7, 9);
  std::vector<float> output(4 * 64, 42.0F);
  const Status status =
      multi_head_attention({.embed_dim = 64, .num_heads = 7}, m.weights(), m.input(), {},
                           {output.data(), {1, 4, 64}}, nullptr, m.context);
  EXPECT_EQ(status.code(), StatusCode::kOption);
  EXPECT_EQ(status.message(),
            "num_heads: expected a divisor of embed_dim = 64 (1, 2, 4, 8, 16, 32 or 64), got 7");
  EXPECT_EQ(output, std::vector<float>(output.size(), 42.0F));
}

TEST(MultiHeadAttention, RefusesShapesThatDoNotFit) {
  Module m(7, 2, 4, 16, 2, 8);
  std::vector<float> output(2 * 4 * 16, 42.0F);
  const Tensor good{output.data(), {2, 4, 16}};
  const auto argument = [&](const auto& change) {
    MultiHeadAttentionConfig config = m.config();
    MultiHeadAttentionWeights weights = m.weights();
    ConstTensor x = m.input();
    AttentionOptions options;
    Tensor out = good;
    change(config, weights, x, options, out);
    return multi_head_attention(config, weights, x, options, out, nullptr, m.context).argument();
  };
  using C = MultiHeadAttentionConfig;
  using W = MultiHeadAttentionWeights;
  EXPECT_EQ(argument([](C& c, W&, ConstTensor&, AttentionOptions&, Tensor&) { c.embed_dim = 0; }),
            "embed_dim");
  EXPECT_EQ(argument([](C& c, W&, ConstTensor&, AttentionOptions&, Tensor&) { c.num_heads = -1; }),
            "num_heads");
  EXPECT_EQ(argument([](C& c, W&, ConstTensor&, AttentionOptions&, Tensor&) { c.head_dim = -8; }),
            "head_dim");
  EXPECT_EQ(argument([](C&, W& w, ConstTensor&, AttentionOptions&, Tensor&) {
              w.k_proj.shape = {8, 16};
            }),
            "k_proj");
  EXPECT_EQ(argument([](C&, W& w, ConstTensor&, AttentionOptions&, Tensor&) { w.v_proj = {}; }),
            "v_proj");
  EXPECT_EQ(argument([&](C&, W& w, ConstTensor&, AttentionOptions&, Tensor&) {
              w.out_bias = {m.x.data(), {15}};
            }),
            "out_bias");
  EXPECT_EQ(argument([](C&, W&, ConstTensor& x, AttentionOptions&, Tensor&) {
              x = {x.data, {8, 16}};
            }),
            "x");
  EXPECT_EQ(argument([](C&, W&, ConstTensor& x, AttentionOptions&, Tensor&) {
              x.shape = {4, 2, 16};
              x.strides = {16, 64, 1};
            }),
            "output");
  EXPECT_EQ(argument([](C&, W&, ConstTensor&, AttentionOptions& o, Tensor&) {
              o.scale = std::numeric_limits<float>::quiet_NaN();
            }),
            "scale");
  EXPECT_EQ(argument([&](C&, W&, ConstTensor&, AttentionOptions& o, Tensor&) {
              o.bias = {m.x.data(), {3, 4}};
            }),
            "bias");
  EXPECT_EQ(output, std::vector<float>(output.size(), 42.0F));
  m.run({});
}

}  // namespace
}  // namespace multihead
