// The exercise of an article: d_model 32, 4 heads, no bias, input (4, 10, 32), with the values of
// torch.manual_seed(42), compared with nn.MultiheadAttention in double, at 1e-6.
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "multihead/multi_head_attention.h"
#include "multihead/safetensors.h"
#include "support/random_module.h"

namespace multihead {
namespace {

TEST(Exercise, EqualsTorchToOneInAMillion) {
  Safetensors pack;
  const std::string path = std::string(MULTIHEAD_CONFORMANCE_FOLDER) + "/mha.safetensors";
  ASSERT_TRUE(Safetensors::read(path, pack).ok());
  StateDict all;
  ASSERT_TRUE(pack.state_dict(all).ok());
  for (const bool causal : {false, true}) {
    const std::string prefix = causal ? "exercise_seed42_causal/" : "exercise_seed42/";
    const MultiHeadAttention module =
        testing::module_of({.embed_dim = 32, .num_heads = 4, .bias = false},
                           {{"in_proj_weight", all.at(prefix + "in_proj_weight")},
                            {"out_proj.weight", all.at(prefix + "out_proj.weight")}});
    const auto floats = [&](const char* name) {
      return static_cast<const float*>(all.at(prefix + name).data);
    };
    std::vector<float> out(4 * 10 * 32), weights(4 * 4 * 10 * 10), mean(4 * 10 * 10);
    Context context(1);
    const Status status =
        module.forward({.query = {floats("query"), {4, 10, 32}}},
                       {.attention = {.causal = causal ? Causal::top_left() : Causal::none()}},
                       {.out = {out.data(), {4, 10, 32}},
                        .weights = {weights.data(), {4, 4, 10, 10}},
                        .mean_weights = {mean.data(), {4, 10, 10}}},
                       nullptr, context);
    ASSERT_TRUE(status.ok()) << status.message();
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], floats("out")[i], 1e-6F) << i;
    const std::vector<float>& stored = causal ? mean : weights;
    for (size_t i = 0; i < stored.size(); ++i) {
      ASSERT_NEAR(stored[i], floats("weights")[i], 1e-6F) << i;
    }
  }
}

}  // namespace
}  // namespace multihead
