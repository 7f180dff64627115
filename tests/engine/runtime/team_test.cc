// Compares a team, whose members are threads here, with a single instance, bit for bit.
#include "engine/runtime/team.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "engine/cache/cache_access.h"
#include "multihead/attention.h"
#include "multihead/kv_cache.h"
#include "multihead/linear.h"
#include "multihead/state_dict.h"
#include "multihead/transformer.h"
#include "multihead/weights.h"
#include "nn/parameters.h"
#include "nn/transformer/module_access.h"
#include "support/random_case.h"
#include "support/thread_team.h"

namespace multihead {
namespace {

using testing::Board;
using testing::board;
using testing::exchange;
using testing::exchanges;
using testing::in_team;
using testing::kMembers;
using testing::Random;
using testing::rank;

template <class Call>
void expect_bits_of_one(const Call& call) {
  Context alone(1);
  const std::vector<float> expected = call(alone);
  for (const std::vector<float>& actual : in_team(call)) EXPECT_EQ(expected, actual);
}

TEST(Team, SharesTheOutputsOfAProduct) {
  Random random(1);
  for (const int64_t rows : {1, 3, 200}) {
    constexpr int64_t kIn = 300, kOut = 5003;
    const std::vector<float> x = random.floats(rows * kIn), weight = random.floats(kIn * kOut),
                             bias = random.floats(kOut);
    expect_bits_of_one([&](Context& context) {
      std::vector<float> y(static_cast<size_t>(rows * kOut));
      EXPECT_TRUE(linear({x.data(), {rows, kIn}}, ConstTensor(weight.data(), {kOut, kIn}),
                         {bias.data(), {kOut}}, {y.data(), {rows, kOut}}, context)
                      .ok());
      return y;
    });
  }
}

// Members have the whole matrix, or only the rows of their own outputs.
TEST(Team, SharesTheOutputsOfWeightsOfEveryType) {
  Random random(1);
  constexpr int64_t kIn = 300, kOut = 5003;
  const std::vector<float> numbers = random.floats(kIn * kOut), bias = random.floats(kOut);
  for (const WeightType type :
       {WeightType::kF32, WeightType::kBF16, WeightType::kInt8, WeightType::kInt4}) {
    std::vector<float> memory(static_cast<size_t>(weight_bytes(type, kOut, kIn) / 4 + 1));
    Context one(1);
    ASSERT_TRUE(quantize(ConstTensor(numbers.data(), {kOut, kIn}), type, memory.data(), one).ok());
    const WeightMatrix whole{memory.data(), type, kOut, kIn};
    for (const int64_t rows : {1, 3, 70}) {
      const std::vector<float> x = random.floats(rows * kIn);
      for (const bool shares : {false, true}) {
        expect_bits_of_one([&](Context& context) {
          std::vector<float> y(static_cast<size_t>(rows * kOut));
          WeightMatrix weight = whole;
          if (const engine::Team* const team = engine::team_of(context);
              shares && team != nullptr) {
            const int64_t first = team->first_output(kOut);
            weight = whole.part(first, team->end_output(kOut) - first);
          }
          EXPECT_TRUE(linear({x.data(), {rows, kIn}}, weight, {bias.data(), {kOut}},
                             {y.data(), {rows, kOut}}, context)
                          .ok());
          return y;
        });
      }
    }
  }
}

TEST(Team, SharesTheHeadsOfAttention) {
  Random random(2);
  // Blocks and decoding; outputs (B, H, N, d), and (B, N, H, d) as in modules.
  for (const int64_t queries : {1, 150}) {
    for (const bool interleaved : {false, true}) {
      const Dims q_shape{2, 8, queries, 32}, k_shape{2, 4, 700, 32};
      const std::vector<float> q = random.floats(q_shape.elements()),
                               k = random.floats(k_shape.elements()),
                               v = random.floats(k_shape.elements());
      expect_bits_of_one([&](Context& context) {
        const auto rows = static_cast<size_t>(2 * 8 * queries);
        std::vector<float> results(rows * 33);
        Tensor out(results.data(), q_shape);
        if (interleaved) out.strides = {queries * 8 * 32, 32, 8 * 32, 1};
        const Tensor lse(results.data() + rows * 32, {2, 8, queries});
        EXPECT_TRUE(attention(ConstTensor(q.data(), q_shape), ConstTensor(k.data(), k_shape),
                              ConstTensor(v.data(), k_shape), {.causal = Causal::bottom_right()},
                              {.out = out, .lse = lse}, context)
                        .ok());
        return results;
      });
    }
  }
}

// All results of a cache: outputs and captures. One capture has a list of heads.
struct Attended {
  static constexpr int64_t kBatch = 2, kWidth = 16, kValueDim = 12;
  std::vector<float> floats;
  std::vector<uint8_t> kept;

