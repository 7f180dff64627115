// Compares step() over a cache, token by token, with the rows of one causal forward pass.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "support/random_module.h"
#include "support/special_values.h"

namespace multihead {
namespace {

using testing::module_of;
using testing::Random;
using testing::random_parameters;
using testing::sixteenths;

struct ModuleSteps {
  int64_t batch = 2, tokens = 12;
  MultiHeadAttentionConfig config;
  MultiHeadAttention module;
  std::vector<float> x;
  Context context{2};

  ModuleSteps(const MultiHeadAttentionConfig& config_, uint64_t seed) : config(config_) {
    Random random(seed);
    module = module_of(config, random_parameters(config, random).dict);
    x = sixteenths(random, batch * tokens * config.embed_dim);
  }
  std::vector<float> one_pass(int64_t count) {
    std::vector<float> out(static_cast<size_t>(batch * count * config.embed_dim));
    std::vector<float> in;
    for (int64_t b = 0; b < batch; ++b) {
      const auto row = x.begin() + b * tokens * config.embed_dim;
      in.insert(in.end(), row, row + count * config.embed_dim);
    }
    const Dims shape{batch, count, config.embed_dim};
    const Status status =
        module.forward({.query = {in.data(), shape}}, {.attention = {.causal = Causal::top_left()}},
                       {.out = {out.data(), shape}}, nullptr, context);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }
  // Steps over tokens first .. first + count - 1; x and out are parts of longer tensors.
  Status step(int64_t first, int64_t count, MultiHeadAttentionCache& cache, std::vector<float>& out,
              Trace* trace = nullptr) {
    const Dims shape{batch, count, config.embed_dim};
    const Dims strides{tokens * config.embed_dim, config.embed_dim, 1};
    const int64_t at = first * config.embed_dim;
    return module.step({x.data() + at, shape, strides}, {},
                       {.out = {out.data() + at, shape, strides}}, cache, trace, context);
  }
  void expect_one_pass(const std::vector<float>& got) {
    const std::vector<float> expected = one_pass(tokens);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 2e-5F) << i;
  }
};

MultiHeadAttentionConfig random_step_config(Random& random) {
  MultiHeadAttentionConfig config;
  config.num_kv_heads = random.integer(1, 2);
  config.num_heads = config.num_kv_heads * random.integer(1, 3);
  config.head_dim = 2 * random.integer(1, 5);
  config.embed_dim = random.integer(2, 20);
  config.out_dim = 0;
  if (random.chance(0.3)) config.value_dim = random.integer(1, 7);
  config.bias = random.chance(0.5);
  config.sinks = random.chance(0.3);
  config.qk_norm = random.chance(0.3);
  if (random.chance(0.5)) config.rope.style = Rope::Style::kInterleaved;
  if (random.chance(0.5)) config.window.left = random.integer(0, 4);
  return config;
}

TEST(ModuleStep, EqualsTheOnePassForward) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    ModuleSteps s(random_step_config(random), seed + 1000);
    KVCacheConfig kept{.batch = s.batch, .capacity = s.tokens};
    int64_t most = s.tokens;
    if (random.chance(0.3)) {
      kept.layout = KVCacheConfig::Layout::kPaged;
      kept.page_size = 5;
    } else if (s.config.window.left >= 0) {
      kept.layout = KVCacheConfig::Layout::kRing;
      kept.capacity = s.config.window.left + random.integer(1, 3);
      most = kept.capacity - s.config.window.left;
    }
    MultiHeadAttentionCache cache;
    const Status created = s.module.create_cache(kept, cache);
    ASSERT_TRUE(created.ok()) << created.message();
    std::vector<float> out(s.x.size());
    for (int64_t first = 0; first < s.tokens;) {
      const int64_t count = random.integer(1, std::min(most, s.tokens - first));
      const Status status = s.step(first, count, cache, out);
      ASSERT_TRUE(status.ok()) << status.message();
      first += count;
      ASSERT_EQ(cache.length(), first);
    }
    s.expect_one_pass(out);
  }
}

TEST(ModuleStep, TruncatesAndGoesOn) {
  ModuleSteps s({.embed_dim = 12, .num_heads = 3, .rope = {.style = Rope::Style::kHalf}}, 1);
  MultiHeadAttentionCache cache;
  ASSERT_TRUE(s.module.create_cache({.batch = 2, .capacity = 12}, cache).ok());
  std::vector<float> out(s.x.size());
  ASSERT_TRUE(s.step(0, 5, cache, out).ok());
  // Appends other tokens and truncates them again.
  std::vector<float> ignored(s.x.size());
  ASSERT_TRUE(s.step(2, 7, cache, ignored).ok());
  EXPECT_EQ(cache.truncate(13).argument(), "length");
  EXPECT_EQ(cache.truncate(-1).argument(), "length");
  EXPECT_EQ(cache.length(), 12);
  ASSERT_TRUE(cache.truncate(5).ok());
  ASSERT_TRUE(s.step(5, 7, cache, out).ok());
  s.expect_one_pass(out);
}

