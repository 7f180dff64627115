// LatentModel attention as an option of the module: compares forward() with the definition in
// double, and step() (absorbed form) with forward() (expanded form). Also: invalid calls.
#include "nn/attention/latent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "multihead/transformer.h"
#include "support/closeness.h"
#include "support/random_module.h"
#include "support/special_values.h"

namespace multihead {
namespace {

using testing::largest_difference;
using testing::module_of;
using testing::Random;
using testing::sixteenths;

constexpr double kTolerance = 2e-5;

// A small configuration with DeepSeek's structure: head_dim = 6 + 4.
MultiHeadAttentionConfig small() {
  return {.embed_dim = 12,
          .num_heads = 3,
          .head_dim = 10,
          .bias = false,
          .kv_latent_dim = 8,
          .q_latent_dim = 7,
          .rope_head_dim = 4,
          .rope = {.style = Rope::Style::kInterleaved}};
}

struct LatentModel {
  MultiHeadAttention module;
  MultiHeadAttentionConfig c;
  std::map<std::string, std::vector<float>> values;
  StateDict dict;
  Context context{2};

  LatentModel(const MultiHeadAttentionConfig& config, uint64_t seed) {
    EXPECT_TRUE(MultiHeadAttention::create(config, module).ok());
    c = module.config();
    Random random(seed);
    const auto add = [&](const std::string& name, const Dims& shape) {
      const auto& numbers = values[name] = sixteenths(random, shape.elements());
      dict.emplace(name, ConstTensor(numbers.data(), shape));
    };
    const int64_t queries = c.num_heads * c.head_dim;
    if (c.q_latent_dim == 0) {
      add("q_proj.weight", {queries, c.embed_dim});
    } else {
      add("q_a_proj.weight", {c.q_latent_dim, c.embed_dim});
      if (c.bias) add("q_a_proj.bias", {c.q_latent_dim});
      add("q_a_layernorm.weight", {c.q_latent_dim});
      add("q_b_proj.weight", {queries, c.q_latent_dim});
    }
    add("kv_a_proj_with_mqa.weight", {c.kv_latent_dim + c.rope_head_dim, c.embed_dim});
    if (c.bias) add("kv_a_proj_with_mqa.bias", {c.kv_latent_dim + c.rope_head_dim});
    add("kv_a_layernorm.weight", {c.kv_latent_dim});
    add("kv_b_proj.weight",
        {c.num_heads * (c.head_dim - c.rope_head_dim + c.value_dim), c.kv_latent_dim});
    if (c.out_proj) add("o_proj.weight", {c.out_dim, c.num_heads * c.value_dim});
    if (c.out_proj && c.bias) add("o_proj.bias", {c.out_dim});
    if (c.sinks) add("sinks", {c.num_heads});
    const Status status = module.load_state_dict(dict);
    EXPECT_TRUE(status.ok()) << status.message();
  }
};

using Matrix = std::vector<std::vector<double>>;  // rows

Matrix rows_of(const std::vector<float>& values, int64_t first, int64_t rows, int64_t width) {
  Matrix matrix;
  for (int64_t row = first; row < first + rows; ++row) {
    matrix.emplace_back(values.begin() + row * width, values.begin() + (row + 1) * width);
  }
  return matrix;
}

std::vector<double> product(const LatentModel& m, const std::string& name,
                            const std::vector<double>& x) {
  const std::vector<float>& weight = m.values.at(name + ".weight");
  std::vector<double> y;
  for (size_t at = 0; at < weight.size(); at += x.size()) {
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += static_cast<double>(weight[at + i]) * x[i];
    y.push_back(sum);
  }
  const auto bias = m.values.find(name + ".bias");
  for (size_t o = 0; bias != m.values.end() && o < y.size(); ++o) {
    y[o] += static_cast<double>(bias->second[o]);
  }
  return y;
}

std::vector<double> normalized(const LatentModel& m, const std::string& name,
                               const std::vector<double>& x) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) +
                                      static_cast<double>(m.c.latent_norm_eps));
  std::vector<double> y;
  for (size_t i = 0; i < x.size(); ++i) {
    y.push_back(x[i] * factor * static_cast<double>(m.values.at(name + ".weight")[i]));
  }
  return y;
}

