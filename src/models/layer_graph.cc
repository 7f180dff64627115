#include "models/layer_graph.h"

#include <cstddef>
#include <cstdint>

#include "nn/graph/weights.h"

namespace multihead::models {
namespace {

using nn::Graph;
using nn::kNoValue;
using nn::LayerParameters;
using nn::NormParameters;
using nn::Operation;
using nn::Projection;
using nn::ValueId;
using nn::Vector;

// Appends the operations of a layer, each of which writes a new value.
class Builder {
 public:
  Builder(const Architecture& a, const LayerParameters& layer, Graph& graph)
      : a_(a), names_(a.family->names), layer_(layer), graph_(graph) {}

  void build() {
    graph_.input = graph_.add({.width = a_.width, .site = Site::kResidPre});
    const ValueId attention_input =
        norm(names_.attention_norm, &LayerParameters::attention_norm, graph_.input);
    const ValueId attended = add_projection(attend(attention_input), &LayerParameters::o, a_.width);
    const ValueId attn_out = scaled(
        norm_in_place(names_.attention_out_norm, &LayerParameters::attention_out_norm, attended),
        &LayerParameters::attention_scale);
    graph_.values[at(attn_out)].site = Site::kAttnOut;
    if (a_.parallel) {
      // The MLP reads the input of the layer, too, behind the same norm (GPT-J) or one of its own
      // (GPT-NeoX).
      const ValueId mlp_input =
          a_.one_norm ? attention_input
                      : norm(names_.mlp_norm, &LayerParameters::mlp_norm, graph_.input);
      const ValueId sum = add(graph_.input, attn_out);
      graph_.output = add(sum, mlp(mlp_input));
    } else {
      ValueId mid = norm_in_place(names_.attention_sum_norm, &LayerParameters::attention_sum_norm,
                                  add(graph_.input, attn_out));
      graph_.values[at(mid)].site = Site::kResidMid;
      if (a_.family->encoder != nullptr) mid = cross(mid);
      const ValueId mlp_out = mlp(norm(names_.mlp_norm, &LayerParameters::mlp_norm, mid));
      graph_.output =
          norm_in_place(names_.mlp_sum_norm, &LayerParameters::mlp_sum_norm, add(mid, mlp_out));
    }
    graph_.values[at(graph_.output)].site = Site::kResidPost;
  }

 private:
  static size_t at(ValueId id) { return static_cast<size_t>(id); }

  ValueId norm(const char* name, NormParameters LayerParameters::*parameters, ValueId in) {
    if (name == nullptr) return in;
    const ValueId out = graph_.add({.width = a_.width});
    graph_.operations.push_back(
        {.kind = Operation::Kind::kNorm, .in = in, .out = out, .norm = parameters});
    return out;
  }

  ValueId norm_in_place(const char* name, NormParameters LayerParameters::*parameters, ValueId in) {
    if (name == nullptr) return in;
    const ValueId out = norm(name, parameters, in);
    graph_.values[at(out)].replaces = in;
    return out;
  }

  void project(ValueId in, Projection LayerParameters::*parameters, ValueId out,
               Operation::Share share = Operation::Share::kNone) {
    graph_.operations.push_back({.kind = Operation::Kind::kProject,
                                 .in = in,
                                 .out = out,
                                 .projection = parameters,
                                 .share = share});
  }

  ValueId add_projection(ValueId in, Projection LayerParameters::*parameters, int64_t width) {
    const ValueId out = graph_.add({.width = width});
    project(in, parameters, out);
    return out;
  }

  ValueId add(ValueId to, ValueId branch) {
    const ValueId out = graph_.add({.width = a_.width, .replaces = to});
    graph_.operations.push_back(
        {.kind = Operation::Kind::kAdd, .in = to, .in2 = branch, .out = out});
    return out;
  }

  // One of q, k and v: columns of `all`.
  ValueId columns(ValueId all, int64_t heads, int64_t first, int64_t step) {
    return graph_.add({.width = heads * a_.head_dim,
                       .heads = heads,
                       .whole = all,
                       .column = first,
                       .head_step = step});
  }

