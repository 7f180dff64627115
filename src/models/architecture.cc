#include "models/architecture.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "engine/error/error.h"
#include "models/config_reader.h"

namespace multihead::models {
namespace {

constexpr int64_t kMostLayers = 4096;

std::optional<Activation> activation_named(const std::string& name) {
  constexpr std::pair<const char*, Activation> kNames[] = {
      {"relu", Activation::kRelu},          {"gelu", Activation::kGelu},
      {"gelu_python", Activation::kGelu},   {"gelu_new", Activation::kGeluTanh},
      {"gelu_fast", Activation::kGeluTanh}, {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"silu", Activation::kSilu},          {"swish", Activation::kSilu}};
  for (const auto& [known, activation] : kNames) {
    if (name == known) return activation;
  }
  return std::nullopt;
}

void read_activation(ConfigReader& config, const Family& family, Architecture& a) {
  const char* const field = family.fields.activation;
  std::string name = config.text(field, family.defaults.activation);
  if (name.empty()) name = family.defaults.activation;
  const Names& names = family.names;
  a.gated = names.gate != nullptr || names.gate_up != nullptr;
  if (std::string_view(family.model_type) == "t5") {
    // "relu", or "gated-gelu", whose GELU is the tanh form.
    a.gated = name.starts_with("gated-");
    if (a.gated) name = name.substr(6);
    if (a.gated && name == "gelu") name = "gelu_new";
  }
  const auto activation = activation_named(name);
  if (!activation) {
    config.fail(field, "relu, gelu, gelu_new, gelu_pytorch_tanh or silu", '"' + name + '"');
    return;
  }
  a.activation = *activation;
}

// The window of each layer: layer_types of transformers 5, else the rule of the family.
void read_windows(ConfigReader& config, const Family& family, Architecture& a) {
  if (family.fields.window == nullptr) return;
  int64_t window = config.integer(family.fields.window, family.defaults.window);
  const bool switched =
      family.windows == Windows::kUpper || family.windows == Windows::kWithoutRope;
  if (switched && !config.flag("use_sliding_window", false)) window = 0;
  const int64_t upper = config.integer("max_window_layers", 28);
  int64_t pattern = config.integer("sliding_window_pattern", 6);
  if (pattern < 1) pattern = 1;
  for (int64_t i = 0; i < static_cast<int64_t>(a.layers.size()); ++i) {
    LayerPlan& layer = a.layers[static_cast<size_t>(i)];
    bool slides = true;
    const std::string type_name = "layer_types." + std::to_string(i);
    if (family.windows != Windows::kEvery && config.has(type_name)) {
      const std::string type = config.text(type_name.c_str(), "");
      slides = type == "sliding_attention";
      if (!slides && type != "full_attention") {
        config.fail(type_name, "full_attention or sliding_attention", '"' + type + '"');
      }
    } else {
      switch (family.windows) {
        case Windows::kEvery:
          break;
        case Windows::kAlternating:
          slides = i % 2 == 0;
          break;
        case Windows::kPattern:
          slides = (i + 1) % pattern != 0;
          break;
        case Windows::kUpper:
          slides = i >= upper;
          break;
        case Windows::kWithoutRope:
          slides = layer.rope < 0;
          break;
      }
    }
    layer.window = slides ? window : 0;
    if (a.ropes.size() > 1) layer.rope = slides ? 1 : 0;
  }
}

void read_ropes(ConfigReader& config, const Family& family, Architecture& a) {
  if (!family.rope) return;
  RopeFrequencies::Fallback fallback{
      .theta = family.defaults.theta,
      .theta_field = family.fields.theta,
      .partial_rotary = family.defaults.partial_rotary,
      .partial_rotary_field = family.fields.partial_rotary,
      .head_dim = a.head_dim,
      .positions = config.integer("max_position_embeddings", family.defaults.positions),
      .phi3 = std::string_view(family.model_type) == "phi3"};
  const bool by_type = family.windows == Windows::kPattern;
  a.ropes.emplace_back(config, by_type ? "rope_parameters.full_attention" : "rope_parameters",
                       fallback);
  for (LayerPlan& layer : a.layers) layer.rope = 0;
  if (by_type) {
    // Layers with windows have a base of their own, and no scaling.
    fallback.theta = 10000.0;
    fallback.theta_field = "rope_local_base_freq";
    fallback.scaled = false;
    a.ropes.emplace_back(config, "rope_parameters.sliding_attention", fallback);
  }
  if (family.windows != Windows::kWithoutRope) return;
  const int64_t interval = config.integer("no_rope_layer_interval", 4);
  for (size_t i = 0; i < a.layers.size(); ++i) {
    const std::string name = "no_rope_layers." + std::to_string(i);
    bool rotates = interval == 0 || static_cast<int64_t>(i + 1) % interval != 0;
    if (config.has_members("no_rope_layers")) rotates = config.flag(name.c_str(), true);
    if (!rotates) a.layers[i].rope = -1;
  }
}

void read_scales(ConfigReader& config, const Family& family, Architecture& a) {
  double scale = 1.0 / std::sqrt(static_cast<double>(a.head_dim));
  if (family.unit_scale) scale = 1.0;
  if (family.scale_field != nullptr) {
    const double divisor = config.number(family.scale_field, family.default_scale);
    if (!(divisor > 0)) {
      config.fail(family.scale_field, "more than 0", text_of(divisor));
      return;
    }
    scale = 1.0 / std::sqrt(divisor);
  }
  if (!config.flag("scale_attn_weights", true)) scale = 1.0;
  const bool by_layer = config.flag("scale_attn_by_inverse_layer_idx", false);
  for (size_t i = 0; i < a.layers.size(); ++i) {
    a.layers[i].scale = static_cast<float>(by_layer ? scale / static_cast<double>(i + 1) : scale);
  }
  a.attention_cap =
      static_cast<float>(config.number("attn_logit_softcapping", family.defaults.attention_cap));
  a.logit_cap =
      static_cast<float>(config.number("final_logit_softcapping", family.defaults.logit_cap));
  if (family.scales_embedding) {
    a.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(a.width)));
  }
}

