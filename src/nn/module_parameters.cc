#include "nn/module_parameters.h"

#include <cstdint>
#include <string>

#include "engine/validate.h"

namespace multihead::nn {
namespace {

using engine::Axes;
using engine::Message;
using engine::Name;
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
    return option_error(Name::kOutBias, Message::kOutProjForBias);
  }
  const Rows rows(c);
  const bool latent = c.kv_latent_dim > 0, q_latent = c.q_latent_dim > 0;
  enum class Need : uint8_t { kNone, kOptional, kRequired };
  const auto required_if = [](bool there) { return there ? Need::kRequired : Need::kNone; };
  const auto optional_if = [](bool there) { return there ? Need::kOptional : Need::kNone; };
  const struct {
    Name name;
    Axes axes;
    const ConstTensor& tensor;
    Dims shape;
    Need need;
  } parameters[] = {
      {Name::kQProj, Axes::kQProj, w.q_proj, {rows.q, c.embed_dim}, required_if(!q_latent)},
      {Name::kKProj, Axes::kKProj, w.k_proj, {rows.k, c.kdim}, required_if(!latent)},
      {Name::kVProj, Axes::kVProj, w.v_proj, {rows.v, c.vdim}, required_if(!latent)},
      {Name::kQBias, Axes::kQBias, w.q_bias, {rows.q}, optional_if(!latent)},
      {Name::kKBias, Axes::kKBias, w.k_bias, {rows.k}, optional_if(!latent)},
      {Name::kVBias, Axes::kVBias, w.v_bias, {rows.v}, optional_if(!latent)},
      {Name::kOutProj,
       Axes::kOutProj,
       w.out_proj,
       {c.out_dim, rows.merged},
       required_if(c.out_proj)},
      {Name::kOutBias, Axes::kOutBias, w.out_bias, {c.out_dim}, Need::kOptional},
      {Name::kBiasK, Axes::kKBias, w.bias_k, {rows.k}, required_if(c.add_bias_kv)},
      {Name::kBiasV, Axes::kVBias, w.bias_v, {rows.v}, required_if(c.add_bias_kv)},
      {Name::kSinks, Axes::kSinks, w.sinks, {c.num_heads}, required_if(c.sinks)},
      {Name::kQNorm, Axes::kHeadNorm, w.q_norm, {c.head_dim}, optional_if(c.qk_norm)},
      {Name::kKNorm, Axes::kHeadNorm, w.k_norm, {c.head_dim}, optional_if(c.qk_norm)},
      {Name::kQAProj,
       Axes::kQAProj,
       w.q_a_proj,
       {c.q_latent_dim, c.embed_dim},
       required_if(q_latent)},
      {Name::kQABias, Axes::kQLatent, w.q_a_bias, {c.q_latent_dim}, optional_if(q_latent)},
      {Name::kQANorm, Axes::kQLatent, w.q_a_norm, {c.q_latent_dim}, optional_if(q_latent)},
      {Name::kQBProj, Axes::kQBProj, w.q_b_proj, {rows.q, c.q_latent_dim}, required_if(q_latent)},
      {Name::kKvAProj,
       Axes::kKvAProj,
       w.kv_a_proj,
       {latent_rows(c), c.embed_dim},
       required_if(latent)},
      {Name::kKvABias, Axes::kKvABias, w.kv_a_bias, {latent_rows(c)}, optional_if(latent)},
      {Name::kKvANorm, Axes::kKvLatent, w.kv_a_norm, {c.kv_latent_dim}, optional_if(latent)},
      {Name::kKvBProj,
       Axes::kKvBProj,
       w.kv_b_proj,
       {expanded_rows(c), c.kv_latent_dim},
       required_if(latent)},
  };
  for (const auto& [name, axes, tensor, shape, need] : parameters) {
    if (need == Need::kNone && tensor.given()) {
      return option_error(name, Message::kNotInConfig);
    }
    if (need != Need::kRequired && !tensor.given()) continue;
    if (Status status = validate_exact(name, axes, tensor, shape); !status.ok()) return status;
  }
  return {};
}

}  // namespace multihead::nn