void rotate(const Rope& rope, int64_t position, std::vector<double>& x) {
  if (rope.style == Rope::Style::kNone) return;
  const size_t width = rope.rotary_dim == 0 ? x.size() : static_cast<size_t>(rope.rotary_dim);
  const size_t half = width / 2;
  for (size_t pair = 0; pair < half; ++pair) {
    const bool interleaved = rope.style == Rope::Style::kInterleaved;
    const size_t first = interleaved ? 2 * pair : pair;
    const size_t second = interleaved ? first + 1 : pair + half;
    const double angle =
        static_cast<double>(position) *
        std::pow(rope.base, -2.0 * static_cast<double>(pair) / static_cast<double>(width));
    const double a = x[first], b = x[second];
    x[first] = a * std::cos(angle) - b * std::sin(angle);
    x[second] = a * std::sin(angle) + b * std::cos(angle);
  }
}

std::vector<double> part(const std::vector<double>& x, int64_t first, int64_t count) {
  return {x.begin() + first, x.begin() + first + count};
}

// One batch entry by definition: query i and key i are at position i; `sees` returns true for
// visible pairs.
struct Expected {
  std::vector<double> out, weights;  // (N_q, out_dim), (H, N_q, N_k)
};
Expected expected_of(const LatentModel& m, const Matrix& query, const Matrix& key,
                     const std::function<bool(int64_t, int64_t)>& sees) {
  const MultiHeadAttentionConfig& c = m.c;
  const int64_t own = c.head_dim - c.rope_head_dim;
  const auto queries = static_cast<int64_t>(query.size()), keys = static_cast<int64_t>(key.size());
  Matrix made_q, made_kv, shared;
  for (int64_t i = 0; i < queries; ++i) {
    const std::vector<double>& x = query[static_cast<size_t>(i)];
    made_q.push_back(
        c.q_latent_dim == 0
            ? product(m, "q_proj", x)
            : product(m, "q_b_proj", normalized(m, "q_a_layernorm", product(m, "q_a_proj", x))));
  }
  for (int64_t j = 0; j < keys; ++j) {
    const std::vector<double> both = product(m, "kv_a_proj_with_mqa", key[static_cast<size_t>(j)]);
    shared.push_back(part(both, c.kv_latent_dim, c.rope_head_dim));
    rotate(c.rope, j, shared.back());
    made_kv.push_back(
        product(m, "kv_b_proj", normalized(m, "kv_a_layernorm", part(both, 0, c.kv_latent_dim))));
  }
  Expected expected;
  Matrix merged(query.size());
  for (int64_t h = 0; h < c.num_heads; ++h) {
    for (int64_t i = 0; i < queries; ++i) {
      const std::vector<double>& all = made_q[static_cast<size_t>(i)];
      std::vector<double> q = part(all, h * c.head_dim, own);
      std::vector<double> turned = part(all, h * c.head_dim + own, c.rope_head_dim);
      rotate(c.rope, i, turned);
      q.insert(q.end(), turned.begin(), turned.end());
      const double sink =
          c.sinks ? std::exp(static_cast<double>(m.values.at("sinks")[static_cast<size_t>(h)]))
                  : 0.0;
      std::vector<double> weights;
      double sum = sink;
      for (int64_t j = 0; j < keys; ++j) {
        std::vector<double> k = part(made_kv[static_cast<size_t>(j)], h * (own + c.value_dim), own);
        k.insert(k.end(), shared[static_cast<size_t>(j)].begin(),
                 shared[static_cast<size_t>(j)].end());
        double score = 0;
        for (size_t d = 0; d < k.size(); ++d) score += q[d] * k[d];
        weights.push_back(sees(i, j) ? std::exp(score / std::sqrt(static_cast<double>(c.head_dim)))
                                     : 0.0);
        sum += weights.back();
      }
      std::vector<double> out(static_cast<size_t>(c.value_dim));
      for (int64_t j = 0; j < keys; ++j) {
        double& weight = weights[static_cast<size_t>(j)];
        if (weight != 0) weight /= sum;
        const double* const value =
            made_kv[static_cast<size_t>(j)].data() + h * (own + c.value_dim) + own;
        for (size_t d = 0; d < out.size(); ++d) out[d] += weight * value[d];
      }
      expected.weights.insert(expected.weights.end(), weights.begin(), weights.end());
      std::vector<double>& row = merged[static_cast<size_t>(i)];
      row.insert(row.end(), out.begin(), out.end());
    }
  }
  for (const std::vector<double>& row : merged) {
    const std::vector<double> out = c.out_proj ? product(m, "o_proj", row) : row;
    expected.out.insert(expected.out.end(), out.begin(), out.end());
  }
  return expected;
}

