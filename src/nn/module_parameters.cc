#include "nn/module_parameters.h"

#include <cstdint>
#include <string>

#include "engine/validate.h"

namespace multihead::nn {
namespace {

using engine::option_error;
using engine::validate_exact;

// Rows of the four projections.
struct Rows {
  int64_t q, k, v, merged;
  explicit Rows(const MultiHeadAttentionConfig& c)
      : q(c.num_heads * c.head_dim),
        k(c.num_kv_heads * c.head_dim),
        v(c.num_kv_heads * c.value_dim),
        merged(c.num_heads * c.value_dim) {}
};

int64_t latent_rows(const MultiHeadAttentionConfig& c) { return c.kv_latent_dim + c.rope_head_dim; }
int64_t expanded_rows(const MultiHeadAttentionConfig& c) {
  return c.num_heads * (c.head_dim - c.rope_head_dim + c.value_dim);
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

void add_latent(const MultiHeadAttentionConfig& c, const std::string& prefix,
                Parameters& parameters) {
  const auto add = [&](const char* name, const Dims& shape) {
    parameters.add(prefix + name, shape);
  };
  const Rows rows(c);
  if (c.q_latent_dim == 0) {
    add("q_proj.weight", {rows.q, c.embed_dim});
  } else {
    add("q_a_proj.weight", {c.q_latent_dim, c.embed_dim});
    if (c.bias) add("q_a_proj.bias", {c.q_latent_dim});
    add("q_a_layernorm.weight", {c.q_latent_dim});
    add("q_b_proj.weight", {rows.q, c.q_latent_dim});
  }
  add("kv_a_proj_with_mqa.weight", {latent_rows(c), c.embed_dim});
  if (c.bias) add("kv_a_proj_with_mqa.bias", {latent_rows(c)});
  add("kv_a_layernorm.weight", {c.kv_latent_dim});
  add("kv_b_proj.weight", {expanded_rows(c), c.kv_latent_dim});
  if (c.out_proj) add("o_proj.weight", {c.out_dim, rows.merged});
  if (c.out_proj && c.bias) add("o_proj.bias", {c.out_dim});
}

}  // namespace

void add_attention(const MultiHeadAttentionConfig& c, const std::string& prefix,
                   const AttentionNames& names, Parameters& parameters) {
  const auto add = [&](const std::string& name, const Dims& shape) {
    parameters.add(prefix + name, shape);
  };
  const auto add_matrix = [&](const std::string& name, int64_t out, int64_t in) {
    const bool turned = names.matrices == Parameters::Stored::kTransposed;
    parameters.add(prefix + name, turned ? Dims{in, out} : Dims{out, in}, names.matrices);
  };
  if (c.kv_latent_dim > 0) {
    add_latent(c, prefix, parameters);
    if (c.sinks) add("sinks", {c.num_heads});
    return;
  }
  const Rows rows(c);
  const std::string out_proj = names.out_proj;
  if (names.separate) {
    add_matrix("q_proj_weight", rows.q, c.embed_dim);
    add_matrix("k_proj_weight", rows.k, c.kdim);
    add_matrix("v_proj_weight", rows.v, c.vdim);
  } else {
    add_matrix(names.in_proj_weight, rows.q + rows.k + rows.v, c.embed_dim);
  }
  if (c.bias) add(names.in_proj_bias, {rows.q + rows.k + rows.v});
  if (c.out_proj) add_matrix(out_proj + ".weight", c.out_dim, rows.merged);
  if (c.out_proj && c.bias) add(out_proj + ".bias", {c.out_dim});
  if (c.add_bias_kv) {
    add("bias_k", {1, 1, rows.k});
    add("bias_v", {1, 1, rows.v});
  }
  if (c.sinks) add("sinks", {c.num_heads});
  if (c.qk_norm) {
    add("q_norm.weight", {c.head_dim});
    add("k_norm.weight", {c.head_dim});
  }
}

MultiHeadAttentionWeights attention_weights(const MultiHeadAttentionConfig& c,
                                            const std::string& prefix, const AttentionNames& names,
                                            const Parameters& parameters) {
  const auto find = [&](const std::string& name) { return parameters.find(prefix + name); };
  MultiHeadAttentionWeights weights;
  weights.sinks = find("sinks");
  if (c.kv_latent_dim > 0) {
    weights.q_proj = find("q_proj.weight");
    weights.q_a_proj = find("q_a_proj.weight");
    weights.q_a_bias = find("q_a_proj.bias");
    weights.q_a_norm = find("q_a_layernorm.weight");
    weights.q_b_proj = find("q_b_proj.weight");
    weights.kv_a_proj = find("kv_a_proj_with_mqa.weight");
    weights.kv_a_bias = find("kv_a_proj_with_mqa.bias");
    weights.kv_a_norm = find("kv_a_layernorm.weight");
    weights.kv_b_proj = find("kv_b_proj.weight");
    weights.out_proj = find("o_proj.weight");
    weights.out_bias = find("o_proj.bias");
    return weights;
  }
  const Rows rows(c);
  const ConstTensor in_proj = find(names.in_proj_weight), in_bias = find(names.in_proj_bias);
  const std::string out_proj = names.out_proj;
  weights.q_proj = names.separate ? find("q_proj_weight") : rows_of(in_proj, 0, rows.q);
  weights.k_proj = names.separate ? find("k_proj_weight") : rows_of(in_proj, rows.q, rows.k);
  weights.v_proj =
      names.separate ? find("v_proj_weight") : rows_of(in_proj, rows.q + rows.k, rows.v);
  weights.q_bias = rows_of(in_bias, 0, rows.q);
  weights.k_bias = rows_of(in_bias, rows.q, rows.k);
  weights.v_bias = rows_of(in_bias, rows.q + rows.k, rows.v);
  weights.out_proj = find(out_proj + ".weight");
  weights.out_bias = find(out_proj + ".bias");
  weights.bias_k = flat(find("bias_k"));
  weights.bias_v = flat(find("bias_v"));
  weights.q_norm = find("q_norm.weight");
  weights.k_norm = find("k_norm.weight");
  return weights;
}

Status validate_weights(const MultiHeadAttentionConfig& c, const MultiHeadAttentionWeights& w) {
  if (w.out_bias.given() && !w.out_proj.given()) {
    return option_error("out_bias", "out_proj beside it", "no out_proj");
  }
  const Rows rows(c);
  const bool latent = c.kv_latent_dim > 0, q_latent = c.q_latent_dim > 0;
  enum class Need : uint8_t { kNone, kOptional, kRequired };
  const auto required_if = [](bool there) { return there ? Need::kRequired : Need::kNone; };
  const auto optional_if = [](bool there) { return there ? Need::kOptional : Need::kNone; };
  const struct {
    const char* name;
    const char* letters;
    const ConstTensor& tensor;
    Dims shape;
    Need need;
  } parameters[] = {
      {"q_proj",
       "(num_heads * head_dim, embed_dim)",
       w.q_proj,
       {rows.q, c.embed_dim},
       required_if(!q_latent)},
      {"k_proj",
       "(num_kv_heads * head_dim, kdim)",
       w.k_proj,
       {rows.k, c.kdim},
       required_if(!latent)},
      {"v_proj",
       "(num_kv_heads * value_dim, vdim)",
       w.v_proj,
       {rows.v, c.vdim},
       required_if(!latent)},
      {"q_bias", "(num_heads * head_dim)", w.q_bias, {rows.q}, optional_if(!latent)},
      {"k_bias", "(num_kv_heads * head_dim)", w.k_bias, {rows.k}, optional_if(!latent)},
      {"v_bias", "(num_kv_heads * value_dim)", w.v_bias, {rows.v}, optional_if(!latent)},
      {"out_proj",
       "(out_dim, num_heads * value_dim)",
       w.out_proj,
       {c.out_dim, rows.merged},
       required_if(c.out_proj)},
      {"out_bias", "(out_dim)", w.out_bias, {c.out_dim}, Need::kOptional},
      {"bias_k", "(num_kv_heads * head_dim)", w.bias_k, {rows.k}, required_if(c.add_bias_kv)},
      {"bias_v", "(num_kv_heads * value_dim)", w.bias_v, {rows.v}, required_if(c.add_bias_kv)},
      {"sinks", "(num_heads)", w.sinks, {c.num_heads}, required_if(c.sinks)},
      {"q_norm", "(head_dim)", w.q_norm, {c.head_dim}, optional_if(c.qk_norm)},
      {"k_norm", "(head_dim)", w.k_norm, {c.head_dim}, optional_if(c.qk_norm)},
      {"q_a_proj",
       "(q_latent_dim, embed_dim)",
       w.q_a_proj,
       {c.q_latent_dim, c.embed_dim},
       required_if(q_latent)},
      {"q_a_bias", "(q_latent_dim)", w.q_a_bias, {c.q_latent_dim}, optional_if(q_latent)},
      {"q_a_norm", "(q_latent_dim)", w.q_a_norm, {c.q_latent_dim}, optional_if(q_latent)},
      {"q_b_proj",
       "(num_heads * head_dim, q_latent_dim)",
       w.q_b_proj,
       {rows.q, c.q_latent_dim},
       required_if(q_latent)},
      {"kv_a_proj",
       "(kv_latent_dim + rope_head_dim, embed_dim)",
       w.kv_a_proj,
       {latent_rows(c), c.embed_dim},
       required_if(latent)},
      {"kv_a_bias",
       "(kv_latent_dim + rope_head_dim)",
       w.kv_a_bias,
       {latent_rows(c)},
       optional_if(latent)},
      {"kv_a_norm", "(kv_latent_dim)", w.kv_a_norm, {c.kv_latent_dim}, optional_if(latent)},
      {"kv_b_proj",
       "(num_heads * (head_dim - rope_head_dim + value_dim), kv_latent_dim)",
       w.kv_b_proj,
       {expanded_rows(c), c.kv_latent_dim},
       required_if(latent)},
  };
  for (const auto& [name, letters, tensor, shape, need] : parameters) {
    if (need == Need::kNone && tensor.given()) {
      return option_error(name, "none, as the config says", "one");
    }
    if (need != Need::kRequired && !tensor.given()) continue;
    if (Status status = validate_exact(name, letters, tensor, shape); !status.ok()) return status;
  }
  return {};
}

}  // namespace multihead::nn
