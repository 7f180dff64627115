#include "conformance.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "multihead/multihead.h"
#include "nn/safetensors.h"

namespace multihead::conformance {
namespace {

using nlohmann::json;

struct Values {
  Dims shape;
  std::vector<float> data;

  Values() = default;
  explicit Values(const Dims& dims) : shape(dims), data(static_cast<size_t>(dims.elements())) {}
  Tensor tensor() { return {data.data(), shape}; }
  ConstTensor view() const { return {data.data(), shape}; }
};

// What a case computed, by output name; or why it could not.
struct Outcome {
  std::map<std::string, Values> outputs;
  std::string failure;
};

Outcome unsupported(const std::string& what) { return {{}, "not supported yet: " + what}; }
Outcome failed(const Status& status) { return {{}, status.message()}; }

class Case {
 public:
  Case(const json& description, const Safetensors& tensors)
      : description_(description), tensors_(tensors) {}

  std::string name() const { return description_.value("name", "?"); }
  std::string op() const { return description_.value("op", "?"); }
  const json& attrs() const { return description_["attrs"]; }
  const json& outputs() const { return description_["outputs"]; }
  bool flag(const char* attribute) const { return attrs().value(attribute, false); }
  bool is_set(const char* attribute) const {
    return attrs().contains(attribute) && !attrs()[attribute].is_null();
  }
  bool has_input(const char* input) const { return description_["inputs"].contains(input); }
  const json& inputs() const { return description_["inputs"]; }

  // Null where the case has no such input.
  const SafetensorsEntry* input(const char* argument) const {
    return has_input(argument) ? find(inputs()[argument]) : nullptr;
  }
  const SafetensorsEntry* find(const json& tensor) const {
    return tensors_.find(tensor.get<std::string>());
  }

  // An absent one is empty, of rank 0.
  Values floats(const char* argument) const { return floats_of(input(argument)); }
  static Values floats_of(const SafetensorsEntry* entry) {
    Values values;
    if (entry == nullptr || entry->type != SafetensorsEntry::Type::kF32) return values;
    values = Values(entry->shape);
    std::memcpy(values.data.data(), entry->data.data(), entry->data.size());
    return values;
  }

  json tolerance(const std::string& output) const {
    if (description_.contains("output_tolerance") &&
        description_["output_tolerance"].contains(output)) {
      return description_["output_tolerance"][output];
    }
    return description_["tolerance"];
  }

