#include "support/random_module.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "reference/reference_attention.h"

namespace multihead::testing {
namespace {

// Returns x (rows, in) times weight^T (in, out) plus bias; exact for multiples of 1/16.
std::vector<float> product(const std::vector<float>& x, const float* weight, const float* bias,
                           int64_t in, int64_t out) {
  std::vector<float> y;
  for (auto row = x.begin(); row != x.end(); row += in) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = bias == nullptr ? 0.0 : static_cast<double>(bias[o]);
      for (int64_t i = 0; i < in; ++i) {
        sum += static_cast<double>(row[i]) * static_cast<double>(weight[o * in + i]);
      }
      y.push_back(static_cast<float>(sum));
    }
  }
  return y;
}

}  // namespace

std::vector<float> sixteenths(Random& random, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(random.integer(-16, 16)) / 16.0F;
  return values;
}

ModuleParameters random_parameters(const MultiHeadAttentionConfig& config, Random& random,
                                   bool separate) {
  MultiHeadAttention module;
  EXPECT_TRUE(MultiHeadAttention::create(config, module).ok());
  const MultiHeadAttentionConfig& c = module.config();
  const int64_t q = c.num_heads * c.head_dim, k = c.num_kv_heads * c.head_dim;
  const int64_t v = c.num_kv_heads * c.value_dim, merged = c.num_heads * c.value_dim;
  std::vector<std::pair<std::string, Dims>> shapes;
  if (separate || c.kdim != c.embed_dim || c.vdim != c.embed_dim) {
    shapes = {{"q_proj_weight", {q, c.embed_dim}},
              {"k_proj_weight", {k, c.kdim}},
              {"v_proj_weight", {v, c.vdim}}};
  } else {
    shapes = {{"in_proj_weight", {q + k + v, c.embed_dim}}};
  }
  if (c.bias) shapes.push_back({"in_proj_bias", {q + k + v}});
  if (c.out_proj) shapes.push_back({"out_proj.weight", {c.out_dim, merged}});
  if (c.out_proj && c.bias) shapes.push_back({"out_proj.bias", {c.out_dim}});
  if (c.add_bias_kv) {
    shapes.push_back({"bias_k", {1, 1, k}});
    shapes.push_back({"bias_v", {1, 1, v}});
  }
  if (c.sinks) shapes.push_back({"sinks", {c.num_heads}});
  if (c.qk_norm) {
    shapes.push_back({"q_norm.weight", {c.head_dim}});
    shapes.push_back({"k_norm.weight", {c.head_dim}});
  }
  ModuleParameters parameters;
  for (const auto& [name, shape] : shapes) {
    const auto& values = parameters.values[name] = sixteenths(random, shape.elements());
    parameters.dict.emplace(name, ConstTensor(values.data(), shape));
  }
  return parameters;
}

MultiHeadAttention module_of(const MultiHeadAttentionConfig& config, const StateDict& dict) {
  MultiHeadAttention module;
  Status status = MultiHeadAttention::create(config, module);
  if (status.ok()) status = module.load_state_dict(dict);
  EXPECT_TRUE(status.ok()) << status.message();
  return module;
}