MultiHeadAttentionConfig random_latent_config(Random& random) {
  MultiHeadAttentionConfig config;
  config.embed_dim = random.integer(2, 20);
  config.num_heads = random.integer(1, 4);
  config.rope_head_dim = random.chance(0.2) ? 0 : 2 * random.integer(1, 4);
  config.head_dim = config.rope_head_dim + random.integer(1, 9);
  config.kv_latent_dim = random.integer(1, 17);
  if (random.chance(0.5)) config.q_latent_dim = random.integer(1, 13);
  if (random.chance(0.5)) config.value_dim = random.integer(1, 11);
  if (random.chance(0.3)) config.out_dim = random.integer(1, 9);
  config.bias = random.chance(0.5);
  config.sinks = random.chance(0.3);
  if (random.chance(0.2)) config.out_proj = false;
  if (random.chance(0.3)) config.window.left = random.integer(0, 4);
  if (config.rope_head_dim > 0 && random.chance(0.8)) {
    config.rope.style = random.chance(0.5) ? Rope::Style::kInterleaved : Rope::Style::kHalf;
    if (random.chance(0.2)) config.rope.rotary_dim = 2;
  }
  return config;
}

TEST(LatentModule, ForwardEqualsItsDefinition) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    MultiHeadAttentionConfig config = random_latent_config(random);
    config.batch_first = random.chance(0.7);
    LatentModel m(config, seed + 1000);
    const int64_t batch = random.integer(1, 3), queries = random.integer(0, 9);
    const bool self = random.chance(0.6), causal = random.chance(0.5);
    const int64_t keys = self ? queries : random.integer(0, 9), width = config.embed_dim;
    const std::vector<float> query = sixteenths(random, batch * queries * width);
    const std::vector<float> key = self ? query : sixteenths(random, batch * keys * width);
    const auto view = [&](auto* data, int64_t tokens, int64_t of_width) {
      using View = TensorView<std::remove_pointer_t<decltype(data)>>;
      if (config.batch_first) return View(data, {batch, tokens, of_width});
      return View(data, {tokens, batch, of_width}, {of_width, tokens * of_width, 1});
    };
    std::vector<float> out(static_cast<size_t>(batch * queries * m.c.out_dim), kUntouched);
    const Dims scores{batch, m.c.num_heads, queries, keys};
    std::vector<float> weights(static_cast<size_t>(scores.elements()), kUntouched);
    MultiHeadAttentionInputs inputs{.query = view(query.data(), queries, width)};
    if (!self) inputs.key = view(key.data(), keys, width);
    const Status status = m.module.forward(
        inputs, {.attention = {.causal = causal ? Causal::top_left() : Causal{}}},
        {.out = view(out.data(), queries, m.c.out_dim), .weights = {weights.data(), scores}},
        nullptr, m.context);
    ASSERT_TRUE(status.ok()) << status.message();
    Expected expected;
    for (int64_t b = 0; b < batch; ++b) {
      const Expected of_entry = expected_of(
          m, rows_of(query, b * queries, queries, width), rows_of(key, b * keys, keys, width),
          [&](int64_t i, int64_t j) {
            return (!causal || j <= i) && (config.window.left < 0 || j >= i - config.window.left);
          });
      expected.out.insert(expected.out.end(), of_entry.out.begin(), of_entry.out.end());
      expected.weights.insert(expected.weights.end(), of_entry.weights.begin(),
                              of_entry.weights.end());
    }
    EXPECT_LE(largest_difference(out, expected.out), kTolerance);
    EXPECT_LE(largest_difference(weights, expected.weights), kTolerance);
  }
}

// LatentSteps through one causal sequence.
struct LatentSteps : LatentModel {
  int64_t batch = 2, tokens = 11;
  std::vector<float> x;

  LatentSteps(const MultiHeadAttentionConfig& config, uint64_t seed) : LatentModel(config, seed) {
    Random random(seed + 1);
    x = sixteenths(random, batch * tokens * c.embed_dim);
  }
  std::vector<float> one_pass(std::vector<float>* weights = nullptr, Trace* trace = nullptr) {
    std::vector<float> out(static_cast<size_t>(batch * tokens * c.out_dim));
    MultiHeadAttentionOutputs outputs{.out = {out.data(), {batch, tokens, c.out_dim}}};
    if (weights != nullptr) {
      const Dims shape{batch, c.num_heads, tokens, tokens};
      weights->resize(static_cast<size_t>(shape.elements()));
      outputs.weights = {weights->data(), shape};
    }
    const Status status =
        module.forward({.query = {x.data(), {batch, tokens, c.embed_dim}}},
                       {.attention = {.causal = Causal::top_left()}}, outputs, trace, context);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }
  Status step(int64_t first, int64_t count, MultiHeadAttentionCache& cache, std::vector<float>& out,
              Trace* trace = nullptr, const MultiHeadAttentionOptions& options = {}) {
    return module.step({x.data() + first * c.embed_dim,
                        {batch, count, c.embed_dim},
                        {tokens * c.embed_dim, c.embed_dim, 1}},
                       options,
                       {.out = {out.data() + first * c.out_dim,
                                {batch, count, c.out_dim},
                                {tokens * c.out_dim, c.out_dim, 1}}},
                       cache, trace, context);
  }
};

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  return testing::largest_difference(a, std::vector<double>(b.begin(), b.end()));
}

