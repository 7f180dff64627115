#include "multihead/lab.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/closeness.h"
#include "support/random_module.h"

namespace multihead {
namespace {

using testing::ModuleParameters;
using testing::Random;

constexpr int64_t kLabTokens = 5, kLabWidth = 12, kLabMerged = 8;
constexpr MultiHeadAttentionConfig kLabConfig{
    .embed_dim = kLabWidth, .num_heads = 2, .head_dim = 4};

struct LabModule {
  Random random{3};
  ModuleParameters parameters = testing::random_parameters(kLabConfig, random);
  MultiHeadAttention module = testing::module_of(kLabConfig, parameters.dict);
  std::vector<float> x = testing::sixteenths(random, kLabTokens* kLabWidth);
  Context context{1};

  ConstTensor input() const { return {x.data(), {1, kLabTokens, kLabWidth}}; }
  std::vector<float> forward(const MultiHeadAttention& which,
                             const MultiHeadAttentionOptions& options = {}) {
    const Dims shape{1, kLabTokens, which.config().out_dim};
    std::vector<float> out(static_cast<size_t>(shape.elements()));
    const Status status =
        which.forward({.query = input()}, options, {.out = {out.data(), shape}}, nullptr, context);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }
};

TEST(Lab, WithoutOutProjTheMergedHeadsAreTheOutput) {
  LabModule f;
  const std::vector<float> merged = f.forward(without_out_proj(f.module));
  const std::vector<float>& weight = f.parameters.at("out_proj.weight");
  const std::vector<float>& bias = f.parameters.at("out_proj.bias");
  std::vector<double> expected;
  for (size_t row = 0; row < kLabTokens; ++row) {
    for (size_t o = 0; o < kLabWidth; ++o) {
      auto sum = static_cast<double>(bias[o]);
      for (size_t i = 0; i < kLabMerged; ++i) {
        sum += static_cast<double>(merged[row * kLabMerged + i]) *
               static_cast<double>(weight[o * kLabMerged + i]);
      }
      expected.push_back(sum);
    }
  }
  EXPECT_LE(testing::largest_difference(f.forward(f.module), expected), 1e-5);
}

// The cache belongs to both modules, which have one projection of keys and values.
TEST(Lab, WithoutOutProjTheCacheIsShared) {
  LabModule f;
  const MultiHeadAttention merges = without_out_proj(f.module);
  MultiHeadAttentionCache cache;
  ASSERT_TRUE(f.module.create_cache({.batch = 1, .capacity = kLabTokens}, cache).ok());
  std::vector<float> first(3 * kLabWidth), rest(2 * kLabMerged);
  ASSERT_TRUE(f.module
                  .step({f.x.data(), {1, 3, kLabWidth}}, {},
                        {.out = {first.data(), {1, 3, kLabWidth}}}, cache, nullptr, f.context)
                  .ok());
  const Status status =
      merges.step({f.x.data() + 3 * kLabWidth, {1, 2, kLabWidth}}, {},
                  {.out = {rest.data(), {1, 2, kLabMerged}}}, cache, nullptr, f.context);
  ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<float> whole = f.forward(merges, {.attention = {.causal = Causal::top_left()}});
  for (size_t i = 0; i < rest.size(); ++i)
    EXPECT_NEAR(rest[i], whole[3 * kLabMerged + i], 1e-6F) << i;
}

// The other parameters have the gradients of a loss of the merged heads.
TEST(Lab, WithoutOutProjItHasNoGradient) {
  LabModule f;
  const MultiHeadAttention merges = without_out_proj(f.module);
  std::vector<float> block(static_cast<size_t>(f.module.num_parameters()));
  MultiHeadAttentionGradients gradients;
  ASSERT_TRUE(merges.gradients_in(block, gradients.weights).ok());
  EXPECT_FALSE(gradients.weights.out_proj.given());
  const std::vector<float> d_out(kLabTokens * kLabMerged, 1.0F);
  const Status status =
      merges.backward({.query = f.input()}, {}, {d_out.data(), {1, kLabTokens, kLabMerged}},
                      nullptr, gradients, f.context);
  ASSERT_TRUE(status.ok()) << status.message();
  // Each weight of a row sums to 1, so d_v is 1 for each of the tokens.
  for (int64_t i = 0; i < kLabMerged; ++i) {
    EXPECT_NEAR(gradients.weights.v_bias.data[i], static_cast<float>(kLabTokens), 1e-4F);
  }
}

TEST(Lab, EmbedDimScaleIsTheWrongRoot) {
  LabModule f;
  EXPECT_FLOAT_EQ(embed_dim_scale(kLabConfig), 1.0F / std::sqrt(12.0F));
  EXPECT_NE(f.forward(f.module, {.attention = {.scale = embed_dim_scale(kLabConfig)}}),
            f.forward(f.module));
}

}  // namespace
}  // namespace multihead