  // The value after an operation that changes it where it is.
  ValueId changed(Operation::Kind kind, ValueId in,
                  NormParameters LayerParameters::*parameters = nullptr, float number = 0.0F) {
    const nn::Value& before = graph_.value(in);
    const ValueId out = graph_.add({.width = before.width, .heads = before.heads, .replaces = in});
    graph_.operations.push_back(
        {.kind = kind, .in = in, .out = out, .norm = parameters, .number = number});
    return out;
  }

  // The output of attention or MLP times the factors of the residual stream.
  ValueId scaled(ValueId in, Vector LayerParameters::*factors) {
    if ((layer_.*factors).given()) {
      const ValueId out = changed(Operation::Kind::kScaleColumns, in);
      graph_.operations.back().vector = factors;
      return out;
    }
    if (a_.residual_factor == 1.0F) return in;
    return changed(Operation::Kind::kScale, in, nullptr, a_.residual_factor);
  }

  ValueId attend(ValueId input) {
    const ValueId all = graph_.add({.width = a_.qkv_width()});
    const int64_t d = a_.head_dim;
    const bool mixed = a_.interleaved_qkv;
    const int64_t step = mixed ? 3 * d : d;
    ValueId q = columns(all, a_.heads, 0, step);
    ValueId k = columns(all, a_.kv_heads, mixed ? d : a_.q_width(), step);
    ValueId v = columns(all, a_.kv_heads, mixed ? 2 * d : a_.q_width() + a_.kv_width(), step);
    if (layer_.qkv.given()) {
      project(input, &LayerParameters::qkv, all);
    } else {
      project(input, &LayerParameters::q, q, Operation::Share::kHeads);
      project(input, &LayerParameters::k, k, Operation::Share::kHeads);
      project(input, &LayerParameters::v, v, Operation::Share::kHeads);
    }
    if (a_.qkv_cap > 0) {
      for (ValueId* const each : {&q, &k, &v}) {
        *each = changed(Operation::Kind::kClamp, *each, nullptr, a_.qkv_cap);
      }
    }
    const auto rotate = [&] {
      q = changed(Operation::Kind::kRotate, q);
      k = changed(Operation::Kind::kRotate, k);
    };
    const bool norm_last = a_.family->norm_after_rope;
    if (a_.family->rope && norm_last) rotate();
    if (names_.q_norm != nullptr) {
      q = changed(Operation::Kind::kNormHeads, q, &LayerParameters::q_norm);
      k = changed(Operation::Kind::kNormHeads, k, &LayerParameters::k_norm);
    }
    if (a_.family->rope && !norm_last) rotate();
    graph_.values[at(q)].site = Site::kQ;
    graph_.values[at(k)].site = Site::kK;
    graph_.values[at(v)].site = Site::kV;
    const ValueId heads = graph_.add({.width = a_.q_width(), .heads = a_.heads});
    graph_.operations.push_back(
        {.kind = Operation::Kind::kAttend, .in = q, .in2 = k, .in3 = v, .out = heads});
    const ValueId z = changed(Operation::Kind::kScaleHeads, heads);
    graph_.values[at(z)].site = Site::kZ;
    return z;
  }