void read_positions(ConfigReader& config, const Family& family, Architecture& a) {
  const Names& names = family.names;
  if (names.position != nullptr && family.fields.positions != nullptr) {
    a.positions = config.integer(family.fields.positions, family.defaults.positions, 1);
  }
  a.padding_id = config.has("pad_token_id") ? config.integer("pad_token_id", 0) : -1;
  if (family.positions_after_padding) {
    // MPNet's code has 1, whatever the configuration says.
    const bool fixed = std::string_view(family.model_type) == "mpnet";
    if (fixed || a.padding_id < 0) a.padding_id = 1;
    a.first_position = a.padding_id + 1;
  }
  if (names.token_type != nullptr) a.token_types = config.integer("type_vocab_size", 2, 1);
  if (names.relative_bias != nullptr) {
    a.buckets = config.integer("relative_attention_num_buckets", 32, 4);
    a.bucket_distance = config.integer("relative_attention_max_distance", 128, 2);
  }
  if (names.patch != nullptr) {
    a.image_size = config.integer("image_size", 224, 1);
    a.patch_size = config.integer("patch_size", 16, 1);
    a.channels = config.integer("num_channels", 3, 1);
    if (a.patch_size > a.image_size) {
      config.fail("patch_size", "at most image_size", std::to_string(a.patch_size));
    }
    a.positions = a.image_tokens();
  }
}

void check_settings(ConfigReader& config, const Family& family) {
  for (const Setting& setting : family.settings) {
    const ConfigValue* const value = config.find(setting.field);
    if (value == nullptr || value->kind == ConfigValue::Kind::kNull) continue;
    const std::string text =
        value->kind == ConfigValue::Kind::kText ? value->text : described(value);
    if (text != setting.value) config.fail(setting.field, setting.value, described(value));
  }
  if (config.has_members("quantization_config")) {
    config.fail("quantization_config", "none: weights of F32, F16 or BF16", "an object");
  }
}

}  // namespace

