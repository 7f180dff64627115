// Golden cases of whole modules.
#include <algorithm>
#include <string>
#include <utility>

#include "conformance_case.h"

namespace multihead::conformance {
namespace {

// (H, d_in, d_head), used as x W, to (H * d_head, d_in), used as x W^T.
Values stack_heads(const Values& w) {
  const int64_t heads = w.shape[0], in = w.shape[1], width = w.shape[2];
  Values stacked({heads * width, in});
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < in; ++i) {
      for (int64_t c = 0; c < width; ++c) {
        stacked.data[static_cast<size_t>((h * width + c) * in + i)] =
            w.data[static_cast<size_t>((h * in + i) * width + c)];
      }
    }
  }
  return stacked;
}

// The same matrix, used the other way round.
ConstTensor transposed(const Values& w) {
  return {w.data.data(), {w.shape[1], w.shape[0]}, {1, w.shape[1]}};
}

struct Needs {
  bool weights = false, mean_weights = false;
};

// Runs a module on tensors of any layout and gives `out` and, on request, `weights`.
Outcome run_module(const MultiHeadAttention& module, const MultiHeadAttentionInputs& inputs,
                   const MultiHeadAttentionOptions& options, Needs needs, Context& context) {
  const MultiHeadAttentionConfig& config = module.config();
  const Dims shape = inputs.query.shape;
  const int rank = shape.rank();
  const ConstTensor& key = inputs.key.given() ? inputs.key : inputs.query;
  if (rank < 2 || key.shape.rank() != rank) {
    return {{},
            "query, key: expected the same rank, got " + shape.to_string() + " and " +
                key.shape.to_string()};
  }
  const int tokens = rank == 3 && config.batch_first ? 1 : 0;
  const int64_t batch = rank == 2 ? 1 : shape[1 - tokens];
  const int64_t keys =
      key.shape[tokens] + (config.add_bias_kv ? 1 : 0) + (config.add_zero_attn ? 1 : 0);
  Dims out_shape = shape;
  out_shape[rank - 1] = config.out_dim;
  Dims per_head{config.num_heads, shape[tokens], keys}, mean{shape[tokens], keys};
  if (rank == 3) {
    per_head = {batch, config.num_heads, shape[tokens], keys};
    mean = {batch, shape[tokens], keys};
  }
  if (!fit({out_shape, {batch, config.num_heads, shape[tokens], keys}})) return too_large();
  Values out(out_shape), weights;
  MultiHeadAttentionOutputs outputs{.out = out.tensor()};
  if (needs.weights || needs.mean_weights) weights = Values(needs.weights ? per_head : mean);
  if (needs.weights) outputs.weights = weights.tensor();
  if (needs.mean_weights) outputs.mean_weights = weights.tensor();
  const Status status = module.forward(inputs, options, outputs, nullptr, context);
  if (!status.ok()) return failed(status);
  Outcome outcome;
  outcome.outputs["out"] = std::move(out);
  if (needs.weights || needs.mean_weights) outcome.outputs["weights"] = std::move(weights);
  return outcome;
}

}  // namespace

Outcome run_heads_concat(const Case& c, Context& context) {
  const Values x = c.floats("x");
  const Values w_q = c.floats("w_q"), w_k = c.floats("w_k"), w_v = c.floats("w_v");
  if (!(w_k.shape == w_q.shape) || !(w_v.shape == w_q.shape)) {
    return {{},
            "w_k, w_v: expected " + w_q.shape.to_string() + " like w_q, got " +
                w_k.shape.to_string() + " and " + w_v.shape.to_string()};
  }
  const int64_t heads = w_q.shape[0];
  if (heads == 0 || c.integer("num_heads", heads) != heads) {
    return {{},
            expected("attrs.num_heads", "the " + std::to_string(heads) + " heads of w_q",
                     c.given("num_heads"))};
  }
  const Values q = stack_heads(w_q), k = stack_heads(w_k), v = stack_heads(w_v);
  const Values o = c.floats("w_o");
  StateDict dict{
      {"q_proj_weight", q.view()}, {"k_proj_weight", k.view()}, {"v_proj_weight", v.view()}};
  if (c.has_input("w_o")) dict.emplace("out_proj.weight", transposed(o));
  MultiHeadAttention module;
  Status status = MultiHeadAttention::create({.embed_dim = w_q.shape[1],
                                              .num_heads = heads,
                                              .head_dim = w_q.shape[2],
                                              .out_dim = c.has_input("w_o") ? o.shape[1] : 0,
                                              .bias = false,
                                              .out_proj = c.has_input("w_o")},
                                             module);
  if (status.ok()) status = module.load_state_dict(dict);
  if (!status.ok()) return failed(status);
  return run_module(
      module, {.query = x.view()},
      {.attention = {.causal = c.flag("causal") ? Causal::top_left() : Causal::none()}},
      {.weights = true}, context);
}