// A step that is refused must not append: new tokens overwrite old ones.
TEST(ModuleStep, RefusesAWindowOfOverwrittenTokensAndLeavesTheRing) {
  ModuleSteps s({.embed_dim = 12, .num_heads = 3, .window = {.left = 3}}, 1);
  const KVCacheConfig ring{.batch = 2, .capacity = 6, .layout = KVCacheConfig::Layout::kRing};
  MultiHeadAttentionCache cache;
  ASSERT_TRUE(s.module.create_cache(ring, cache).ok());
  std::vector<float> out(s.x.size());
  for (int64_t first = 0; first < 9; first += 3) ASSERT_TRUE(s.step(first, 3, cache, out).ok());
  EXPECT_EQ(s.step(9, 4, cache, out).argument(), "x");
  EXPECT_EQ(cache.length(), 9);
  EXPECT_EQ(cache.kv().first_kept(0), 3);
  ASSERT_TRUE(s.step(9, 3, cache, out).ok());
  s.expect_one_pass(out);
  // Token 8 sees tokens 5 to 8, and the ring keeps 6 to 8.
  ASSERT_TRUE(cache.truncate(8).ok());
  EXPECT_EQ(s.step(8, 1, cache, out).argument(), "x");
  EXPECT_EQ(cache.length(), 8);
  ASSERT_TRUE(cache.truncate(0).ok());
  for (int64_t first = 0; first < 12; first += 3) ASSERT_TRUE(s.step(first, 3, cache, out).ok());
  s.expect_one_pass(out);
}

TEST(ModuleStep, WeightsAndTraceOfAStep) {
  ModuleSteps s({.embed_dim = 12, .num_heads = 3, .num_kv_heads = 1}, 2);
  MultiHeadAttentionCache cache;
  ASSERT_TRUE(s.module.create_cache({.batch = 2, .capacity = 12}, cache).ok());
  std::vector<float> out(s.x.size()), plain(s.x.size());
  ASSERT_TRUE(s.step(0, 10, cache, out).ok());
  ASSERT_TRUE(s.step(10, 2, cache, plain).ok());
  ASSERT_TRUE(cache.truncate(10).ok());
  Trace trace;
  ASSERT_TRUE(s.step(10, 2, cache, out, &trace).ok());
  EXPECT_TRUE(std::equal(out.begin() + 120, out.begin() + 144, plain.begin() + 120));
  s.expect_one_pass(out);
  EXPECT_EQ(trace.find("q_heads")->shape, (Dims{2, 3, 2, 4}));
  EXPECT_EQ(trace.find("k_heads")->shape, (Dims{2, 1, 2, 4}));
  ASSERT_EQ(trace.find("weights")->shape, (Dims{2, 3, 2, 12}));
  const auto& weights = trace.find("weights")->values;
  const auto& scores = trace.find("scores")->values;
  const auto& scaled = trace.find("scaled_scores")->values;
  for (size_t i = 0; i < scores.size(); ++i) EXPECT_NEAR(scores[i] * 0.5F, scaled[i], 1e-5F);
  for (size_t row = 0; row < 12; ++row) {
    float sum = 0;
    for (size_t j = 0; j < 12; ++j) sum += weights[row * 12 + j];
    EXPECT_NEAR(sum, 1.0F, 1e-6F);
    // The first of two new tokens does not see the second.
    if (row % 2 == 0) {
      EXPECT_EQ(weights[row * 12 + 11], 0.0F);
    }
  }
}

TEST(ModuleStep, RefusesAndChangesNothing) {
  ModuleSteps s({.embed_dim = 12, .num_heads = 3}, 3);
  const ModuleSteps other({.embed_dim = 12, .num_heads = 3}, 3);
  MultiHeadAttentionCache cache, of_other, none;
  ASSERT_TRUE(s.module.create_cache({.batch = 2, .capacity = 4}, cache).ok());
  ASSERT_TRUE(other.module.create_cache({.batch = 2, .capacity = 4}, of_other).ok());
  std::vector<float> out(s.x.size(), kUntouched);
  ASSERT_TRUE(s.step(0, 3, cache, out).ok());
  const std::vector<float> before = out;
  const auto expect_refused = [&](const Status& status, const char* argument) {
    EXPECT_EQ(status.argument(), argument) << status.message();
    EXPECT_EQ(cache.length(), 3);
    EXPECT_EQ(out, before);
  };
  expect_refused(s.step(3, 2, cache, out), "x");
  expect_refused(s.step(0, 1, of_other, out), "cache");
  expect_refused(s.step(0, 1, none, out), "cache");
  const ConstTensor x{s.x.data(), {2, 1, 12}};
  const Tensor to{out.data(), {2, 1, 12}};
  using Options = MultiHeadAttentionOptions;
  const auto with = [&](const std::function<void(Options&)>& change) {
    Options options;
    change(options);
    return s.module.step(x, options, {.out = to}, cache, nullptr, s.context);
  };
  expect_refused(with([](Options& o) { o.attention.causal = Causal::top_left(); }), "causal");
  expect_refused(with([](Options& o) { o.attention.window.left = 1; }), "window");
  expect_refused(with([](Options& o) { o.attention.scale = NAN; }), "scale");
  expect_refused(with([](Options& o) { o.heads.temperature = -1.0F; }), "temperature");
  expect_refused(
      s.module.step({s.x.data(), {1, 1, 12}}, {}, {.out = to}, cache, nullptr, s.context), "x");
  expect_refused(s.module.step({s.x.data(), {1, 12}}, {}, {.out = to}, cache, nullptr, s.context),
                 "x");
  expect_refused(s.module.step(x, {}, {.out = {out.data(), {2, 2, 12}}}, cache, nullptr, s.context),
                 "out");
  Trace trace{.wanted = {"nothing"}};
  expect_refused(s.module.step(x, {}, {.out = to}, cache, &trace, s.context), "trace.wanted");
  ASSERT_TRUE(s.step(3, 1, cache, out).ok());
}