Status read_architecture(const Config& given, Architecture& architecture) {
  ConfigReader top(given, "");
  const std::string type = top.text("model_type", "");
  const Family* const family = find_family(type);
  if (family == nullptr) {
    std::string known;
    for (const Family& each : families())
      known += (known.empty() ? "" : ", ") + std::string(each.model_type);
    return setting_error("model_type", "one of " + known + ", gemma3",
                         described(top.find("model_type")));
  }
  ConfigReader config(given, family->config_prefix);
  const Fields& fields = family->fields;
  const Defaults& defaults = family->defaults;
  const Names& names = family->names;
  Architecture a;
  a.family = family;
  check_settings(config, *family);
  const auto extent = [&](const char* field, int64_t absent = 0) {
    if (config.find(field) == nullptr && absent == 0) config.fail(field, "a number", "nothing");
    return config.integer(field, std::max<int64_t>(1, absent), 1);
  };
  a.width = extent(fields.width);
  a.heads = extent(fields.heads, defaults.heads);
  const int64_t layers = extent(fields.layers);
  if (layers > kMostLayers) {
    config.fail(fields.layers, "at most " + std::to_string(kMostLayers), std::to_string(layers));
  }
  if (names.embedding != nullptr) a.vocabulary = extent("vocab_size", defaults.vocabulary);
  a.mlp = config.integer(fields.mlp, 0);
  if (a.mlp == 0) a.mlp = 4 * a.width;
  a.embedding_width =
      names.embedding_projection != nullptr ? config.integer("embedding_size", 128, 1) : a.width;
  a.kv_heads = config.integer(fields.kv_heads, defaults.kv_heads);
  if (a.kv_heads == 0) a.kv_heads = a.heads;
  a.head_dim = config.integer(fields.head_dim, defaults.head_dim);
  MULTIHEAD_TRY(config.status());
  if (a.heads % a.kv_heads != 0) {
    config.fail(fields.kv_heads == nullptr ? fields.heads : fields.kv_heads,
                "a divisor of " + std::to_string(a.heads) + " heads", std::to_string(a.kv_heads));
  }
  if (a.head_dim == 0) {
    if (a.width % a.heads != 0) {
      config.fail(fields.heads, "a divisor of " + std::to_string(a.width), std::to_string(a.heads));
    }
    a.head_dim = a.width / a.heads;
  }
  MULTIHEAD_TRY(config.status());
  a.layers.resize(static_cast<size_t>(layers));
  a.parameter_sets =
      names.embedding_projection != nullptr ? config.integer("num_hidden_groups", 1, 1) : layers;
  if (a.parameter_sets > layers) {
    config.fail("num_hidden_groups", "at most " + std::to_string(layers),
                std::to_string(a.parameter_sets));
  }
  MULTIHEAD_TRY(config.status());
  for (int64_t i = 0; i < layers; ++i) {
    // Layer i of L belongs to group floor(i / (L / groups)).
    a.layers[static_cast<size_t>(i)].weights = i * a.parameter_sets / layers;
  }
  const double eps = config.number(fields.eps, defaults.eps);
  if (!(eps >= 0) || eps > 1) config.fail(fields.eps, "from 0 to 1", text_of(eps));
  a.eps = static_cast<float>(eps);
  a.tied = config.flag("tie_word_embeddings", defaults.tied);
  if (top.has("tie_word_embeddings")) a.tied = top.flag("tie_word_embeddings", a.tied);
  const bool qkv_default = family->qkv_bias, output_default = family->output_bias;
  a.qkv_bias = fields.attention_bias != nullptr ? config.flag(fields.attention_bias, qkv_default)
                                                : qkv_default;
  a.output_bias = fields.attention_bias != nullptr
                      ? config.flag(fields.attention_bias, output_default)
                      : output_default;
  a.mlp_bias = fields.mlp_bias != nullptr ? config.flag(fields.mlp_bias, family->mlp_bias)
                                          : family->mlp_bias;
  if (names.patch != nullptr) a.qkv_bias = config.flag("qkv_bias", true);
  a.parallel = family->parallel_field != nullptr && config.flag(family->parallel_field, true);
  read_activation(config, *family, a);
  read_positions(config, *family, a);
  read_ropes(config, *family, a);
  read_windows(config, *family, a);
  read_scales(config, *family, a);
  a.architecture = top.text("architectures.0", "");
  while (config.has("id2label." + std::to_string(a.labels))) ++a.labels;
  // One id or a list of them.
  ConfigReader& ends =
      config.has("eos_token_id") || config.has_members("eos_token_id") ? config : top;
  if (ends.has("eos_token_id")) {
    a.end_ids.push_back(static_cast<int32_t>(ends.integer("eos_token_id", 0)));
  }
  for (int i = 0; ends.has("eos_token_id." + std::to_string(i)); ++i) {
    const std::string name = "eos_token_id." + std::to_string(i);
    a.end_ids.push_back(static_cast<int32_t>(ends.integer(name.c_str(), 0)));
  }
  MULTIHEAD_TRY(config.status());
  MULTIHEAD_TRY(top.status());
  architecture = std::move(a);
  return {};
}

}  // namespace multihead::models