TEST(LatentModule, AbsorbedStepsEqualTheExpandedForward) {
  using Layout = KVCacheConfig::Layout;
  using Type = KVCacheConfig::Type;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    LatentSteps s(random_latent_config(random), seed + 2000);
    KVCacheConfig kept{.batch = s.batch, .capacity = s.tokens};
    int64_t most = s.tokens;
    double tolerance = kTolerance;
    if (random.chance(0.3)) {
      kept.layout = Layout::kPaged;
      kept.page_size = 3;
    } else if (s.c.window.left >= 0) {
      kept.layout = Layout::kRing;
      kept.capacity = s.c.window.left + random.integer(1, 3);
      most = kept.capacity - s.c.window.left;
    }
    if (random.chance(0.2)) {
      // f16 latents have a relative error of 2^-11, which grows to at most 0.004 in the outputs.
      kept.type = Type::kF16;
      tolerance = 0.01;
    }
    MultiHeadAttentionCache cache;
    const Status created = s.module.create_cache(kept, cache);
    ASSERT_TRUE(created.ok()) << created.message();
    const std::vector<float> expected = s.one_pass();
    std::vector<float> out(expected.size(), kUntouched);
    for (int64_t first = 0; first < s.tokens;) {
      const int64_t count = random.integer(1, std::min(most, s.tokens - first));
      const Status status = s.step(first, count, cache, out);
      ASSERT_TRUE(status.ok()) << status.message();
      first += count;
      ASSERT_EQ(cache.length(), first);
    }
    EXPECT_LE(largest_difference(out, expected), tolerance);
  }
}

// The purpose of MLA: rank + rope numbers per token, for any number of heads.
TEST(LatentModule, CachesKeepTheLatentAlone) {
  const LatentModel m(small(), 1);
  MultiHeadAttentionCache cache;
  ASSERT_TRUE(m.module.create_cache({.batch = 2, .capacity = 1000}, cache).ok());
  const KVCacheConfig& kept = cache.kv().config();
  EXPECT_EQ(kept.num_kv_heads, 1);
  EXPECT_EQ(kept.head_dim, 8 + 4);
  EXPECT_EQ(kept.value_dim, 8);
  EXPECT_TRUE(kept.values_in_keys);
  EXPECT_LT(cache.kv().bytes(), 2 * 1000 * (8 + 4) * 4 + 1000);
}

TEST(LatentModule, StepsTruncateAndTakeHeadInterventions) {
  LatentSteps s(small(), 3);
  MultiHeadAttentionCache cache;
  ASSERT_TRUE(s.module.create_cache({.batch = 2, .capacity = 11}, cache).ok());
  const std::vector<float> expected = s.one_pass();
  std::vector<float> out(expected.size()), ignored(expected.size());
  ASSERT_TRUE(s.step(0, 4, cache, out).ok());
  ASSERT_TRUE(s.step(1, 7, cache, ignored).ok());
  ASSERT_TRUE(cache.truncate(4).ok());
  ASSERT_TRUE(s.step(4, 7, cache, out).ok());
  EXPECT_LE(largest_difference(out, expected), kTolerance);
  // All heads are muted and there are no biases, so the output is 0.
  const std::vector<float> muted{0.0F, 0.0F, 0.0F};
  ASSERT_TRUE(cache.truncate(4).ok());
  ASSERT_TRUE(s.step(4, 7, cache, out, nullptr, {.heads = {.head_scales = muted}}).ok());
  EXPECT_EQ(out[static_cast<size_t>(4 * s.c.out_dim)], 0.0F);
}

TEST(LatentModule, WeightsOfAStepAreThoseOfTheForward) {
  LatentSteps s(small(), 4);
  std::vector<float> all;
  s.one_pass(&all);
  MultiHeadAttentionCache cache;
  ASSERT_TRUE(s.module.create_cache({.batch = 2, .capacity = 11}, cache).ok());
  std::vector<float> out(static_cast<size_t>(2 * 11 * 12)), weights(2 * 3 * 11), mean(2 * 11);
  ASSERT_TRUE(s.step(0, 10, cache, out).ok());
  ASSERT_TRUE(s.module
                  .step({s.x.data() + 10 * 12, {2, 1, 12}, {11 * 12, 12, 1}}, {},
                        {.out = {out.data(), {2, 1, 12}},
                         .weights = {weights.data(), {2, 3, 1, 11}},
                         .mean_weights = {mean.data(), {2, 1, 11}}},
                        cache, nullptr, s.context)
                  .ok());
  for (size_t b = 0; b < 2; ++b) {
    for (size_t j = 0; j < 11; ++j) {
      float sum = 0;
      for (size_t h = 0; h < 3; ++h) {
        const float weight = weights[(b * 3 + h) * 11 + j];
        EXPECT_NEAR(weight, all[((b * 3 + h) * 11 + 10) * 11 + j], 1e-5F);
        sum += weight;
      }
      EXPECT_NEAR(mean[b * 11 + j], sum / 3, 1e-6F);
    }
  }
}

