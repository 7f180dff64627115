// Makes all public calls on tensors and on a cache while the n-th memory request fails.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "multihead/multihead.h"
#include "support/exhaustion.h"
#include "support/random_case.h"

namespace multihead {
namespace {

using testing::Attempt;
using testing::bits_of;
using testing::expect_refusal_survives_exhaustion;
using testing::expect_survives_exhaustion;

// Random numbers, made once, enough for the largest operand of these tests.
const std::vector<float>& numbers() {
  static const std::vector<float> kNumbers = testing::Random(1).floats(2 * 2 * 3000 * 8 + 1);
  return kNumbers;
}

// Operands and results of a call of attention(): B = 2, H_q = 4, H_kv = 2.
struct Call {
  int64_t queries, keys, width = 8;
  const float* const q = numbers().data();
  const float* const k = numbers().data();
  const float* const v = numbers().data() + 1;
  std::vector<float> out, lse, weights, capture;
  Context context{2};
  ScoreCapture requested;

  Call(int64_t queries_, int64_t keys_) : queries(queries_), keys(keys_) {
    out.resize(static_cast<size_t>(2 * 4 * queries * width));
    lse.resize(static_cast<size_t>(2 * 4 * queries));
    weights.resize(static_cast<size_t>(2 * 4 * queries * keys));
    capture.resize(weights.size());
  }
  ConstTensor query() const { return {q, {2, 4, queries, width}}; }
  ConstTensor key() const { return {k, {2, 2, keys, width}}; }
  ConstTensor value() const { return {v, {2, 2, keys, width}}; }
  AttentionOutputs outputs(bool every) {
    AttentionOutputs outputs{.out = Tensor(out.data(), {2, 4, queries, width}),
                             .lse = {lse.data(), {2, 4, queries}}};
    if (!every) return outputs;
    outputs.weights = {weights.data(), {2, 4, queries, keys}};
    requested = {.stage = ScoreStage::kMasked, .out = {capture.data(), {2, 4, queries, keys}}};
    outputs.captures = {&requested, 1};
    return outputs;
  }
  // All options that need separate memory.
  AttentionOptions options() const {
    return {.causal = Causal::bottom_right(),
            .qk_norm = {.enabled = true},
            .rope = {.style = Rope::Style::kHalf}};
  }
  std::string bits() const {
    return bits_of(out) + bits_of(lse) + bits_of(weights) + bits_of(capture);
  }
};

void expect_attention_survives(int64_t queries, int64_t keys, bool every, bool transforms) {
  const auto options = [=](const Call& c) { return transforms ? c.options() : AttentionOptions{}; };
  const auto survives = [=](const char* name, bool repeats,
                            const std::function<Status(Call&)>& run) {
    expect_survives_exhaustion(name, [=]() -> Attempt {
      const auto call = std::make_shared<Call>(queries, keys);
      return {.call = [=] { return run(*call); },
              .result = [=] { return call->bits(); },
              .state = [=] { return call->bits(); },
              .repeats_without_memory = repeats};
    });
  };
  survives("attention", true, [=](Call& c) {
    return attention(c.query(), c.key(), c.value(), options(c), c.outputs(every), c.context);
  });
  survives("attention_scores", true, [=](Call& c) {
    return attention_scores(c.query(), c.key(), options(c),
                            {.out = {c.capture.data(), {2, 4, queries, keys}}}, c.context);
  });
  survives("prepared", false, [=](Call& c) {
    PreparedAttention prepared;
    Status status = PreparedAttention::create(c.query(), c.key(), c.value(), options(c),
                                              c.outputs(every), c.context, prepared);
    if (!status.ok()) return status;
    return prepared.run(c.q, c.k, c.v, c.out.data());
  });
}

TEST(ExhaustedMemory, TheBackwardRuns) {
  for (const bool transforms : {false, true}) {
    for (const int64_t keys : {5, 3000}) {
      expect_survives_exhaustion("attention_backward", [=]() -> Attempt {
        struct Backward : Call {
          using Call::Call;
          std::vector<float> d_q = out, d_k = std::vector<float>(static_cast<size_t>(32 * keys));
          std::vector<float> gain = std::vector<float>(8);
        };
        const auto c = std::make_shared<Backward>(9, keys);
        const AttentionOptions options = transforms ? c->options() : AttentionOptions();
        {
          Context other(1);
          EXPECT_TRUE(attention(c->query(), c->key(), c->value(), options,
                                {.out = Tensor(c->out.data(), c->query().shape),
                                 .lse = {c->lse.data(), {2, 4, 9}}},
                                other)
                          .ok());
        }
        return {.call =
                    [=] {
                      AttentionGradients gradients{.d_q = {c->d_q.data(), c->query().shape},
                                                   .d_k = {c->d_k.data(), c->key().shape}};
                      if (transforms) gradients.d_k_gain = c->gain;
                      return attention_backward(
                          c->query(), c->key(), c->value(), options,
                          {.out = ConstTensor(c->out.data(), c->query().shape),
                           .lse = ConstTensor(c->lse.data(), {2, 4, 9})},
                          c->query(), gradients, c->context);
                    },
                .result = [=] { return bits_of(c->d_q) + bits_of(c->d_k) + bits_of(c->gain); },
                .state = [=] { return bits_of(c->d_q) + bits_of(c->d_k) + bits_of(c->gain); },
                .repeats_without_memory = true};
      });
    }
  }
}

TEST(ExhaustedMemory, AttentionRuns) {
  expect_attention_survives(40, 300, false, false);
  expect_attention_survives(40, 300, true, true);
  expect_attention_survives(4, 5, false, false);
}

// The keys are split, and each KV split has separate results.
TEST(ExhaustedMemory, DecodingRuns) {
  expect_attention_survives(1, 3000, false, false);
  expect_attention_survives(1, 3000, false, true);
}

TEST(ExhaustedMemory, PackedSequencesRun) {
  const std::vector<int32_t> starts{0, 7, 7, 50};
  expect_survives_exhaustion("attention_varlen", [&]() -> Attempt {
    const auto call = std::make_shared<Call>(25, 100);
    return {
        .call =
            [&, call] {
              return attention_varlen(
                  ConstTensor(call->q, {50, 4, 8}), ConstTensor(call->k, {50, 2, 8}),
                  ConstTensor(call->v, {50, 2, 8}), starts, starts, call->options(),
                  {.out = Tensor(call->out.data(), {50, 4, 8}), .lse = {call->lse.data(), {4, 50}}},
                  call->context);
            },
        .result = [=] { return call->bits(); },
        .state = [=] { return call->bits(); },
        .repeats_without_memory = true};
  });
}

TEST(ExhaustedMemory, RowsRun) {
  const std::vector<int32_t> positions{3, 1, 4, 1, 5};
  const std::vector<BFloat16> halves(64, BFloat16{0x3F80});
  const auto survives = [](const char* name, const std::function<Status(Call&)>& run) {
    expect_survives_exhaustion(name, [&]() -> Attempt {
      const auto call = std::make_shared<Call>(5, 5);
      return {.call = [=] { return run(*call); },
              .result = [=] { return call->bits(); },
              .state = [=] { return call->bits(); },
              .repeats_without_memory = true};
    });
  };
  const Dims rows{40, 8};
  survives("rotate", [&](Call& c) {
    return rotate(c.query(), positions, {.style = Rope::Style::kInterleaved},
                  {c.out.data(), {2, 4, 5, 8}}, c.context);
  });
  survives("merge_attention", [&](Call& c) {
    const ConstTensor lse(numbers().data(), {2, 4, 5});
    return merge_attention({c.out.data(), {2, 4, 5, 8}}, {c.lse.data(), {2, 4, 5}}, c.query(), lse);
  });
  survives("linear", [&](Call& c) {
    return linear({c.q, rows}, ConstTensor(numbers().data(), {8, 8}), {}, {c.out.data(), rows},
                  c.context);
  });
  survives("linear of one row", [&](Call& c) {
    return linear({c.q, {1, 8}}, ConstAnyTensor(halves.data(), {8, 8}), {}, {c.out.data(), {1, 8}},
                  c.context);
  });
  survives("layer_norm", [&](Call& c) {
    return layer_norm({c.q, rows}, {}, {}, 1e-5F, {c.out.data(), rows}, c.context);
  });
  survives("rms_norm", [&](Call& c) {
    return rms_norm({c.q, rows}, {}, 1e-5F, {c.out.data(), rows}, c.context);
  });
  survives("activate", [&](Call& c) {
    return activate({c.q, rows}, Activation::kGelu, {c.out.data(), rows}, c.context);
  });
  survives("activate_gated", [&](Call& c) {
    return activate_gated({c.q, rows}, {c.q, rows}, Activation::kSilu, {c.out.data(), rows},
                          c.context);
  });
}

// A cache, an operand for append() and the results of attend().
struct Cached {
  static constexpr int64_t kBatch = 2, kTokens = 3;
  KVCacheConfig config;
  KVCache cache;
  std::vector<float> k, q, out;
  Context context{2};