// The parameters are the inputs of the case under their own names, all of which must be known.
Outcome run_multihead_attention(const Case& c, Context& context) {
  const Values query = c.floats("query"), key = c.floats("key"), value = c.floats("value");
  if (c.flag("unbatched") != (query.shape.rank() == 2)) {
    return {{},
            "query: expected rank " + std::string(c.flag("unbatched") ? "2" : "3") + ", got " +
                query.shape.to_string()};
  }
  if (c.flag("self_attention") != !c.has_input("key")) {
    return {{}, "key: expected none in self-attention, and else one"};
  }
  std::map<std::string, Values> parameters;
  StateDict dict;
  for (const char* name :
       {"in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias",
        "bias_k", "bias_v", "out_proj.weight", "out_proj.bias"}) {
    if (!c.has_input(name)) continue;
    dict.emplace(name, parameters.emplace(name, c.floats(name)).first->second.view());
  }
  const json* const bias = c.given("bias");
  MultiHeadAttention module;
  Status status = MultiHeadAttention::create({.embed_dim = c.integer("embed_dim", 0),
                                              .num_heads = c.integer("num_heads", 0),
                                              .kdim = c.integer("kdim", 0),
                                              .vdim = c.integer("vdim", 0),
                                              .bias = bias == nullptr || c.flag("bias"),
                                              .add_bias_kv = c.flag("add_bias_kv"),
                                              .add_zero_attn = c.flag("add_zero_attn"),
                                              .batch_first = c.flag("batch_first")},
                                             module);
  if (status.ok()) status = module.load_state_dict(dict);
  if (!status.ok()) return failed(status);

  MultiHeadAttentionOptions options;
  if (c.flag("is_causal")) options.attention.causal = Causal::top_left();
  const Values bias_mask = c.floats("attn_mask"), padding_bias = c.floats("key_padding_mask");
  const auto boolean = [](const SafetensorsEntry& entry) {
    return ConstBoolTensor(reinterpret_cast<const uint8_t*>(entry.data.data()), entry.shape);
  };
  if (const SafetensorsEntry* mask = c.input("attn_mask"); mask != nullptr) {
    if (mask->type == SafetensorsEntry::Type::kBool) {
      options.attn_mask_blocked = boolean(*mask);
    } else {
      const Dims& shape = mask->shape;
      const int64_t heads = module.config().num_heads;
      options.attention.bias =
          shape.rank() == 2
              ? bias_mask.view()
              : ConstTensor(bias_mask.data.data(), {shape[0] / heads, heads, shape[1], shape[2]});
    }
  }
  if (const SafetensorsEntry* mask = c.input("key_padding_mask"); mask != nullptr) {
    if (mask->type == SafetensorsEntry::Type::kBool) {
      options.key_padding_blocked = boolean(*mask);
    } else {
      options.key_padding_bias = padding_bias.view();
    }
  }
  const bool needs = c.flag("need_weights"), averaged = c.flag("average_attn_weights");
  return run_module(module, {.query = query.view(), .key = key.view(), .value = value.view()},
                    options, {.weights = needs && !averaged, .mean_weights = needs && averaged},
                    context);
}

}  // namespace multihead::conformance