// scores = q_heads k_heads^T in both forms.
void expect_scores(const Trace& trace, size_t batch, size_t heads, size_t kv_heads, size_t queries,
                   size_t keys, size_t width, const std::vector<float>& k) {
  const TraceValues &q = trace.find("q_heads")->values, &scores = trace.find("scores")->values;
  ASSERT_EQ(q.size(), batch * heads * queries * width);
  ASSERT_EQ(scores.size(), batch * heads * queries * keys);
  for (size_t row = 0; row < batch * heads * queries; ++row) {
    const size_t head = row / queries,
                 of_k = head / heads * kv_heads + head % heads / (heads / kv_heads);
    for (size_t j = 0; j < keys; ++j) {
      double sum = 0;
      for (size_t d = 0; d < width; ++d) {
        sum += static_cast<double>(q[row * width + d]) *
               static_cast<double>(k[(of_k * keys + j) * width + d]);
      }
      EXPECT_NEAR(scores[row * keys + j], sum, 1e-4) << row << ' ' << j;
    }
  }
}

TEST(LatentModule, TracesTheExpandedForward) {
  LatentSteps s(small(), 5);
  Trace trace;
  const std::vector<float> out = s.one_pass(nullptr, &trace);
  EXPECT_EQ(out, s.one_pass());
  const std::vector<std::pair<std::string, Dims>> expected{{"x", {2, 11, 12}},
                                                           {"q_latent", {2, 11, 7}},
                                                           {"kv_latent", {2, 11, 8}},
                                                           {"k_rope", {2, 11, 4}},
                                                           {"q", {2, 11, 30}},
                                                           {"k", {2, 11, 30}},
                                                           {"v", {2, 11, 18}},
                                                           {"q_heads", {2, 3, 11, 10}},
                                                           {"k_heads", {2, 3, 11, 10}},
                                                           {"v_heads", {2, 3, 11, 6}},
                                                           {"scores", {2, 3, 11, 11}},
                                                           {"scaled_scores", {2, 3, 11, 11}},
                                                           {"masked_scores", {2, 3, 11, 11}},
                                                           {"weights", {2, 3, 11, 11}},
                                                           {"heads_out", {2, 3, 11, 6}},
                                                           {"merged", {2, 11, 18}},
                                                           {"per_head_output", {2, 3, 11, 12}},
                                                           {"output", {2, 11, 12}}};
  ASSERT_EQ(trace.steps.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(trace.steps[i].name, expected[i].first);
    EXPECT_EQ(trace.steps[i].shape, expected[i].second) << expected[i].first;
  }
  expect_scores(trace, 2, 3, 3, 11, 11, 10, testing::vector_of(trace.find("k_heads")->values));
  // Before RoPE, the shared part is at the end of each head's key.
  const auto &shared = trace.find("k_rope")->values, &keys = trace.find("k")->values;
  for (size_t token = 0; token < 22; ++token) {
    for (size_t h = 0; h < 3; ++h) {
      for (size_t d = 0; d < 4; ++d) {
        ASSERT_EQ(keys[token * 30 + h * 10 + 6 + d], shared[token * 4 + d]);
      }
    }
  }
}

