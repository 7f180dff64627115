// What a MultiHeadAttention is made of: its config and its parameters.
#include <atomic>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "engine/validate.h"
#include "multihead/multi_head_attention.h"
#include "nn/parameters.h"

namespace multihead {
namespace {

using engine::option_error;
using engine::validate_exact;

// In ascending order: those up to the root, then what each of them goes with.
std::string divisors_of(int64_t number) {
  std::vector<int64_t> divisors;
  for (int64_t low = 1; low * low <= number; ++low) {
    if (number % low == 0) divisors.push_back(low);
  }
  for (size_t i = divisors.size(); i-- > 0;) {
    const int64_t low = divisors[i];
    if (low != number / low) divisors.push_back(number / low);
  }
  std::string text;
  for (size_t i = 0; i < divisors.size(); ++i) {
    if (i > 0) text += i + 1 == divisors.size() ? " or " : ", ";
    text += std::to_string(divisors[i]);
  }
  return text;
}

Status validate_extents(const MultiHeadAttentionConfig& c) {
  // Far beyond any model, and small enough for products of three.
  constexpr int64_t kMost = 1 << 20;
  const struct {
    const char* name;
    int64_t value;
    const char* otherwise;  // what 0 stands for; null where 0 is an error
  } extents[] = {{"embed_dim", c.embed_dim, nullptr},
                 {"num_heads", c.num_heads, nullptr},
                 {"head_dim", c.head_dim, "embed_dim / num_heads"},
                 {"num_kv_heads", c.num_kv_heads, "num_heads"},
                 {"value_dim", c.value_dim, "head_dim"},
                 {"kdim", c.kdim, "embed_dim"},
                 {"vdim", c.vdim, "embed_dim"},
                 {"out_dim", c.out_dim, "embed_dim"}};
  for (const auto& [name, value, otherwise] : extents) {
    if (value >= (otherwise == nullptr ? 1 : 0) && value <= kMost) continue;
    return option_error(name,
                        otherwise == nullptr
                            ? "a number from 1 to 1048576"
                            : "a number up to 1048576, or 0 for " + std::string(otherwise),
                        std::to_string(value));
  }
  if (c.head_dim == 0 && c.embed_dim % c.num_heads != 0) {
    return option_error("num_heads",
                        "a divisor of embed_dim = " + std::to_string(c.embed_dim) + " (" +
                            divisors_of(c.embed_dim) + ")",
                        std::to_string(c.num_heads));
  }
  if (c.num_kv_heads != 0 && c.num_heads % c.num_kv_heads != 0) {
    return option_error("num_kv_heads",
                        "a divisor of num_heads = " + std::to_string(c.num_heads) + " (" +
                            divisors_of(c.num_heads) + ")",
                        std::to_string(c.num_kv_heads));
  }
  return {};
}

// What the options of attention() check of a model's own ones.
Status validate_model_options(const MultiHeadAttentionConfig& c) {
  if (c.window.alignment != Alignment::kNone) {
    return option_error("window.alignment", "none: it is the call's", "one");
  }
  if (!c.rope.q_positions.empty() || !c.rope.k_positions.empty()) {
    return option_error("rope", "no positions: they are the call's", "some");
  }
  AttentionOptions options;
  options.window = c.window;
  options.softcap = c.softcap;
  options.rope = c.rope;
  options.qk_norm.enabled = c.qk_norm;
  options.qk_norm.epsilon = c.qk_norm ? c.qk_norm_eps : options.qk_norm.epsilon;
  options.dropout.probability = c.dropout;
  const engine::AttentionShape shape{.batch = 1,
                                     .heads = c.num_heads,
                                     .kv_heads = c.num_kv_heads,
                                     .queries = 1,
                                     .keys = 1,
                                     .key_width = c.head_dim,
                                     .value_width = c.value_dim};
  return engine::validate_options(options, shape);
}

Status validate_weights(const MultiHeadAttentionConfig& c, const MultiHeadAttentionWeights& w) {
  const int64_t q = c.num_heads * c.head_dim, k = c.num_kv_heads * c.head_dim;
  const int64_t v = c.num_kv_heads * c.value_dim, merged = c.num_heads * c.value_dim;
  if (w.out_bias.given() && !w.out_proj.given()) {
    return option_error("out_bias", "out_proj beside it", "no out_proj");
  }
  if (!c.out_proj && w.out_proj.given()) {
    return option_error("out_proj", "none, as the config says", "one");
  }
  const struct {
    const char* name;
    const char* letters;
    const ConstTensor& tensor;
    Dims shape;
    bool required;
  } parameters[] = {
      {"q_proj", "(num_heads * head_dim, embed_dim)", w.q_proj, {q, c.embed_dim}, true},
      {"k_proj", "(num_kv_heads * head_dim, kdim)", w.k_proj, {k, c.kdim}, true},
      {"v_proj", "(num_kv_heads * value_dim, vdim)", w.v_proj, {v, c.vdim}, true},
      {"q_bias", "(num_heads * head_dim)", w.q_bias, {q}, false},
      {"k_bias", "(num_kv_heads * head_dim)", w.k_bias, {k}, false},
      {"v_bias", "(num_kv_heads * value_dim)", w.v_bias, {v}, false},
      {"out_proj", "(out_dim, num_heads * value_dim)", w.out_proj, {c.out_dim, merged}, c.out_proj},
      {"out_bias", "(out_dim)", w.out_bias, {c.out_dim}, false},
      {"bias_k", "(num_kv_heads * head_dim)", w.bias_k, {k}, c.add_bias_kv},
      {"bias_v", "(num_kv_heads * value_dim)", w.bias_v, {v}, c.add_bias_kv},
      {"sinks", "(num_heads)", w.sinks, {c.num_heads}, c.sinks},
      {"q_norm", "(head_dim)", w.q_norm, {c.head_dim}, false},
      {"k_norm", "(head_dim)", w.k_norm, {c.head_dim}, false},
  };
  for (const auto& [name, letters, tensor, shape, required] : parameters) {
    if (!required && !tensor.given()) continue;
    if (Status status = validate_exact(name, letters, tensor, shape); !status.ok()) return status;
  }
  const struct {
    const char* name;
    const ConstTensor& tensor;
    bool in_config;
  } optional[] = {{"bias_k", w.bias_k, c.add_bias_kv},
                  {"bias_v", w.bias_v, c.add_bias_kv},
                  {"sinks", w.sinks, c.sinks},
                  {"q_norm", w.q_norm, c.qk_norm},
                  {"k_norm", w.k_norm, c.qk_norm}};
  for (const auto& [name, tensor, in_config] : optional) {
    if (tensor.given() && !in_config) {
      return option_error(name, "none, as the config says", "one");
    }
  }
  return {};
}

ConstTensor rows_of(const ConstTensor& whole, int64_t first, int64_t count) {
  if (!whole.given()) return {};
  Dims shape = whole.shape;
  shape[0] = count;
  return {whole.data + first * whole.strides[0], shape, whole.strides};
}

ConstTensor flat(const ConstTensor& tensor) {
  if (!tensor.given()) return {};
  return {tensor.data, {tensor.shape.elements()}};
}

}  // namespace

Status MultiHeadAttention::create(const MultiHeadAttentionConfig& config,
                                  MultiHeadAttention& module) {
  if (Status status = validate_extents(config); !status.ok()) return status;
  MultiHeadAttention made;
  made.config_ = config;
  MultiHeadAttentionConfig& c = made.config_;
  const auto otherwise = [](int64_t& value, int64_t instead) {
    if (value == 0) value = instead;
  };
  otherwise(c.head_dim, c.embed_dim / c.num_heads);
  otherwise(c.num_kv_heads, c.num_heads);
  otherwise(c.value_dim, c.head_dim);
  otherwise(c.kdim, c.embed_dim);
  otherwise(c.vdim, c.embed_dim);
  otherwise(c.out_dim, c.embed_dim);
  if (!c.out_proj) c.out_dim = c.num_heads * c.value_dim;
  if (Status status = validate_model_options(c); !status.ok()) return status;
  static std::atomic<uint64_t> made_so_far{0};
  made.id_ = ++made_so_far;
  module = std::move(made);
  return {};
}

Status MultiHeadAttention::load_state_dict(const StateDict& dict) {
  const MultiHeadAttentionConfig& c = config_;
  if (id_ == 0) return option_error("module", "one that was created", "none");
  const int64_t q = c.num_heads * c.head_dim, k = c.num_kv_heads * c.head_dim;
  const int64_t v = c.num_kv_heads * c.value_dim, merged = c.num_heads * c.value_dim;
  const bool separate =
      c.kdim != c.embed_dim || c.vdim != c.embed_dim || dict.contains("q_proj_weight");
  auto parameters = std::make_shared<nn::Parameters>();
  if (separate) {
    parameters->add("q_proj_weight", {q, c.embed_dim});
    parameters->add("k_proj_weight", {k, c.kdim});
    parameters->add("v_proj_weight", {v, c.vdim});
  } else {
    parameters->add("in_proj_weight", {q + k + v, c.embed_dim});
  }
  if (c.bias) parameters->add("in_proj_bias", {q + k + v});
  if (c.out_proj) parameters->add("out_proj.weight", {c.out_dim, merged});
  if (c.out_proj && c.bias) parameters->add("out_proj.bias", {c.out_dim});
  if (c.add_bias_kv) {
    parameters->add("bias_k", {1, 1, k});
    parameters->add("bias_v", {1, 1, v});
  }
  if (c.sinks) parameters->add("sinks", {c.num_heads});
  if (c.qk_norm) {
    parameters->add("q_norm.weight", {c.head_dim});
    parameters->add("k_norm.weight", {c.head_dim});
  }
  if (Status status = parameters->load(dict); !status.ok()) return status;

  const nn::Parameters& p = *parameters;
  const ConstTensor in_proj = p.find("in_proj_weight"), in_bias = p.find("in_proj_bias");
  weights_ = {.q_proj = separate ? p.find("q_proj_weight") : rows_of(in_proj, 0, q),
              .k_proj = separate ? p.find("k_proj_weight") : rows_of(in_proj, q, k),
              .v_proj = separate ? p.find("v_proj_weight") : rows_of(in_proj, q + k, v),
              .q_bias = rows_of(in_bias, 0, q),
              .k_bias = rows_of(in_bias, q, k),
              .v_bias = rows_of(in_bias, q + k, v),
              .out_proj = p.find("out_proj.weight"),
              .out_bias = p.find("out_proj.bias"),
              .bias_k = flat(p.find("bias_k")),
              .bias_v = flat(p.find("bias_v")),
              .sinks = p.find("sinks"),
              .q_norm = p.find("q_norm.weight"),
              .k_norm = p.find("k_norm.weight")};
  owned_ = std::move(parameters);
  return {};
}

Status MultiHeadAttention::state_dict(StateDict& dict) const {
  if (owned_ == nullptr) {
    return option_error("state_dict", "parameters from load_state_dict()", "none, or views");
  }
  dict = owned_->state_dict();
  return {};
}

Status MultiHeadAttention::use_weights(const MultiHeadAttentionWeights& weights) {
  if (id_ == 0) return option_error("module", "one that was created", "none");
  if (Status status = validate_weights(config_, weights); !status.ok()) return status;
  weights_ = weights;
  owned_ = nullptr;
  return {};
}

}  // namespace multihead
