// Golden cases of whole modules.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "conformance_case.h"

namespace multihead::conformance {
namespace {

// Converts weights (H, d_in, d_head), used as x W, to (H * d_head, d_in), used as x W^T.
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

// The transposed matrix.
ConstTensor transposed(const Values& w) {
  return {w.data.data(), {w.shape[1], w.shape[0]}, {1, w.shape[1]}};
}

struct Needs {
  bool weights = false, mean_weights = false;
};

// Runs a module on tensors of any layout; returns `out` and, on request, `weights`.
Outcome run_module(const MultiHeadAttention& module, const MultiHeadAttentionInputs& inputs,
                   const MultiHeadAttentionOptions& options, Needs needs, Context& context) {
  const MultiHeadAttentionConfig& config = module.config();
  const Dims shape = inputs.query.shape;
  const int rank = shape.rank();
  const ConstTensor& key = inputs.key.given() ? inputs.key : inputs.query;
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
  const int64_t heads = w_q.shape[0];
  c.implied({"num_heads"});
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

namespace {

// A case of torch.nn.MultiheadAttention: the module, its inputs and options, and their memory.
struct ModuleCase {
  explicit ModuleCase(const Case& given) : c(given) {}
  ModuleCase(const ModuleCase&) = delete;
  ModuleCase& operator=(const ModuleCase&) = delete;

  const Case& c;
  Values query = c.floats("query"), key = c.floats("key"), value = c.floats("value");
  Values bias_mask = c.floats("attn_mask"), padding_bias = c.floats("key_padding_mask");
  std::map<std::string, Values> parameters;
  MultiHeadAttention module;
  MultiHeadAttentionOptions options;

  MultiHeadAttentionInputs inputs() const {
    return {.query = query.view(), .key = key.view(), .value = value.view()};
  }
  Needs needs() const {
    const bool wanted = c.flag("need_weights"), averaged = c.flag("average_attn_weights");
    return {.weights = wanted && !averaged, .mean_weights = wanted && averaged};
  }
};

// Reads the case's inputs as the module's parameters of the same names; other names are errors.
// Returns the error, or an empty string.
std::string read_module(ModuleCase& m) {
  const Case& c = m.c;
  c.implied({"unbatched", "self_attention"});
  StateDict dict;
  for (const char* name :
       {"in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias",
        "bias_k", "bias_v", "out_proj.weight", "out_proj.bias"}) {
    if (!c.has_input(name)) continue;
    dict.emplace(name, m.parameters.emplace(name, c.floats(name)).first->second.view());
  }
  const json* const bias = c.given("bias");
  Status status = MultiHeadAttention::create({.embed_dim = c.integer("embed_dim", 0),
                                              .num_heads = c.integer("num_heads", 0),
                                              .kdim = c.integer("kdim", 0),
                                              .vdim = c.integer("vdim", 0),
                                              .bias = bias == nullptr || c.flag("bias"),
                                              .add_bias_kv = c.flag("add_bias_kv"),
                                              .add_zero_attn = c.flag("add_zero_attn"),
                                              .batch_first = c.flag("batch_first")},
                                             m.module);
  if (status.ok()) status = m.module.load_state_dict(dict);
  if (!status.ok()) return status.message();

  if (c.flag("is_causal")) m.options.attention.causal = Causal::top_left();
  const auto boolean = [](const SafetensorsEntry& entry) {
    return ConstBoolTensor(reinterpret_cast<const uint8_t*>(entry.data.data()), entry.shape);
  };
  if (const SafetensorsEntry* mask = c.input("attn_mask"); mask != nullptr) {
    if (mask->type == SafetensorsEntry::Type::kBool) {
      m.options.attn_mask_blocked = boolean(*mask);
    } else {
      const Dims& shape = mask->shape;
      const int64_t heads = m.module.config().num_heads;
      m.options.attention.bias =
          shape.rank() == 2
              ? m.bias_mask.view()
              : ConstTensor(m.bias_mask.data.data(), {shape[0] / heads, heads, shape[1], shape[2]});
    }
  }
  if (const SafetensorsEntry* mask = c.input("key_padding_mask"); mask != nullptr) {
    if (mask->type == SafetensorsEntry::Type::kBool) {
      m.options.key_padding_blocked = boolean(*mask);
    } else {
      m.options.key_padding_bias = m.padding_bias.view();
    }
  }
  return {};
}

}  // namespace

Outcome run_multihead_attention(const Case& c, Context& context) {
  ModuleCase m(c);
  if (std::string problem = read_module(m); !problem.empty()) return {{}, problem};
  return run_module(m.module, m.inputs(), m.options, m.needs(), context);
}

// Computes the gradients of sum(d_out * out).
Outcome run_multihead_attention_grad(const Case& c, Context& context) {
  ModuleCase m(c);
  if (std::string problem = read_module(m); !problem.empty()) return {{}, problem};
  Outcome outcome = run_module(m.module, m.inputs(), m.options, m.needs(), context);
  if (!outcome.failure.empty()) return outcome;
  const Values d_out = c.floats("d_out");
  std::vector<float> block(static_cast<size_t>(m.module.num_parameters()), 0.0F);
  MultiHeadAttentionGradients gradients;
  Values d_query(m.query.shape), d_key(m.key.shape), d_value(m.value.shape);
  gradients.d_query = d_query.tensor();
  if (c.has_input("key")) gradients.d_key = d_key.tensor();
  if (c.has_input("value")) gradients.d_value = d_value.tensor();
  StateDict named;
  Status status = m.module.gradients_in(block, gradients.weights);
  if (status.ok()) {
    status = m.module.backward(m.inputs(), m.options, d_out.view(), nullptr, gradients, context);
  }
  if (status.ok()) status = m.module.named(block, named);
  if (!status.ok()) return failed(status);
  for (const auto& [name, tensor] : named) {
    const auto* const data = static_cast<const float*>(tensor.data);
    Values gradient(tensor.shape);
    std::copy_n(data, gradient.data.size(), gradient.data.begin());
    outcome.outputs["d_" + name] = std::move(gradient);
  }
  outcome.outputs["d_query"] = std::move(d_query);
  if (c.has_input("key")) outcome.outputs["d_key"] = std::move(d_key);
  if (c.has_input("value")) outcome.outputs["d_value"] = std::move(d_value);
  return outcome;
}

// Weights in these cases are (in, out); `hidden_l` is x after layer l.
Outcome run_attention_only_transformer(const Case& c, Context& context) {
  const Values embedding = c.floats("tok_emb"), position = c.floats("pos_emb");
  const Values unembed = c.floats("unembed");
  const SafetensorsEntry& given = *c.input("tokens");
  const std::vector<int32_t> tokens = c.integers("tokens");
  const std::string positions = c.text("positions", "none");
  const int64_t heads = c.integer("num_heads", 0), width = c.integer("head_dim", 0);
  const int64_t kv_heads = c.integer("num_kv_heads", heads), layers = c.integer("layers", 0);
  c.implied({"vocab"});
  TransformerConfig config{.block = {.attention = {.embed_dim = embedding.shape[1],
                                                   .num_heads = heads,
                                                   .head_dim = width,
                                                   .num_kv_heads = kv_heads,
                                                   .bias = false},
                                     .norm = Norm::kNone},
                           .num_layers = layers,
                           .vocab_size = embedding.shape[0],
                           .max_positions = positions == "learned" ? position.shape[0] : 0};
  Rope& rope = config.block.attention.rope;
  rope.base = c.number("rope_base", rope.base);
  if (positions == "rope_half" || positions == "rope_interleaved") {
    rope.style = positions == "rope_half" ? Rope::Style::kHalf : Rope::Style::kInterleaved;
  } else if (positions != "learned") {
    return unsupported("positions " + positions);
  }
  std::map<std::string, Values> stacked;
  StateDict dict{{"embedding.weight", embedding.view()}, {"output.weight", transposed(unembed)}};
  if (config.max_positions > 0) dict.emplace("position.weight", position.view());
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string from = "layers." + std::to_string(layer) + ".", to = from + "self_attn.";
    Values& in_proj = stacked[to];
    int64_t rows = 0;
    for (const char* part : {"w_q", "w_k", "w_v"}) {
      const Values w = c.floats(from + part);
      rows += w.shape[1];
      for (int64_t column = 0; column < w.shape[1]; ++column) {
        for (int64_t row = 0; row < w.shape[0]; ++row) {
          in_proj.data.push_back(w.data[static_cast<size_t>(row * w.shape[1] + column)]);
        }
      }
    }
    in_proj.shape = {rows, embedding.shape[1]};
    dict.emplace(to + "in_proj_weight", in_proj.view());
    const Values& w_o = stacked[to + "out"] = c.floats(from + "w_o");
    dict.emplace(to + "out_proj.weight", transposed(w_o));
  }
  const int64_t batch = given.shape[0], length = given.shape[1];
  Transformer model;
  Status status = Transformer::create(config, model);
  if (status.ok()) status = model.load_state_dict(dict);
  if (!status.ok()) return failed(status);
  Values hidden({layers, batch, length, embedding.shape[1]});
  Values logits({batch, length, embedding.shape[0]});
  status = model.forward(tokens, batch, {}, {.logits = logits.tensor(), .hidden = hidden.tensor()},
                         context);
  if (!status.ok()) return failed(status);
  Outcome outcome;
  outcome.outputs["logits"] = std::move(logits);
  for (int64_t layer = 0; layer < layers; ++layer) {
    Values after({batch, length, embedding.shape[1]});
    const int64_t floats = after.shape.elements();
    std::copy_n(hidden.data.begin() + layer * floats, floats, after.data.begin());
    outcome.outputs["hidden_" + std::to_string(layer)] = std::move(after);
  }
  return outcome;
}

Outcome run_gpt2_block(const Case& c, Context& context) {
  const Values x = c.floats("x");
  if (c.text("gelu", "tanh") != "tanh") return unsupported("gelu " + c.text("gelu", ""));
  std::map<std::string, Values> parameters;
  StateDict dict;
  for (const auto& [name, tensor] : c["inputs"].items()) {
    if (name == "x") continue;
    dict.emplace(name, parameters.emplace(name, c.floats(name)).first->second.view());
  }
  TransformerBlock block;
  Status status = TransformerBlock::create(
      {.attention = {.embed_dim = x.shape[2], .num_heads = c.integer("num_heads", 0)},
       .mlp_dim = c.floats("mlp.c_fc.weight").shape[1],
       .activation = Activation::kGeluTanh,
       .norm_eps = static_cast<float>(c.number("eps", 1e-5))},
      block);
  if (status.ok()) status = block.load_state_dict(dict, ParameterNames::kGpt2);
  if (!status.ok()) return failed(status);
  Values out(x.shape), attended(x.shape);
  status =
      block.forward(x.view(), {.attention = {.causal = Causal::top_left()}},
                    {.out = out.tensor(), .attention_out = attended.tensor()}, nullptr, context);
  if (!status.ok()) return failed(status);
  return {{{"out", std::move(out)}, {"attn_out", std::move(attended)}}, {}};
}

}  // namespace multihead::conformance
