// A tensor with elements, but without data, is refused by every public function, as kShape that
// names it, and nothing is written.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "multihead/attention.h"
#include "multihead/attention_backward.h"
#include "multihead/elementwise.h"
#include "multihead/head_statistics.h"
#include "multihead/kv_cache.h"
#include "multihead/latent_attention.h"
#include "multihead/linear.h"
#include "multihead/multi_head_attention.h"
#include "multihead/transformer.h"
#include "multihead/weights.h"

namespace multihead {
namespace {

// Hands out tensors of ones; the tensor whose number is `missing` has no data.
class Tensors {
 public:
  explicit Tensors(int missing) : missing_(missing) {}

  Tensor operator()(const Dims& shape) { return {next(floats_), shape}; }
  TensorView<uint8_t> bools(const Dims& shape) { return {next(bytes_), shape}; }

  // True if a tensor was left out.
  bool has_missing() const { return count_ > missing_; }
  bool untouched() const {
    for (const float value : floats_) {
      if (value != 1.0F) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kEach = 1024;

  template <class T>
  T* next(std::vector<T>& memory) {
    const int number = count_++;
    return number == missing_ ? nullptr : memory.data() + static_cast<size_t>(number) * kEach;
  }

  const int missing_;
  int count_ = 0;
  std::vector<float> floats_ = std::vector<float>(40 * kEach, 1.0F);
  std::vector<uint8_t> bytes_ = std::vector<uint8_t>(40 * kEach, 1);
};

// Makes the call once for each of its tensors. `names`: the arguments that the errors name, in the
// order in which the call takes its tensors.
template <class Call>
void expect_refused(const std::vector<std::string>& names, const Call& call) {
  for (size_t missing = 0; missing < names.size(); ++missing) {
    Tensors tensors(static_cast<int>(missing));
    const Status status = call(tensors);
    ASSERT_TRUE(tensors.has_missing()) << names[missing];
    EXPECT_EQ(status.code(), StatusCode::kShape) << names[missing] << ": " << status.message();
    EXPECT_EQ(status.argument(), names[missing]);
    EXPECT_TRUE(tensors.untouched()) << names[missing];
  }
  Tensors tensors(static_cast<int>(names.size()));
  const Status status = call(tensors);
  EXPECT_FALSE(tensors.has_missing()) << "a tensor has no name here";
  EXPECT_TRUE(status.ok()) << status.message();
}

constexpr int64_t kHeads = 2, kRows = 3, kKeys = 4, kWidth = 4;

class NullData : public ::testing::Test {
 protected:
  const Dims q_{1, kHeads, kRows, kWidth}, k_{1, kHeads, kKeys, kWidth}, rows_{1, kHeads, kRows};
  const Dims scores_{1, kHeads, kRows, kKeys};
  const std::vector<int32_t> cu_q_{0, kRows}, cu_k_{0, kKeys};
  Context context_{1};
};

TEST_F(NullData, IsRefusedByAttention) {
  expect_refused(
      {"q", "k", "v", "mask", "bias", "out", "lse", "weights", "capture.out", "dropout_mask"},
      [&](Tensors& t) {
        const Tensor q = t(q_), k = t(k_), v = t(k_);
        const AttentionOptions options{.mask = t.bools(scores_), .bias = t(scores_)};
        const Tensor out = t(q_), lse = t(rows_), weights = t(scores_);
        const ScoreCapture capture{.out = t(scores_)};
        return attention(q, k, v, options,
                         {.out = out,
                          .lse = lse,
                          .weights = weights,
                          .captures = {&capture, 1},
                          .dropout_mask = t.bools(scores_)},
                         context_);
      });
  expect_refused({"q", "k", "capture.out"}, [&](Tensors& t) {
    const Tensor q = t(q_), k = t(k_);
    return attention_scores(q, k, {}, {.out = t(scores_)}, context_);
  });
  const Dims q{kRows, kHeads, kWidth}, k{kKeys, kHeads, kWidth};
  expect_refused({"q", "k", "v", "out", "lse"}, [&](Tensors& t) {
    const Tensor a = t(q), b = t(k), c = t(k), out = t(q);
    return attention_varlen(a, b, c, cu_q_, cu_k_, {}, {.out = out, .lse = t({kHeads, kRows})},
                            context_);
  });
  expect_refused({"out_a", "lse_a", "out_b", "lse_b"}, [&](Tensors& t) {
    const Tensor out_a = t(q_), lse_a = t(rows_), out_b = t(q_);
    return merge_attention(out_a, lse_a, out_b, t(rows_));
  });
}

TEST_F(NullData, IsRefusedByGradients) {
  expect_refused({"q", "k", "v", "bias", "out", "lse", "d_out", "d_q", "d_k", "d_v", "d_bias"},
                 [&](Tensors& t) {
                   const Tensor q = t(q_), k = t(k_), v = t(k_), bias = t(scores_), out = t(q_);
                   const AttentionResults results{.out = out, .lse = t(rows_), .check_lse = false};
                   const Tensor d_out = t(q_), d_q = t(q_), d_k = t(k_), d_v = t(k_);
                   return attention_backward(
                       q, k, v, {.bias = bias}, results, d_out,
                       {.d_q = d_q, .d_k = d_k, .d_v = d_v, .d_bias = t(scores_)}, context_);
                 });
  const Dims q{kRows, kHeads, kWidth}, k{kKeys, kHeads, kWidth};
  expect_refused({"q", "k", "v", "out", "lse", "d_out", "d_q", "d_k", "d_v"}, [&](Tensors& t) {
    const Tensor a = t(q), b = t(k), c = t(k), out = t(q);
    const AttentionResults results{.out = out, .lse = t({kHeads, kRows}), .check_lse = false};
    const Tensor d_out = t(q), d_q = t(q), d_k = t(k);
    return attention_varlen_backward(a, b, c, cu_q_, cu_k_, {}, results, d_out,
                                     {.d_q = d_q, .d_k = d_k, .d_v = t(k)}, context_);
  });
}

TEST_F(NullData, IsRefusedByCaches) {
  const auto cache_of = [] {
    KVCache cache;
    EXPECT_TRUE(
        KVCache::create(
            {.num_kv_heads = kHeads, .head_dim = kWidth, .value_dim = kWidth, .capacity = kKeys},
            cache)
            .ok());
    return cache;
  };
  expect_refused({"k", "v"}, [&](Tensors& t) {
    const Tensor k = t(k_);
    KVCache cache = cache_of();
    const Status status = cache.append(k, t(k_));
    EXPECT_EQ(cache.length(0), status.ok() ? kKeys : 0);
    return status;
  });
  expect_refused({"q", "out", "lse"}, [&](Tensors& t) {
    KVCache cache = cache_of();
    const std::vector<float> tokens(static_cast<size_t>(k_.elements()), 1.0F);
    EXPECT_TRUE(cache.append({tokens.data(), k_}, {tokens.data(), k_}).ok());
    const Tensor q = t(q_), out = t(q_);
    return cache.attend(q, {}, {.out = out, .lse = t(rows_)}, context_);
  });
}

TEST_F(NullData, IsRefusedByRowsAndMatrices) {
  const std::vector<int32_t> positions{0, 1, 2}, some{1, 0};
  const Dims rows{kRows, kWidth}, weight{6, kWidth}, wide{kRows, 6};
  expect_refused({"x", "y"}, [&](Tensors& t) {
    const Tensor x = t(q_);
    return rotate(x, positions, {.style = Rope::Style::kHalf}, t(q_), context_);
  });
  expect_refused({"x", "weight", "bias", "y"}, [&](Tensors& t) {
    const Tensor x = t(rows), gain = t({kWidth}), bias = t({kWidth});
    return layer_norm(x, gain, bias, 1e-5F, t(rows), context_);
  });
  expect_refused({"x", "weight", "y"}, [&](Tensors& t) {
    const Tensor x = t(rows), gain = t({kWidth});
    return rms_norm(x, gain, 1e-5F, t(rows), context_);
  });
  expect_refused({"x", "y"}, [&](Tensors& t) {
    const Tensor x = t(rows);
    return activate(x, Activation::kGelu, t(rows), context_);
  });
  expect_refused({"gate", "x", "y"}, [&](Tensors& t) {
    const Tensor gate = t(rows), x = t(rows);
    return activate_gated(gate, x, Activation::kGelu, t(rows), context_);
  });
  expect_refused({"x", "weight", "bias", "y"}, [&](Tensors& t) {
    const Tensor x = t(rows), matrix = t(weight), bias = t({6});
    return linear(x, matrix, bias, t(wide), context_);
  });
  expect_refused({"x", "weight", "bias", "y"}, [&](Tensors& t) {
    const Tensor x = t(rows), matrix = t(weight), bias = t({6});
    return linear(x, WeightMatrix{matrix.data, WeightType::kF32, 6, kWidth}, bias, t(wide),
                  context_);
  });
  expect_refused({"from", "to"}, [&](Tensors& t) {
    const Tensor from = t(weight);
    return quantize(from, WeightType::kF32, t(weight).data, context_);
  });
  expect_refused({"weight", "to"}, [&](Tensors& t) {
    const Tensor matrix = t(weight);
    return dequantize({matrix.data, WeightType::kF32, 6, kWidth}, some, t({2, kWidth}));
  });
  expect_refused({"weights"}, [&](Tensors& t) {
    std::vector<float> entropy(kHeads);
    return head_statistics(t({1, kHeads, kRows, kRows}), {}, {.entropy = entropy});
  });
}

TEST_F(NullData, IsRefusedByLatentAttention) {
  for (const LatentForm form : {LatentForm::kExpanded, LatentForm::kAbsorbed}) {
    expect_refused(
        {"q_nope", "q_rope", "latent", "k_rope", "w_uk", "w_uv", "out", "lse", "weights"},
        [&](Tensors& t) {
          const LatentAttentionInputs inputs{.q_nope = t(q_),
                                             .q_rope = t({1, kHeads, kRows, 2}),
                                             .latent = t({1, kKeys, 5}),
                                             .k_rope = t({1, kKeys, 2}),
                                             .w_uk = t({kHeads, kWidth, 5}),
                                             .w_uv = t({kHeads, kWidth, 5})};
          const Tensor out = t(q_), lse = t(rows_);
          return latent_attention(inputs, form, {}, {.out = out, .lse = lse, .weights = t(scores_)},
                                  context_);
        });
  }
}

// Parameters of a module of this width, all with data.
MultiHeadAttention module_with_weights(const std::vector<float>& numbers) {
  MultiHeadAttention module;
  EXPECT_TRUE(MultiHeadAttention::create({.embed_dim = 8, .num_heads = kHeads}, module).ok());
  const ConstTensor matrix(numbers.data(), {8, 8}), row(numbers.data(), {8});
  EXPECT_TRUE(module
                  .use_weights({.q_proj = matrix,
                                .k_proj = matrix,
                                .v_proj = matrix,
                                .q_bias = row,
                                .out_proj = matrix})
                  .ok());
  return module;
}

TEST_F(NullData, IsRefusedByModules) {
  const std::vector<float> numbers(64, 1.0F);
  const MultiHeadAttention module = module_with_weights(numbers);
  const Dims x{1, kRows, 8}, keys{1, kKeys, 8};
  expect_refused({"q_proj", "k_proj", "v_proj", "q_bias", "out_proj", "out_bias"}, [&](Tensors& t) {
    MultiHeadAttention other = module;
    return other.use_weights({.q_proj = t({8, 8}),
                              .k_proj = t({8, 8}),
                              .v_proj = t({8, 8}),
                              .q_bias = t({8}),
                              .out_proj = t({8, 8}),
                              .out_bias = t({8})});
  });
  expect_refused(
      {"query", "key", "value", "attn_mask_blocked", "key_padding_blocked", "key_padding_bias",
       "out", "weights", "mean_weights"},
      [&](Tensors& t) {
        const MultiHeadAttentionInputs inputs{t(x), t(keys), t(keys)};
        const MultiHeadAttentionOptions options{.attn_mask_blocked = t.bools({kRows, kKeys}),
                                                .key_padding_blocked = t.bools({1, kKeys}),
                                                .key_padding_bias = t({1, kKeys})};
        const Tensor out = t(x), weights = t(scores_);
        return module.forward(
            inputs, options, {.out = out, .weights = weights, .mean_weights = t({1, kRows, kKeys})},
            nullptr, context_);
      });
  expect_refused(
      {"query", "key", "value", "d_out", "d_query", "d_key", "d_value", "q_proj", "q_bias"},
      [&](Tensors& t) {
        const MultiHeadAttentionInputs inputs{t(x), t(keys), t(keys)};
        const Tensor d_out = t(x), d_query = t(x), d_key = t(keys), d_value = t(keys);
        const Tensor d_matrix = t({8, 8});
        return module.backward(inputs, {}, d_out, nullptr,
                               {.d_query = d_query,
                                .d_key = d_key,
                                .d_value = d_value,
                                .weights = {.q_proj = d_matrix, .q_bias = t({8})}},
                               context_);
      });
  expect_refused({"x", "out", "weights", "mean_weights"}, [&](Tensors& t) {
    MultiHeadAttentionCache cache;
    EXPECT_TRUE(module.create_cache({.capacity = kKeys}, cache).ok());
    const Tensor in = t(x), out = t(x), weights = t({1, kHeads, kRows, kRows});
    const Status status =
        module.step(in, {}, {.out = out, .weights = weights, .mean_weights = t({1, kRows, kRows})},
                    cache, nullptr, context_);
    EXPECT_EQ(cache.length(), status.ok() ? kRows : 0);
    return status;
  });
}

TEST_F(NullData, IsRefusedByTransformers) {
  Transformer model;
  ASSERT_TRUE(Transformer::create(
                  {.block = {.attention = {.embed_dim = 8, .num_heads = kHeads}, .mlp_dim = 8},
                   .num_layers = 2,
                   .vocab_size = 5},
                  model)
                  .ok());
  ASSERT_TRUE(model.initialize({}).ok());
  const std::vector<int32_t> tokens{1, 2, 3};
  const Dims x{1, kRows, 8}, logits{1, kRows, 5};
  expect_refused({"logits", "hidden"}, [&](Tensors& t) {
    const Tensor to = t(logits);
    return model.forward(tokens, 1, {}, {.logits = to, .hidden = t({2, 1, kRows, 8})}, context_);
  });
  expect_refused({"logits"}, [&](Tensors& t) {
    TransformerCache cache;
    EXPECT_TRUE(model.create_cache({.capacity = kKeys}, cache).ok());
    const Status status = model.step(tokens, {}, {.logits = t(logits)}, cache, context_);
    EXPECT_EQ(cache.length(), status.ok() ? kRows : 0);
    return status;
  });
  std::vector<float> gradients(static_cast<size_t>(model.num_parameters()));
  expect_refused({"d_logits"}, [&](Tensors& t) {
    TransformerActivations activations;
    EXPECT_TRUE(model.forward(tokens, 1, {}, {.activations = &activations}, context_).ok());
    return model.backward(tokens, 1, {}, t(logits), activations, gradients, context_);
  });
  const TransformerBlock& block = model.layer(0);
  expect_refused({"x", "out", "attention_out"}, [&](Tensors& t) {
    const Tensor in = t(x), out = t(x);
    return block.forward(in, {}, {.out = out, .attention_out = t(x)}, nullptr, context_);
  });
  expect_refused({"x", "d_out", "d_x"}, [&](Tensors& t) {
    TransformerBlockActivations activations;
    std::vector<float> ones(24, 1.0F), out(24);
    EXPECT_TRUE(block
                    .forward({ones.data(), x}, {},
                             {.out = {out.data(), x}, .activations = &activations}, nullptr,
                             context_)
                    .ok());
    const Tensor in = t(x), d_out = t(x);
    return block.backward(in, {}, d_out, activations, t(x), gradients, context_);
  });
}

}  // namespace
}  // namespace multihead