// A cache with keys and values of other weights is refused.
TEST(ModuleStep, RefusesTokensOfEarlierWeights) {
  ModuleSteps s({.embed_dim = 12, .num_heads = 3}, 3);
  MultiHeadAttentionCache cache;
  ASSERT_TRUE(s.module.create_cache({.batch = 2, .capacity = 12}, cache).ok());
  std::vector<float> out(s.x.size());
  ASSERT_TRUE(s.step(0, 3, cache, out).ok());
  const MultiHeadAttention before = s.module;
  Random random(4);
  const testing::ModuleParameters other = random_parameters(s.config, random);
  ASSERT_TRUE(s.module.load_state_dict(other.dict).ok());
  const std::vector<float> untouched = out;
  Status status = s.step(3, 1, cache, out);
  EXPECT_EQ(status.argument(), "cache") << status.message();
  EXPECT_EQ(cache.length(), 3);
  EXPECT_EQ(out, untouched);
  // A copy with the earlier weights can continue.
  const Dims one{2, 1, 12};
  EXPECT_TRUE(
      before.step({s.x.data(), one}, {}, {.out = {out.data(), one}}, cache, nullptr, s.context)
          .ok());
  // An empty cache serves any weights of its module.
  ASSERT_TRUE(cache.truncate(0).ok());
  ASSERT_TRUE(s.step(0, 12, cache, out).ok());
  s.expect_one_pass(out);
  ASSERT_TRUE(cache.truncate(11).ok());
  const MultiHeadAttentionWeights views = s.module.weights();
  const MultiHeadAttention owner = s.module;
  ASSERT_TRUE(s.module.use_weights(views).ok());
  status = s.step(11, 1, cache, out);
  EXPECT_EQ(status.argument(), "cache") << status.message();
}

TEST(ModuleStep, ACacheOfNothingHasNoTokens) {
  const MultiHeadAttentionCache none;
  EXPECT_EQ(none.length(), 0);
  EXPECT_EQ(none.length(-1), 0);
}

TEST(ModuleStep, RefusesCachesThatCannotBe) {
  const auto argument = [](const MultiHeadAttentionConfig& config, const KVCacheConfig& kept) {
    MultiHeadAttention module;
    EXPECT_TRUE(MultiHeadAttention::create(config, module).ok());
    MultiHeadAttentionCache cache;
    return module.create_cache(kept, cache).argument();
  };
  const KVCacheConfig ring{.capacity = 4, .layout = KVCacheConfig::Layout::kRing};
  EXPECT_EQ(argument({.embed_dim = 4, .num_heads = 2, .add_bias_kv = true}, {.capacity = 4}),
            "add_bias_kv");
  EXPECT_EQ(argument({.embed_dim = 4, .num_heads = 2, .kdim = 3}, {.capacity = 4}), "kdim");
  EXPECT_EQ(argument({.embed_dim = 4, .num_heads = 2}, {.capacity = 0}), "capacity");
  EXPECT_EQ(argument({.embed_dim = 4, .num_heads = 2}, ring), "capacity");
  using Layout = KVCacheConfig::Layout;
  using Type = KVCacheConfig::Type;
  EXPECT_EQ(
      argument({.embed_dim = 4, .num_heads = 2}, {.capacity = 4, .layout = static_cast<Layout>(3)}),
      "layout");
  EXPECT_EQ(
      argument({.embed_dim = 4, .num_heads = 2}, {.capacity = 4, .type = static_cast<Type>(4)}),
      "type");
  EXPECT_EQ(argument({.embed_dim = 4, .num_heads = 2, .window = {4, -1}}, ring), "capacity");
  EXPECT_EQ(argument({.embed_dim = 4, .num_heads = 2, .window = {3, -1}}, ring), "");
}

}  // namespace
}  // namespace multihead