  explicit Cached(const KVCacheConfig& config_) : config(config_) {
    testing::Random random(1);
    k = random.floats(kBatch * 2 * kTokens * 8);
    q = random.floats(kBatch * 4 * kTokens * 8);
    out.resize(q.size());
  }
  Status append() {
    const ConstTensor tokens(k.data(), {kBatch, 2, kTokens, 8});
    return cache.append(tokens, tokens);
  }
  Status attend() {
    return cache.attend(ConstTensor(q.data(), {kBatch, 4, kTokens, 8}), {},
                        {.out = Tensor(out.data(), {kBatch, 4, kTokens, 8})}, context);
  }
  // Returns the lengths, and the result of attending to the cached tokens.
  std::string contents() const {
    std::string text = std::to_string(cache.bytes());
    for (int64_t b = 0; b < cache.config().batch; ++b) {
      text += " " + std::to_string(cache.length(b)) + "/" + std::to_string(cache.first_kept(b));
    }
    if (cache.config().batch == 0) return text;
    Context other{1};
    std::vector<float> seen(out.size());
    EXPECT_TRUE(cache
                    .attend(ConstTensor(q.data(), {kBatch, 4, kTokens, 8}), {},
                            {.out = Tensor(seen.data(), {kBatch, 4, kTokens, 8})}, other)
                    .ok());
    return text + bits_of(seen) + bits_of(out);
  }
};

TEST(ExhaustedMemory, CachesRun) {
  using Layout = KVCacheConfig::Layout;
  for (const Layout layout : {Layout::kContiguous, Layout::kRing, Layout::kPaged}) {
    for (const auto type : {KVCacheConfig::Type::kF32, KVCacheConfig::Type::kInt8}) {
      const KVCacheConfig config{.batch = 2,
                                 .num_kv_heads = 2,
                                 .head_dim = 8,
                                 .value_dim = 8,
                                 .capacity = 7,
                                 .layout = layout,
                                 .type = type,
                                 .page_size = 2};
      const auto survives = [&](const char* name, int64_t appends,
                                const std::function<Status(Cached&)>& run) {
        expect_survives_exhaustion(name, [&]() -> Attempt {
          const auto cached = std::make_shared<Cached>(config);
          if (appends > 0) {
            EXPECT_TRUE(KVCache::create(config, cached->cache).ok());
            for (int64_t i = 0; i < appends; ++i) EXPECT_TRUE(cached->append().ok());
          }
          return {.call = [=] { return run(*cached); },
                  .result = [=] { return cached->contents(); },
                  .state = [=] { return cached->contents(); },
                  .repeats_without_memory = appends == 2};
        });
      };
      survives("create", 0, [](Cached& c) { return KVCache::create(c.config, c.cache); });
      survives("append", 1, [](Cached& c) { return c.append(); });
      survives("attend", 2, [](Cached& c) { return c.attend(); });
      survives("truncate", 2, [](Cached& c) { return c.cache.truncate(1, 4); });
      survives("clear", 2, [](Cached& c) -> Status {
        c.cache.clear();
        return {};
      });
    }
  }
}

// Building an error's text needs memory, too.
TEST(ExhaustedMemory, RefusalsOfTensorsAreRefusals) {
  Call c(5, 5);
  const auto refuses = [](const char* name, const std::function<Status()>& call) {
    expect_refusal_survives_exhaustion(name, call);
  };
  const Tensor none;
  refuses("attention", [&] { return attention(c.query(), c.key(), none, {}, {}, c.context); });
  refuses("attention_scores",
          [&] { return attention_scores(c.query(), c.key(), {.softcap = -1.0F}, {}, c.context); });
  refuses("attention_varlen", [&] {
    return attention_varlen(c.query(), c.key(), c.value(), {}, {}, {}, {}, c.context);
  });
  PreparedAttention prepared;
  refuses("prepare", [&] {
    return PreparedAttention::create(c.query(), c.key(), none, {}, {}, c.context, prepared);
  });
  refuses("run", [&] { return prepared.run(nullptr, nullptr, nullptr, nullptr); });
  refuses("merge_attention", [&] { return merge_attention(none, none, none, none); });
  refuses("rotate", [&] { return rotate(none, {}, {}, none, c.context); });
  refuses("linear", [&] { return linear(none, none, none, none, c.context); });
  refuses("layer_norm", [&] { return layer_norm(none, none, none, 0.0F, none, c.context); });
  refuses("rms_norm", [&] { return rms_norm(none, none, 0.0F, none, c.context); });
  refuses("activate", [&] { return activate(none, Activation::kRelu, none, c.context); });
  refuses("activate_gated",
          [&] { return activate_gated(none, none, Activation::kRelu, none, c.context); });
  KVCache cache;
  refuses("create", [&] { return KVCache::create({}, cache); });
  refuses("append", [&] { return cache.append(none, none); });
  refuses("attend", [&] { return cache.attend(none, {}, {}, c.context); });
  refuses("truncate", [&] { return cache.truncate(0, 5); });
}

}  // namespace
}  // namespace multihead