ModuleExpectation expected_of(const MultiHeadAttentionConfig& config,
                              const ModuleParameters& parameters, const ModuleTokens& tokens,
                              const std::vector<uint8_t>& visible, const std::vector<float>& bias,
                              const AttentionOptions& options) {
  MultiHeadAttention module;
  EXPECT_TRUE(MultiHeadAttention::create(config, module).ok());
  const MultiHeadAttentionConfig& c = module.config();
  const int64_t q_width = c.num_heads * c.head_dim, k_width = c.num_kv_heads * c.head_dim;
  const int64_t v_width = c.num_kv_heads * c.value_dim, merged_width = c.num_heads * c.value_dim;
  const float* weights[3];
  if (parameters.values.contains("in_proj_weight")) {
    weights[0] = parameters.at("in_proj_weight").data();
    weights[1] = weights[0] + q_width * c.embed_dim;
    weights[2] = weights[1] + k_width * c.embed_dim;
  } else {
    weights[0] = parameters.at("q_proj_weight").data();
    weights[1] = parameters.at("k_proj_weight").data();
    weights[2] = parameters.at("v_proj_weight").data();
  }
  const float* const in_bias = c.bias ? parameters.at("in_proj_bias").data() : nullptr;
  const auto bias_at = [&](int64_t first) { return c.bias ? in_bias + first : nullptr; };
  const std::vector<float>& key = tokens.key.empty() ? tokens.query : tokens.key;
  const std::vector<float>& value = tokens.value.empty() ? key : tokens.value;
  const std::vector<float> q = product(tokens.query, weights[0], bias_at(0), c.embed_dim, q_width);
  const std::vector<float> given_k = product(key, weights[1], bias_at(q_width), c.kdim, k_width);
  const std::vector<float> given_v =
      product(value, weights[2], bias_at(q_width + k_width), c.vdim, v_width);

  const int64_t appended = (c.add_bias_kv ? 1 : 0) + (c.add_zero_attn ? 1 : 0);
  const int64_t keys = tokens.keys + appended;
  std::vector<float> k, v;
  for (int64_t b = 0; b < tokens.batch; ++b) {
    const auto join = [&](std::vector<float>& to, const std::vector<float>& from, int64_t width,
                          const char* name) {
      to.insert(to.end(), from.begin() + b * tokens.keys * width,
                from.begin() + (b + 1) * tokens.keys * width);
      if (c.add_bias_kv) {
        to.insert(to.end(), parameters.at(name).begin(), parameters.at(name).end());
      }
      if (c.add_zero_attn) to.insert(to.end(), static_cast<size_t>(width), 0.0F);
    };
    join(k, given_k, k_width, "bias_k");
    join(v, given_v, v_width, "bias_v");
  }
  std::vector<uint8_t> mask;
  std::vector<float> biases;
  for (int64_t row = 0; row < tokens.batch * c.num_heads * tokens.queries; ++row) {
    for (int64_t j = 0; j < keys; ++j) {
      const auto cell = static_cast<size_t>(row * tokens.keys + j);
      mask.push_back(j < tokens.keys ? visible[cell] : uint8_t{1});
      biases.push_back(j < tokens.keys && !bias.empty() ? bias[cell] : 0.0F);
    }
  }
  AttentionOptions plain = options;
  const Dims scores{tokens.batch, c.num_heads, tokens.queries, keys};
  plain.causal = {};
  plain.window = {};
  plain.kv_lengths = {};
  plain.mask = {mask.data(), scores};
  plain.bias = {biases.data(), scores};
  // Appended keys have position 0, so they are not rotated.
  std::vector<int32_t> q_positions, k_positions;
  if (plain.rope.style != Rope::Style::kNone) {
    for (int32_t i = 0; i < tokens.queries; ++i) q_positions.push_back(i);
    for (int32_t j = 0; j < keys; ++j) k_positions.push_back(j < tokens.keys ? j : 0);
    plain.rope.q_positions = q_positions;
    plain.rope.k_positions = k_positions;
  }
  const auto heads = [&](const std::vector<float>& x, int64_t rows, int64_t count, int64_t width) {
    return ConstTensor(x.data(), {tokens.batch, count, rows, width},
                       {rows * count * width, width, count * width, 1});
  };
  const reference::ReferenceOutputs attended = reference::attention(
      heads(q, tokens.queries, c.num_heads, c.head_dim), heads(k, keys, c.num_kv_heads, c.head_dim),
      heads(v, keys, c.num_kv_heads, c.value_dim), plain);

  ModuleExpectation expected{.out = {}, .weights = attended.weights, .merged = {}};
  for (int64_t b = 0; b < tokens.batch; ++b) {
    for (int64_t i = 0; i < tokens.queries; ++i) {
      for (int64_t h = 0; h < c.num_heads; ++h) {
        const auto from =
            attended.out.begin() + ((b * c.num_heads + h) * tokens.queries + i) * c.value_dim;
        expected.merged.insert(expected.merged.end(), from, from + c.value_dim);
      }
    }
  }
  if (!c.out_proj) {
    expected.out = expected.merged;
    return expected;
  }
  const std::vector<float>& out_proj = parameters.at("out_proj.weight");
  for (int64_t row = 0; row < tokens.batch * tokens.queries; ++row) {
    for (int64_t o = 0; o < c.out_dim; ++o) {
      double sum = c.bias
                       ? static_cast<double>(parameters.at("out_proj.bias")[static_cast<size_t>(o)])
                       : 0.0;
      for (int64_t i = 0; i < merged_width; ++i) {
        sum += expected.merged[static_cast<size_t>(row * merged_width + i)] *
               static_cast<double>(out_proj[static_cast<size_t>(o * merged_width + i)]);
      }
      expected.out.push_back(sum);
    }
  }
  return expected;
}

}  // namespace multihead::testing