TEST(LatentModule, TracesTheAbsorbedStep) {
  LatentSteps s(small(), 6);
  Trace whole;
  s.one_pass(nullptr, &whole);
  MultiHeadAttentionCache cache;
  ASSERT_TRUE(s.module.create_cache({.batch = 2, .capacity = 11}, cache).ok());
  std::vector<float> out(static_cast<size_t>(2 * 11 * 12)), plain = out;
  ASSERT_TRUE(s.step(0, 11, cache, plain).ok());
  ASSERT_TRUE(cache.truncate(0).ok());
  Trace trace;
  ASSERT_TRUE(s.step(0, 11, cache, out, &trace).ok());
  EXPECT_EQ(out, plain);
  EXPECT_EQ(trace.find("k"), nullptr);
  EXPECT_EQ(trace.find("v"), nullptr);
  EXPECT_EQ(trace.find("q_heads")->shape, (Dims{2, 3, 11, 12}));
  EXPECT_EQ(trace.find("k_heads")->shape, (Dims{2, 1, 11, 12}));
  EXPECT_EQ(trace.find("v_heads")->shape, (Dims{2, 1, 11, 8}));
  EXPECT_EQ(trace.find("latent_out")->shape, (Dims{2, 3, 11, 8}));
  expect_scores(trace, 2, 3, 1, 11, 11, 12, testing::vector_of(trace.find("k_heads")->values));
  for (const char* name : {"x", "q_latent", "kv_latent", "k_rope", "q"}) {
    EXPECT_EQ(testing::vector_of(trace.find(name)->values),
              testing::vector_of(whole.find(name)->values))
        << name;
  }
  for (const char* name : {"weights", "heads_out", "merged", "per_head_output", "output"}) {
    EXPECT_LE(largest_difference(testing::vector_of(trace.find(name)->values),
                                 testing::vector_of(whole.find(name)->values)),
              kTolerance)
        << name;
  }
  for (const TraceStep& step : trace.steps) {
    Trace one{.wanted = {step.name}};
    ASSERT_TRUE(cache.truncate(0).ok());
    ASSERT_TRUE(s.step(0, 11, cache, out, &one).ok());
    ASSERT_EQ(one.steps.size(), 1U) << step.name;
    EXPECT_EQ(testing::vector_of(one.steps[0].values), testing::vector_of(step.values))
        << step.name;
  }
}

TEST(LatentModule, StateDictsHaveTheNamesOfDeepSeek) {
  using Names = std::set<std::string>;
  const auto names = [](const MultiHeadAttentionConfig& config) {
    const LatentModel m(config, 7);
    StateDict dict;
    EXPECT_TRUE(m.module.state_dict(dict).ok());
    Names found;
    for (const auto& [name, tensor] : dict) {
      found.insert(name);
      const auto* const data = static_cast<const float*>(tensor.data);
      const auto& values = m.values.at(name);
      EXPECT_EQ(std::vector<float>(data, data + values.size()), values) << name;
    }
    return found;
  };
  MultiHeadAttentionConfig config = small();
  EXPECT_EQ(names(config), (Names{"q_a_proj.weight", "q_a_layernorm.weight", "q_b_proj.weight",
                                  "kv_a_proj_with_mqa.weight", "kv_a_layernorm.weight",
                                  "kv_b_proj.weight", "o_proj.weight"}));
  config.bias = config.sinks = true;
  config.q_latent_dim = 0;
  EXPECT_EQ(names(config), (Names{"q_proj.weight", "kv_a_proj_with_mqa.weight",
                                  "kv_a_proj_with_mqa.bias", "kv_a_layernorm.weight",
                                  "kv_b_proj.weight", "o_proj.weight", "o_proj.bias", "sinks"}));
  // The parameters of another model: one message names all differences; the weights are unchanged.
  LatentModel m(small(), 8);
  StateDict broken = m.dict;
  broken.erase("kv_b_proj.weight");
  broken["in_proj_weight"] = broken["q_b_proj.weight"];
  const Status status = m.module.load_state_dict(broken);
  EXPECT_EQ(status.code(), StatusCode::kShape);
  EXPECT_EQ(status.message(),
            "state_dict: expected the 7 parameters of this module, got missing: kv_b_proj.weight "
            "(36, 8); unexpected: in_proj_weight");
  EXPECT_TRUE(m.module.state_dict(broken).ok());
  EXPECT_TRUE(broken.contains("kv_b_proj.weight"));
}