 private:
  const json& description_;
  const Safetensors& tensors_;
};

std::optional<Causal> causal_of(const Case& c) {
  if (!c.flag("causal")) return Causal::none();
  const std::string align = c.attrs().value("align", "top_left");
  if (align == "top_left") return Causal::top_left();
  if (align == "bottom_right") return Causal::bottom_right();
  if (align == "explicit") return Causal::at_offset(c.attrs().value("offset", int64_t{0}));
  return std::nullopt;
}

std::string unsupported_attention_option(const Case& c) {
  const json& attrs = c.attrs();
  if (attrs.value("window_left", -1) >= 0 || attrs.value("window_right", -1) >= 0) return "window";
  if (attrs.value("softcap", 0.0) > 0) return "softcap";
  if (attrs.value("alibi", false)) return "ALiBi";
  if (c.is_set("rope") && attrs["rope"] != json(false)) return "RoPE";
  for (const auto& [input, tensor] : c.inputs().items()) {
    if (input != "q" && input != "k" && input != "v" && input != "mask") return "input " + input;
  }
  for (const auto& [output, tensor] : c.outputs().items()) {
    if (output != "out" && output != "lse" && output != "weights") return "output " + output;
  }
  return {};
}

Outcome run_attention(const Case& c, Context& context) {
  if (const std::string option = unsupported_attention_option(c); !option.empty()) {
    return unsupported(option);
  }
  const std::optional<Causal> causal = causal_of(c);
  if (!causal) return unsupported("align " + c.attrs().value("align", "?"));

  AttentionOptions options{.causal = *causal};
  if (c.is_set("scale")) options.scale = c.attrs()["scale"].get<float>();
  const Values bias = c.floats("mask");
  if (const SafetensorsEntry* mask = c.input("mask"); mask != nullptr) {
    if (mask->type == SafetensorsEntry::Type::kBool) {
      options.mask = {reinterpret_cast<const uint8_t*>(mask->data.data()), mask->shape};
    } else {
      options.bias = bias.view();
    }
  }
  const Values q = c.floats("q");
  const Values k = c.floats("k");
  const Values v = c.floats("v");
  if (q.shape.rank() != 4 || k.shape.rank() != 4 || v.shape.rank() != 4) {
    return {{}, "q, k and v: expected F32 tensors of rank 4"};
  }
  Values out({q.shape[0], q.shape[1], q.shape[2], v.shape[3]});
  Values lse({q.shape[0], q.shape[1], q.shape[2]});
  Values weights({q.shape[0], q.shape[1], q.shape[2], k.shape[2]});
  const Status status =
      attention(q.view(), k.view(), v.view(), options,
                {.out = out.tensor(), .lse = lse.tensor(), .weights = weights.tensor()}, context);
  if (!status.ok()) return failed(status);
  return {{{"out", std::move(out)}, {"lse", std::move(lse)}, {"weights", std::move(weights)}}, {}};
}

// Scores given as they are: attention with Q = scores, K = the identity, scale 1.
Outcome run_softmax(const Case& c, Context& context) {
  const std::optional<Causal> causal = causal_of(c);
  if (!causal) return unsupported("align " + c.attrs().value("align", "?"));
  Values scores = c.floats("scores");
  const Dims shape = scores.shape;
  const int rank = shape.rank();
  if (rank < 2) return {{}, "scores: expected rank 2 or more, got " + shape.to_string()};
  const int64_t rows = shape[rank - 2];
  const int64_t keys = shape[rank - 1];
  if (rows * keys == 0) return {{}, "scores: expected none of its extents to be 0"};
  const int64_t heads = shape.elements() / (rows * keys);
  Values identity({1, 1, keys, keys});
  for (int64_t i = 0; i < keys; ++i) {
    identity.data[static_cast<size_t>(i * keys + i)] = 1.0F;
  }
  Values out({1, heads, rows, keys});
  Values lse({1, heads, rows});
  Values weights({1, heads, rows, keys});
  const Status status =
      attention({scores.data.data(), {1, heads, rows, keys}}, identity.view(), identity.view(),
                {.scale = 1.0F, .causal = *causal},
                {.out = out.tensor(), .lse = lse.tensor(), .weights = weights.tensor()}, context);
  if (!status.ok()) return failed(status);

  if (c.has_input("printed_weights")) {
    // A published figure may be off by one in its last place: one was rounded from less
    // rounded scores.
    const Values printed = c.floats("printed_weights");
    const double step = std::pow(10.0, -c.attrs().value("printed_decimals", 4));
    const json wrong = c.attrs().value("printed_rows_wrong", json::array());
    for (size_t i = 0; i < printed.data.size() && i < weights.data.size(); ++i) {
      const auto row = static_cast<int64_t>(i) / keys % rows;
      if (std::find(wrong.begin(), wrong.end(), json(row)) != wrong.end()) continue;
      if (std::abs(static_cast<double>(printed.data[i] - weights.data[i])) > 1.01 * step) {
        return {{}, "weights differ from the printed ones in row " + std::to_string(row)};
      }
    }
  }
  Dims lse_shape;
  for (int axis = 0; axis + 1 < rank; ++axis) lse_shape.push_back(shape[axis]);
  lse.shape = lse_shape;
  weights.shape = shape;
  return {{{"weights", std::move(weights)}, {"lse", std::move(lse)}}, {}};
}

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

Values transpose(const Values& w) {
  Values result({w.shape[1], w.shape[0]});
  for (int64_t i = 0; i < w.shape[0]; ++i) {
    for (int64_t j = 0; j < w.shape[1]; ++j) {
      result.data[static_cast<size_t>(j * w.shape[0] + i)] =
          w.data[static_cast<size_t>(i * w.shape[1] + j)];
    }
  }
  return result;
}

// (N, E) as (1, N, E).
Dims with_batch(const Dims& shape) {
  return shape.rank() == 2 ? Dims{1, shape[0], shape[1]} : shape;
}

struct ModuleResult {
  Status status;
  Values out;
  Values weights;
};

ModuleResult run_module(const MultiHeadAttentionConfig& config,
                        const MultiHeadAttentionWeights& weights, const Values& x, Causal causal,
                        int64_t output_width, Context& context) {
  const Dims shape = with_batch(x.shape);
  Values out({shape[0], shape[1], output_width});
  Trace trace;
  Status status = multi_head_attention(config, weights, {x.data.data(), shape}, {.causal = causal},
                                       out.tensor(), &trace, context);
  Values traced;
  if (const TraceStep* step = trace.find("weights"); step != nullptr) {
    traced.shape = step->shape;
    traced.data = step->values;
  }
  return {std::move(status), std::move(out), std::move(traced)};
}

Outcome run_heads_concat(const Case& c, Context& context) {
  const Values x = c.floats("x");
  const Values q = stack_heads(c.floats("w_q"));
  const Values k = stack_heads(c.floats("w_k"));
  const Values v = stack_heads(c.floats("w_v"));
  const int64_t merged = q.shape[0];
  const int64_t embed = q.shape[1];
  const int64_t heads = c.attrs().value("num_heads", int64_t{1});
  Values o;
  MultiHeadAttentionWeights weights{.q_proj = q.view(), .k_proj = k.view(), .v_proj = v.view()};
  if (c.has_input("w_o")) {
    o = transpose(c.floats("w_o"));
    weights.out_proj = o.view();
  }
  ModuleResult result =
      run_module({.embed_dim = embed, .num_heads = heads, .head_dim = merged / heads}, weights, x,
                 c.flag("causal") ? Causal::top_left() : Causal::none(),
                 o.data.empty() ? merged : embed, context);
  if (!result.status.ok()) return failed(result.status);
  return {{{"out", std::move(result.out)}, {"weights", std::move(result.weights)}}, {}};
}

Values rows_of(const Values& matrix, int64_t first, int64_t count) {
  const int64_t width = matrix.shape.rank() == 2 ? matrix.shape[1] : 1;
  Values rows(matrix.shape.rank() == 2 ? Dims{count, width} : Dims{count});
  std::copy_n(matrix.data.begin() + first * width, count * width, rows.data.begin());
  return rows;
}

Values swap_first_axes(const Values& x) {
  Values result({x.shape[1], x.shape[0], x.shape[2]});
  const auto width = static_cast<size_t>(x.shape[2]);
  for (int64_t i = 0; i < x.shape[0]; ++i) {
    for (int64_t j = 0; j < x.shape[1]; ++j) {
      std::copy_n(x.data.begin() + (i * x.shape[1] + j) * x.shape[2], width,
                  result.data.begin() + (j * x.shape[0] + i) * x.shape[2]);
    }
  }
  return result;
}

Values mean_over_heads(const Values& weights) {
  const int64_t heads = weights.shape[1];
  const int64_t cells = weights.shape[2] * weights.shape[3];
  Values mean({weights.shape[0], weights.shape[2], weights.shape[3]});
  for (int64_t b = 0; b < weights.shape[0]; ++b) {
    for (int64_t cell = 0; cell < cells; ++cell) {
      double sum = 0;
      for (int64_t h = 0; h < heads; ++h) {
        sum +=
            static_cast<double>(weights.data[static_cast<size_t>((b * heads + h) * cells + cell)]);
      }
      mean.data[static_cast<size_t>(b * cells + cell)] =
          static_cast<float>(sum / static_cast<double>(heads));
    }
  }
  return mean;
}

Outcome run_multihead_attention(const Case& c, Context& context) {
  if (!c.flag("self_attention")) return unsupported("cross-attention in the module");
  if (c.flag("add_bias_kv")) return unsupported("add_bias_kv");
  if (c.flag("add_zero_attn")) return unsupported("add_zero_attn");
  if (c.is_set("kdim") || c.is_set("vdim")) return unsupported("kdim and vdim");
  for (const char* mask : {"attn_mask", "key_padding_mask"}) {
    if (c.has_input(mask)) return unsupported(mask);
  }
  const int64_t embed = c.attrs().value("embed_dim", int64_t{0});
  const Values in_proj = c.floats("in_proj_weight");
  const Values in_bias = c.floats("in_proj_bias");
  const Values out_proj = c.floats("out_proj.weight");
  const Values out_bias = c.floats("out_proj.bias");
  const Values q = rows_of(in_proj, 0, embed);
  const Values k = rows_of(in_proj, embed, embed);
  const Values v = rows_of(in_proj, 2 * embed, embed);
  MultiHeadAttentionWeights weights{
      .q_proj = q.view(), .k_proj = k.view(), .v_proj = v.view(), .out_proj = out_proj.view()};
  Values q_bias, k_bias, v_bias;
  if (!in_bias.data.empty()) {
    q_bias = rows_of(in_bias, 0, embed);
    k_bias = rows_of(in_bias, embed, embed);
    v_bias = rows_of(in_bias, 2 * embed, embed);
    weights.q_bias = q_bias.view();
    weights.k_bias = k_bias.view();
    weights.v_bias = v_bias.view();
  }
  if (!out_bias.data.empty()) weights.out_bias = out_bias.view();

  const bool batch_second = !c.flag("batch_first") && !c.flag("unbatched");
  Values x = c.floats("query");
  if (batch_second) x = swap_first_axes(x);
  ModuleResult result = run_module(
      {.embed_dim = embed, .num_heads = c.attrs().value("num_heads", int64_t{1})}, weights, x,
      c.flag("is_causal") ? Causal::top_left() : Causal::none(), embed, context);
  if (!result.status.ok()) return failed(result.status);
  if (batch_second) result.out = swap_first_axes(result.out);
  if (c.flag("average_attn_weights")) result.weights = mean_over_heads(result.weights);
  return {{{"out", std::move(result.out)}, {"weights", std::move(result.weights)}}, {}};
}

// |r - g| <= atol + rtol * |g|; an infinite golden asks for the same infinity, and no
// result may be NaN.
std::string compare(const Case& c, const Outcome& outcome) {
  for (const auto& [output, tensor] : c.outputs().items()) {
    const auto found = outcome.outputs.find(output);
    if (found == outcome.outputs.end()) return "not supported yet: output " + output;
    const Values golden = Case::floats_of(c.find(tensor));
    const std::vector<float>& result = found->second.data;
    if (golden.data.size() != result.size()) {
      return output + ": expected " + golden.shape.to_string() + ", got " +
             found->second.shape.to_string();
    }
    const json tolerance = c.tolerance(output);
    const double atol = tolerance.value("atol", 0.0);
    const double rtol = tolerance.value("rtol", 0.0);
    for (size_t i = 0; i < result.size(); ++i) {
      const auto g = static_cast<double>(golden.data[i]);
      const auto r = static_cast<double>(result[i]);
      const bool agrees = std::isinf(g) ? r == g : std::abs(r - g) <= atol + rtol * std::abs(g);
      if (!agrees) {
        return output + "[" + std::to_string(i) + "]: expected " + std::to_string(g) + ", got " +
               std::to_string(r) + " (atol " + json(atol).dump() + ")";
      }
    }
  }
  return {};
}

std::string run_case(const Case& c, Context& context) {
  const std::map<std::string, Outcome (*)(const Case&, Context&)> ops = {
      {"attention", run_attention},
      {"softmax_masked", run_softmax},
      {"heads_concat", run_heads_concat},
      {"multihead_attention", run_multihead_attention},
  };
  const auto op = ops.find(c.op());
  if (op == ops.end()) return "not supported yet: op " + c.op();
  for (const auto& [argument, tensor] : c.inputs().items()) {
    if (c.find(tensor) == nullptr) return argument + ": no tensor " + tensor.dump();
  }
  for (const auto& [output, tensor] : c.outputs().items()) {
    if (c.find(tensor) == nullptr) return output + ": no tensor " + tensor.dump();
  }
  const Outcome outcome = op->second(c, context);
  return outcome.failure.empty() ? compare(c, outcome) : outcome.failure;
}

void run_manifest(const std::filesystem::path& path, Context& context,
                  std::vector<CaseResult>& results) {
  const std::string file = path.stem().string();
  std::ifstream stream(path);
  const json manifest = json::parse(stream, nullptr, false);
  if (!manifest.is_object() || !manifest.contains("cases") || !manifest["cases"].is_array()) {
    results.push_back({file, "manifest", "not a conformance manifest"});
    return;
  }
  Safetensors tensors;
  const auto data = path.parent_path() / manifest.value("file", file + ".safetensors");
  if (const Status status = Safetensors::read(data.string(), tensors); !status.ok()) {
    results.push_back({file, "tensors", status.message()});
    return;
  }
  for (const json& description : manifest["cases"]) {
    const Case c(description, tensors);
    results.push_back({file, c.name(), run_case(c, context)});
  }
}

}  // namespace

std::vector<CaseResult> run_folder(const std::string& folder, Context& context) {
  std::error_code error;
  std::vector<std::filesystem::path> manifests;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".json") manifests.push_back(entry.path());
  }
  std::vector<CaseResult> results;
  if (error || manifests.empty()) {
    results.push_back({folder, "folder", error ? error.message() : "holds no .json manifest"});
    return results;
  }
  std::sort(manifests.begin(), manifests.end());
  for (const auto& path : manifests) run_manifest(path, context, results);
  return results;
}

}  // namespace multihead::conformance