  void attend(const KVCache& cache, Random& random, int64_t queries, bool drops, Context& context) {
    const int64_t heads = 2 * cache.config().num_kv_heads;
    const int64_t keys = std::max(cache.length(0), cache.length(1));
    const std::vector<float> q = random.floats(kBatch * heads * queries * kWidth);
    const Dims scores{kBatch, heads, queries, keys}, out{kBatch, heads, queries, kValueDim};
    const Dims lse{kBatch, heads, queries};
    const std::vector<int32_t> listed{static_cast<int32_t>(heads - 1), 0};
    const Dims captured{kBatch, 2, 1, keys};
    auto at = floats.size();
    const int64_t count =
        out.elements() + lse.elements() + 2 * scores.elements() + captured.elements();
    floats.resize(at + static_cast<size_t>(count));
    const auto take = [&](const Dims& shape) {
      const Tensor tensor(floats.data() + at, shape);
      at += static_cast<size_t>(shape.elements());
      return tensor;
    };
    AttentionOutputs outputs{.out = take(out), .lse = take(lse), .weights = take(scores)};
    const ScoreCapture captures[] = {
        {.stage = ScoreStage::kRaw, .out = take(scores)},
        {.out = take(captured), .heads = listed, .first_row = queries - 1}};
    outputs.captures = captures;
    AttentionOptions options{.causal = Causal::bottom_right()};
    if (drops) {
      kept.resize(static_cast<size_t>(scores.elements()));
      outputs.dropout_mask = {kept.data(), scores};
      options.dropout = {.probability = 0.3F, .seed = 5};
    }
    EXPECT_TRUE(
        cache.attend({q.data(), {kBatch, heads, queries, kWidth}}, options, outputs, context).ok());
    floats.insert(floats.end(), kept.begin(), kept.end());
  }
};

TEST(Team, SharesTheHeadsOfACache) {
  // With two heads, one of the three members has none.
  for (const int64_t kv_heads : {4, 2, 1}) {
    for (const auto layout : {KVCacheConfig::Layout::kContiguous, KVCacheConfig::Layout::kRing,
                              KVCacheConfig::Layout::kPaged}) {
      for (const DType type : {DType::kF32, DType::kBF16, DType::kInt8}) {
        expect_bits_of_one([&](Context& context) {
          constexpr int64_t kBatch = Attended::kBatch, kTokens = 60;
          const engine::Team* const team = engine::team_of(context);
          const KVCacheConfig config{.batch = kBatch,
                                     .num_kv_heads = kv_heads,
                                     .head_dim = Attended::kWidth,
                                     .value_dim = Attended::kValueDim,
                                     // A capacity of 80 makes the ring overwrite tokens.
                                     .capacity = layout == KVCacheConfig::Layout::kRing ? 80 : 140,
                                     .layout = layout,
                                     .type = type,
                                     .page_size = 7};
          KVCache cache, whole;
          EXPECT_TRUE(KVCache::Internals::create(config, team, cache).ok());
          EXPECT_TRUE(KVCache::create(config, whole).ok());
          if (team != nullptr && kv_heads == 4) {
            EXPECT_LT(cache.bytes(), whole.bytes() * 11 / 20);
          }
          Random random(3);
          Attended attended;
          for (const int64_t queries : {1, 40, 1}) {
            const std::vector<float> k =
                random.floats(kBatch * kv_heads * kTokens * Attended::kWidth);
            const std::vector<float> v =
                random.floats(kBatch * kv_heads * kTokens * Attended::kValueDim);
            const std::vector<int32_t> counts{kTokens, 45};
            EXPECT_TRUE(cache
                            .append({k.data(), {kBatch, kv_heads, kTokens, Attended::kWidth}},
                                    {v.data(), {kBatch, kv_heads, kTokens, Attended::kValueDim}},
                                    counts)
                            .ok());
            attended.attend(cache, random, queries, queries > 1, context);
            EXPECT_TRUE(cache.truncate(0, cache.length(0) - 35).ok());
            attended.attend(cache, random, 1, false, context);
          }
          return attended.floats;
        });
      }
    }
  }
}

TEST(Team, SharesTheCachesOfAModel) {
  const struct Case {
    int64_t head_dim;  // 40 is not a multiple of linear()'s block
    bool shares;       // true: members also share the parameters
  } cases[] = {{40, false}, {40, true}, {64, true}};
  for (const Case& each : cases) {
    const int64_t head_dim = each.head_dim;
    const bool shares = each.shares;
    const TransformerConfig config{.block = {.attention = {.embed_dim = 96,
                                                           .num_heads = 6,
                                                           .head_dim = head_dim,
                                                           .num_kv_heads = 3,
                                                           .qk_norm = true,
                                                           .rope = {.style = Rope::Style::kHalf}},
                                             .mlp_dim = 330},
                                   .num_layers = 2,
                                   .vocab_size = 300};
    expect_bits_of_one([&](Context& context) {
      engine::Team* const team = engine::team_of(context);
      Transformer model;
      EXPECT_TRUE(Transformer::create(config, model).ok());
      EXPECT_TRUE(nn::initialize_parameters(model, {.seed = 6}, ParameterNames::kTorch,
                                            {.team = shares ? team : nullptr})
                      .ok());
      TransformerCache cache, whole;
      const KVCacheConfig kept{.batch = 2, .capacity = 30};
      EXPECT_TRUE(nn::create_cache(model, kept, team, cache).ok());
      EXPECT_TRUE(model.create_cache(kept, whole).ok());
      if (team != nullptr) {
        EXPECT_LT(cache.bytes(), whole.bytes() * 11 / 20);
      }
      if (team != nullptr && !shares) {
        // A cache of a team refuses calls without the team.
        Context alone(1);
        std::vector<float> ignored(2 * 300);
        EXPECT_FALSE(model
                         .step(std::vector<int32_t>{1, 2}, {},
                               {.logits = {ignored.data(), {2, 1, 300}}}, cache, alone)
                         .ok());
        EXPECT_EQ(cache.length(), 0);
      }
      std::vector<float> results;
      for (const int64_t count : {9, 1, 1, 4}) {
        std::vector<int32_t> tokens;
        for (int64_t n = 0; n < 2 * count; ++n)
          tokens.push_back(static_cast<int32_t>(n * 61 % 300));
        std::vector<float> logits(static_cast<size_t>(2 * count * 300));
        exchanges = 0;
        EXPECT_TRUE(
            model.step(tokens, {}, {.logits = {logits.data(), {2, count, 300}}}, cache, context)
                .ok());
        if (team != nullptr && shares) {
          // Exchanges per layer: q, k and v, unless each member computes the columns of its own
          // heads; attention of 2 batch entries; 3 products. Plus the embedding and the logits.
          const bool own =
              team->computes_own(3, 6 * head_dim) && team->computes_own(3, 3 * head_dim);
          EXPECT_EQ(exchanges, 2 * ((own ? 0 : 3) + 2 + 3) + 2);
          EXPECT_EQ(own, head_dim == 64);
        }
        results.insert(results.end(), logits.begin(), logits.end());
        EXPECT_TRUE(cache.truncate(cache.length() - 1).ok());
      }
      return results;
    });
  }
}

// A model with matrices that are divided and others that are too narrow to be divided. One tensor
// has both: there are fewer key/value heads, and outputs that are not a multiple of linear()'s
// block.
TransformerConfig model_config(int64_t vocab_size) {
  return {
      .block = {.attention = {.embed_dim = 96, .num_heads = 6, .num_kv_heads = 1}, .mlp_dim = 330},
      .num_layers = 1,
      .vocab_size = vocab_size,
      .max_positions = 20};
}

std::vector<float> elements_of(const StateDict& dict) {
  std::vector<float> elements;
  for (const auto& [name, tensor] : dict) {
    for (int64_t i = 0; i < tensor.shape[0]; ++i) {
      for (int64_t j = 0; j < (tensor.shape.rank() == 1 ? 1 : tensor.shape[1]); ++j) {
        const int64_t at =
            i * tensor.strides[0] + (tensor.shape.rank() == 1 ? 0 : j * tensor.strides[1]);
        elements.push_back(static_cast<const float*>(tensor.data)[at]);
      }
    }
  }
  return elements;
}

TEST(Team, SharesTheParametersOfAModel) {
  // With few rows of the embedding, some members have none.
  for (const int64_t vocab : {1003, 150, 70, 40}) {
    for (const bool reads : {false, true}) {
      const ParameterNames names = vocab == 70 ? ParameterNames::kTorch : ParameterNames::kGpt2;
      expect_bits_of_one([&](Context& context) {
        engine::Team* const team = engine::team_of(context);
        Transformer source, model;
        EXPECT_TRUE(Transformer::create(model_config(vocab), source).ok());
        EXPECT_TRUE(source.initialize({.seed = 4}, names).ok());
        StateDict dict;
        EXPECT_TRUE(source.state_dict(dict).ok());
        EXPECT_TRUE(Transformer::create(model_config(vocab), model).ok());
        if (reads) {
          // Contiguous copies of the tensors.
          static thread_local std::vector<float> copy;
          copy.clear();
          std::map<std::string, size_t> places;
          for (const auto& [name, tensor] : dict) {
            places[name] = copy.size();
            const std::vector<float> elements = elements_of({{name, tensor}});
            copy.insert(copy.end(), elements.begin(), elements.end());
          }
          for (auto& [name, tensor] : dict) {
            tensor = {copy.data() + places[name], tensor.dtype, tensor.shape,
                      contiguous_strides(tensor.shape)};
          }
          const auto read = [](const ConstAnyTensor& tensor, int64_t first, int64_t count) {
            EXPECT_LE(count, nn::Loading::kMostRead);
            EXPECT_LE(first + count, tensor.shape.elements());
            return static_cast<const void*>(static_cast<const float*>(tensor.data) + first);
          };
          EXPECT_TRUE(nn::load_parameters(model, dict, names, {.team = team, .read = read}).ok());
        } else {
          EXPECT_TRUE(nn::initialize_parameters(model, {.seed = 4}, names, {.team = team}).ok());
        }
        const nn::Parameters& own = *nn::parameters_of(model);
        EXPECT_EQ(own.is_share(), team != nullptr);
        if (team != nullptr && vocab == 1003) {
          EXPECT_LT(model.num_parameters(), source.num_parameters() * 2 / kMembers);
        }
        std::vector<float> results(static_cast<size_t>(10 * vocab));
        std::vector<int32_t> tokens;
        for (int32_t n = 0; n < 10; ++n) tokens.push_back(static_cast<int32_t>(n * 611 % vocab));
        EXPECT_TRUE(
            model.forward(tokens, 2, {}, {.logits = {results.data(), {2, 5, vocab}}}, context)
                .ok());
        engine::Buffer buffer;
        StateDict gathered;
        if (team == nullptr) {
          EXPECT_TRUE(model.state_dict(gathered).ok());
        } else {
          EXPECT_FALSE(model.state_dict(gathered).ok());
          EXPECT_TRUE(own.gather(*team, buffer, gathered).ok());
        }
        const std::vector<float> elements = elements_of(gathered);
        results.insert(results.end(), elements.begin(), elements.end());
        return results;
      });
    }
  }
}

TEST(Team, ReportsAMemberThatHasLeft) {
  Board shared;
  board = &shared;
  shared.left = true;
  std::vector<std::thread> threads;
  threads.reserve(kMembers);
  for (int member = 0; member < kMembers; ++member) {
    threads.emplace_back([member] {
      rank = member;
      Context context(1);
      engine::WorkerTeam team(member, kMembers, exchange);
      engine::set_team(context, &team);
      const std::vector<float> x(2000, 1.0F), weight(2000 * 1000, 1.0F);
      std::vector<float> y(1000);
      const Status status = linear({x.data(), {1, 2000}}, ConstTensor(weight.data(), {1000, 2000}),
                                   {}, {y.data(), {1, 1000}}, context);
      EXPECT_EQ(status.code(), StatusCode::kOption);
    });
  }
  for (std::thread& thread : threads) thread.join();
  board = nullptr;
}

}  // namespace
}  // namespace multihead