TEST(LatentModule, TakesViewsAndKnowsNewOnesInSteps) {
  LatentSteps s(small(), 9);
  const MultiHeadAttention owner = s.module;
  const MultiHeadAttentionWeights weights = owner.weights();
  MultiHeadAttentionCache cache;
  ASSERT_TRUE(s.module.create_cache({.batch = 2, .capacity = 11}, cache).ok());
  std::vector<float> doubled = s.values.at("kv_b_proj.weight");
  for (float& value : doubled) value *= 2;
  MultiHeadAttentionWeights changed = weights;
  changed.kv_b_proj = {doubled.data(), weights.kv_b_proj.shape};
  ASSERT_TRUE(s.module.use_weights(changed).ok());
  std::vector<float> out(static_cast<size_t>(2 * 11 * 12));
  ASSERT_TRUE(s.step(0, 11, cache, out).ok());
  EXPECT_LE(largest_difference(out, s.one_pass()), kTolerance);
  // Without gains the norms have gain 1.
  changed.q_a_norm = changed.kv_a_norm = {};
  ASSERT_TRUE(s.module.use_weights(changed).ok());
  ASSERT_TRUE(cache.truncate(0).ok());
  ASSERT_TRUE(s.step(0, 11, cache, out).ok());
  EXPECT_LE(largest_difference(out, s.one_pass()), kTolerance);

  using W = MultiHeadAttentionWeights;
  const auto argument = [&](const std::function<void(W&)>& change) {
    W wrong = weights;
    change(wrong);
    return s.module.use_weights(wrong).argument();
  };
  EXPECT_EQ(argument([](W& w) { w.kv_b_proj = {}; }), "kv_b_proj");
  EXPECT_EQ(argument([](W& w) { w.kv_a_proj.shape = {1, 1}; }), "kv_a_proj");
  EXPECT_EQ(argument([](W& w) { w.q_b_proj = w.q_a_proj; }), "q_b_proj");
  EXPECT_EQ(argument([](W& w) { w.q_a_norm.shape = {6}; }), "q_a_norm");
  EXPECT_EQ(argument([](W& w) { w.q_proj = w.q_b_proj; }), "q_proj");
  EXPECT_EQ(argument([](W& w) { w.k_proj = w.q_b_proj; }), "k_proj");
  EXPECT_EQ(argument([](W& w) { w.v_bias = w.q_a_norm; }), "v_bias");
  EXPECT_EQ(argument([](W&) {}), "");
  const MultiHeadAttention plain = [] {
    MultiHeadAttention module;
    EXPECT_TRUE(MultiHeadAttention::create({.embed_dim = 4, .num_heads = 2}, module).ok());
    return module;
  }();
  MultiHeadAttention other = plain;
  EXPECT_EQ(other.use_weights(weights).argument(), "q_proj");
}

TEST(LatentModule, RefusesConfigsThatContradict) {
  using Config = MultiHeadAttentionConfig;
  const auto refused = [](const std::function<void(Config&)>& change) {
    Config config = small();
    change(config);
    MultiHeadAttention module;
    const Status status = MultiHeadAttention::create(config, module);
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kOption) << status.message();
    return status.argument();
  };
  EXPECT_EQ(refused([](Config&) {}), "");
  EXPECT_EQ(refused([](Config& c) { c.kv_latent_dim = -1; }), "kv_latent_dim");
  EXPECT_EQ(refused([](Config& c) { c.q_latent_dim = -1; }), "q_latent_dim");
  EXPECT_EQ(refused([](Config& c) { c.rope_head_dim = -2; }), "rope_head_dim");
  EXPECT_EQ(refused([](Config& c) { c.rope_head_dim = 10; }), "rope_head_dim");
  EXPECT_EQ(refused([](Config& c) { c.num_kv_heads = 1; }), "num_kv_heads");
  EXPECT_EQ(refused([](Config& c) { c.kdim = 5; }), "kdim");
  EXPECT_EQ(refused([](Config& c) { c.vdim = 5; }), "vdim");
  EXPECT_EQ(refused([](Config& c) { c.add_bias_kv = true; }), "add_bias_kv");
  EXPECT_EQ(refused([](Config& c) { c.add_zero_attn = true; }), "add_zero_attn");
  EXPECT_EQ(refused([](Config& c) { c.qk_norm = true; }), "qk_norm");
  EXPECT_EQ(refused([](Config& c) { c.latent_norm_eps = -1.0F; }), "latent_norm_eps");
  EXPECT_EQ(refused([](Config& c) { c.latent_norm_eps = NAN; }), "latent_norm_eps");
  EXPECT_EQ(refused([](Config& c) { c.rope_head_dim = 0; }), "rope");
  EXPECT_EQ(refused([](Config& c) { c.rope.rotary_dim = 6; }), "rope.rotary_dim");
  EXPECT_EQ(refused([](Config& c) { c.rope_head_dim = 3; }), "rope.rotary_dim");
  EXPECT_EQ(refused([](Config& c) { c.kv_latent_dim = 0; }), "q_latent_dim");
  EXPECT_EQ(refused([](Config& c) { c.kv_latent_dim = c.q_latent_dim = 0; }), "rope_head_dim");
}