  // Attention of the residual stream to the output of the encoder, and the sum of both.
  ValueId cross(ValueId stream) {
    graph_.source = graph_.add({.width = a_.width, .of_source = true});
    const ValueId input = norm(names_.cross_norm, &LayerParameters::cross_norm, stream);
    const ValueId q = graph_.add({.width = a_.q_width(), .heads = a_.heads, .site = Site::kCrossQ});
    project(input, &LayerParameters::cross_q, q);
    const ValueId all = graph_.add({.width = 2 * a_.kv_width(), .of_source = true});
    const auto part = [&](Site site, int64_t first) {
      const ValueId id = columns(all, a_.kv_heads, first, a_.head_dim);
      graph_.values[at(id)].site = site;
      graph_.values[at(id)].of_source = true;
      return id;
    };
    const ValueId k = part(Site::kCrossK, 0), v = part(Site::kCrossV, a_.kv_width());
    if (layer_.cross_kv.given()) {
      project(graph_.source, &LayerParameters::cross_kv, all);
      graph_.operations.back().cross = true;
    } else {
      project(graph_.source, &LayerParameters::cross_k, k);
      graph_.operations.back().cross = true;
      project(graph_.source, &LayerParameters::cross_v, v);
      graph_.operations.back().cross = true;
    }
    const ValueId heads = graph_.add({.width = a_.q_width(), .heads = a_.heads});
    graph_.operations.push_back({.kind = Operation::Kind::kAttend,
                                 .in = q,
                                 .in2 = k,
                                 .in3 = v,
                                 .out = heads,
                                 .cross = true});
    const ValueId z = changed(Operation::Kind::kScaleHeads, heads);
    graph_.operations.back().cross = true;
    graph_.values[at(z)].site = Site::kCrossZ;
    const ValueId out = add_projection(z, &LayerParameters::cross_o, a_.width);
    graph_.values[at(out)].site = Site::kCrossAttnOut;
    const ValueId mid =
        norm_in_place(names_.cross_sum_norm, &LayerParameters::cross_sum_norm, add(stream, out));
    graph_.values[at(mid)].site = Site::kResidMidCross;
    return mid;
  }

  ValueId mlp(ValueId input) {
    const ValueId all = graph_.add({.width = a_.gated ? 2 * a_.mlp : a_.mlp});
    const auto part = [&](int64_t first) {
      return graph_.add({.width = a_.mlp, .whole = all, .column = first, .head_step = a_.mlp});
    };
    // The gate, and the factor that it multiplies.
    const bool swapped = a_.family->up_first;
    const ValueId first = part(swapped ? a_.mlp : 0);
    const ValueId second = a_.gated ? part(swapped ? 0 : a_.mlp) : kNoValue;
    if (layer_.gate_up.given()) {
      project(input, &LayerParameters::gate_up, all);
    } else if (a_.gated) {
      project(input, &LayerParameters::gate, first, Operation::Share::kHidden);
      project(input, &LayerParameters::up, second, Operation::Share::kHidden);
    } else {
      project(input, &LayerParameters::up, first, Operation::Share::kHidden);
    }
    const float stretch = a_.activation_factor;
    const ValueId input_of_f =
        stretch == 1.0F ? first : changed(Operation::Kind::kScale, first, nullptr, stretch);
    ValueId hidden = graph_.add({.width = a_.mlp, .replaces = input_of_f});
    const ValueId factor = a_.squares ? first : second;
    graph_.operations.push_back(
        {.kind = Operation::Kind::kActivate, .in = input_of_f, .in2 = factor, .out = hidden});
    if (stretch != 1.0F) {
      hidden = changed(Operation::Kind::kScale, hidden, nullptr, 1.0F / stretch);
    }
    graph_.values[at(hidden)].site = Site::kMlpHidden;
    const ValueId out =
        scaled(norm_in_place(names_.mlp_out_norm, &LayerParameters::mlp_out_norm,
                             add_projection(hidden, &LayerParameters::down, a_.width)),
               &LayerParameters::mlp_scale);
    graph_.values[at(out)].site = Site::kMlpOut;
    return out;
  }

  const Architecture& a_;
  const Names& names_;
  const LayerParameters& layer_;
  Graph& graph_;
};

}  // namespace

nn::Graph layer_graph(const Architecture& architecture, const LayerParameters& layer) {
  nn::Graph graph;
  graph.norm = {architecture.family->rms_norm, architecture.eps};
  graph.activation = architecture.activation;
  graph.norms_all_heads = architecture.family->norm_whole_qk;
  Builder(architecture, layer, graph).build();
  nn::plan(graph);
  return graph;
}

}  // namespace multihead::models