TEST(LatentModule, RefusesCallsThatContradictAndWritesNothing) {
  LatentSteps s(small(), 10);
  std::vector<float> out(s.x.size(), kUntouched);
  const std::vector<float> before = out;
  const Dims shape{2, 11, 12};
  const ConstTensor x{s.x.data(), shape}, copy{before.data(), shape};
  const auto refused = [&](const MultiHeadAttentionInputs& inputs,
                           const MultiHeadAttentionOptions& options) {
    const Status status =
        s.module.forward(inputs, options, {.out = {out.data(), shape}}, nullptr, s.context);
    EXPECT_EQ(out, before);
    return status.argument();
  };
  EXPECT_EQ(refused({.query = x, .key = x, .value = copy}, {}), "value");
  EXPECT_EQ(refused({.query = x}, {.attention = {.qk_norm = {.enabled = true}}}), "qk_norm");
  EXPECT_EQ(refused({.query = x},
                    {.attention = {.rope = {.style = Rope::Style::kHalf, .rotary_dim = 6}}}),
            "rope.rotary_dim");
  MultiHeadAttentionConfig without = small();
  without.rope_head_dim = 0;
  without.rope = {};
  LatentSteps plain(without, 11);
  EXPECT_EQ(plain.module
                .forward({.query = x}, {.attention = {.rope = {.style = Rope::Style::kHalf}}},
                         {.out = {out.data(), shape}}, nullptr, s.context)
                .argument(),
            "rope");
  MultiHeadAttentionCache cache;
  ASSERT_TRUE(s.module.create_cache({.batch = 2, .capacity = 4}, cache).ok());
  ASSERT_TRUE(s.step(0, 3, cache, out).ok());
  out = before;
  EXPECT_EQ(s.step(3, 2, cache, out).argument(), "x");
  EXPECT_EQ(
      s.step(3, 1, cache, out, nullptr, {.attention = {.qk_norm = {.enabled = true}}}).argument(),
      "qk_norm");
  EXPECT_EQ(cache.length(), 3);
  EXPECT_EQ(out, before);
  MultiHeadAttention none;
  ASSERT_TRUE(MultiHeadAttention::create(small(), none).ok());
  EXPECT_EQ(
      none.forward({.query = x}, {}, {.out = {out.data(), shape}}, nullptr, s.context).argument(),
      "module");
}

// A transformer like DeepSeek's: pre-norm with RMS norms, SwiGLU.
TEST(LatentModule, TransformerStepsEqualTheForward) {
  const TransformerConfig config{.block = {.attention = small(),
                                           .mlp_dim = 20,
                                           .activation = Activation::kSilu,
                                           .gated = true,
                                           .mlp_bias = false,
                                           .norm = Norm::kRmsNorm},
                                 .num_layers = 2,
                                 .vocab_size = 13};
  Transformer model;
  ASSERT_TRUE(Transformer::create(config, model).ok());
  Random random(12);
  std::map<std::string, std::vector<float>> values;
  StateDict dict;
  const auto add = [&](const std::string& name, const Dims& shape) {
    const auto& numbers = values[name] = sixteenths(random, shape.elements());
    dict.emplace(name, ConstTensor(numbers.data(), shape));
  };
  add("embedding.weight", {13, 12});
  add("output.weight", {13, 12});
  add("norm.weight", {12});
  const LatentModel attention(small(), 13);
  for (const char* layer : {"layers.0.", "layers.1."}) {
    const std::string prefix = layer;
    add(prefix + "norm1.weight", {12});
    add(prefix + "norm2.weight", {12});
    add(prefix + "linear1.weight", {20, 12});
    add(prefix + "linear_gate.weight", {20, 12});
    add(prefix + "linear2.weight", {12, 20});
    for (const auto& [name, tensor] : attention.dict) dict[prefix + "self_attn." + name] = tensor;
  }
  const Status loaded = model.load_state_dict(dict);
  ASSERT_TRUE(loaded.ok()) << loaded.message();
  const std::vector<int32_t> tokens{3, 1, 12, 0, 7, 7, 2};
  std::vector<float> expected(7 * 13), logits(7 * 13);
  Context context(2);
  ASSERT_TRUE(
      model.forward(tokens, 1, {}, {.logits = {expected.data(), {1, 7, 13}}}, context).ok());
  TransformerCache cache;
  ASSERT_TRUE(model.create_cache({.batch = 1, .capacity = 7}, cache).ok());
  for (size_t n = 0; n < tokens.size(); ++n) {
    ASSERT_TRUE(model
                    .step({&tokens[n], 1}, {}, {.logits = {logits.data() + n * 13, {1, 1, 13}}},
                          cache, context)
                    .ok());
  }
  EXPECT_LE(largest_difference(logits, expected), 2e-4);
  EXPECT_EQ(model.load_state_dict(dict, ParameterNames::kGpt2).argument(), "names");
  TransformerBlock block;
  ASSERT_TRUE(TransformerBlock::create(config.block, block).ok());
  EXPECT_EQ(block.load_state_dict(dict, ParameterNames::kGpt2).argument(), "names");
}

}  // namespace
}  // namespace multihead
