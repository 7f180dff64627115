#include "models/architecture.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "models/config_reader.h"
#include "models/token_rules.h"
#include "multihead/attention.h"

namespace multihead::models {
namespace {

constexpr int64_t kMostLayers = 4096;

std::optional<Activation> activation_named(const std::string& name) {
  constexpr std::pair<const char*, Activation> kNames[] = {
      {"relu", Activation::kRelu},          {"gelu", Activation::kGelu},
      {"gelu_python", Activation::kGelu},   {"gelu_new", Activation::kGeluTanh},
      {"gelu_fast", Activation::kGeluTanh}, {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"silu", Activation::kSilu},          {"swish", Activation::kSilu},
      {"swiglu", Activation::kSilu}};
  for (const auto& [known, activation] : kNames) {
    if (name == known) return activation;
  }
  return std::nullopt;
}

void read_activation(ConfigReader& config, const Family& family, Architecture& a) {
  const char* const field = family.fields.activation;
  std::string name = family.defaults.activation;
  // Gemma's configurations have null for the default.
  const std::string_view named = field == nullptr ? "" : field;
  const bool gemma = named == "hidden_activation";
  if (!gemma || config.has(field)) {
    name = config.text(field, name);
  } else if (std::string_view(family.model_type) == "gemma") {
    // Its first files say "gelu", but it was trained with the tanh form.
    const std::string older = config.text("hidden_act", name);
    if (older != "gelu") name = older;
  }
  const Names& names = family.names;
  a.gated = names.gate != nullptr || names.gate_up != nullptr;
  if (named == "feed_forward_proj") {
    // "relu", or "gated-gelu", whose GELU is the tanh form.
    a.gated = name.starts_with("gated-");
    if (a.gated) name = name.substr(6);
    if (a.gated && name == "gelu") name = "gelu_new";
  }
  if (family.fields.mlp_ratio != nullptr) {
    a.gated = config.flag("use_swiglu_ffn", false);
    if (a.gated) name = "silu";
  }
  if (name == "quick_gelu") {
    // x sigmoid(1.702 x)
    a.activation_factor = 1.702F;
    name = "silu";
  }
  if (name == "relu2" && !a.gated) {
    a.squares = true;
    name = "relu";
  }
  const auto activation = activation_named(name);
  if (!activation) {
    config.fail(field, "relu, gelu, gelu_new, gelu_pytorch_tanh, quick_gelu or silu",
                '"' + name + '"');
    return;
  }
  a.activation = *activation;
}

// The entry of a list with an entry for each layer, if the list is there.
std::optional<std::string> entry_of(ConfigReader& config, const char* list, size_t layer) {
  if (!config.has_members(list)) return std::nullopt;
  std::string name = list + ("." + std::to_string(layer));
  if (config.find(name) == nullptr) config.fail(name, "an entry for each layer", "nothing");
  return name;
}

// Returns true for each layer of GPT-Neo that has a window. The configuration lists all layers, or
// has the shorter form [[kinds, repeats], ...]. By default every second layer has a window.
std::vector<bool> local_layers(ConfigReader& config, size_t layers) {
  std::vector<bool> local;
  const auto add = [&](const std::string& entry) {
    const std::string type = config.text(entry.c_str(), "");
    if (type != "local" && type != "global") {
      config.fail(entry, "global or local", '"' + type + '"');
    }
    local.push_back(type == "local");
  };
  const bool short_form = !config.has_members("attention_layers");
  if (short_form && !config.has_members("attention_types")) {
    for (size_t i = 0; i < layers; ++i) local.push_back(i % 2 == 1);
  }
  for (size_t i = 0; !short_form && i < layers && config.status().ok(); ++i) {
    add(entry_of(config, "attention_layers", i).value_or(""));
  }
  for (size_t group = 0; local.size() < layers && config.status().ok(); ++group) {
    const std::string types = "attention_types." + std::to_string(group);
    const std::string kinds = types + ".0.", repeats = types + ".1";
    const int64_t times = config.integer(repeats.c_str(), 0, {});
    const size_t before = local.size();
    for (int64_t i = 0; i < times && local.size() < layers && config.status().ok(); ++i) {
      for (size_t kind = 0; config.has(kinds + std::to_string(kind)); ++kind) {
        add(kinds + std::to_string(kind));
      }
      if (local.size() == before) break;
    }
    if (local.size() > before) continue;
    config.fail("attention_types", "a kind for each layer",
                "kinds of " + std::to_string(before) + " layers");
  }
  local.resize(layers);
  return local;
}

// The window of each layer: layer_types of transformers 5, else the rule of the family.
void read_windows(ConfigReader& config, const Family& family, Architecture& a) {
  if (family.fields.window == nullptr) return;
  const Windows windows = family.windows;
  const bool switched = windows == Windows::kUpper || windows == Windows::kWithoutRope;
  // SmolLM3's list of layers counts whether or not the switch is on, as in transformers.
  const bool listed = windows == Windows::kWithoutRope && config.has_members("layer_types");
  int64_t window = 0;
  if (!switched || listed || config.flag("use_sliding_window", false)) {
    window = config.integer(family.fields.window, family.defaults.window,
                            {.least = 0, .most = kMostRows, .null_is_zero = true});
    if (a.window_both_sides && window > 0) window = window / 2 + 1;
  }
  std::vector<bool> local;
  if (windows == Windows::kListed) local = local_layers(config, a.layers.size());
  for (size_t i = 0; i < a.layers.size() && config.status().ok(); ++i) {
    LayerPlan& layer = a.layers[i];
    const auto number = static_cast<int64_t>(i);
    bool slides = true;
    if (const auto entry =
            windows == Windows::kEvery ? std::nullopt : entry_of(config, "layer_types", i)) {
      const std::string type = config.text(entry->c_str(), "");
      slides = type == "sliding_attention";
      if (!slides && type != "full_attention") {
        config.fail(*entry, "full_attention or sliding_attention", '"' + type + '"');
      }
    } else {
      switch (windows) {
        case Windows::kEvery:
          break;
        case Windows::kAlternating:
          slides = i % 2 == 0;
          break;
        case Windows::kPattern:
          slides = (number + 1) % config.integer("sliding_window_pattern",
                                                 family.defaults.window_pattern, {}) !=
                   0;
          break;
        case Windows::kBetweenFull:
          slides = number % config.integer("global_attn_every_n_layers", 3, {}) != 0;
          break;
        case Windows::kUpper:
          slides = number >= config.integer("max_window_layers", family.defaults.window_pattern,
                                            {.least = 0, .most = kMostRows});
          break;
        case Windows::kWithoutRope:
          slides = layer.rope < 0;
          break;
        case Windows::kListed:
          slides = local[i];
          break;
      }
    }
    layer.window = slides ? window : 0;
    if (a.ropes.size() > 1) layer.rope = slides ? 1 : 0;
    if (family.rope_in_windows && window > 0 && !slides) layer.rope = -1;
  }
}

void read_ropes(ConfigReader& config, const Family& family, Architecture& a) {
  if (!family.rope) return;
  RopeFrequencies::Fallback fallback{.theta = family.defaults.theta,
                                     .theta_field = family.fields.theta,
                                     .partial_rotary = family.defaults.partial_rotary,
                                     .partial_rotary_field = family.fields.partial_rotary,
                                     .head_dim = a.head_dim,
                                     .positions = family.defaults.positions,
                                     .phi3 = std::string_view(family.model_type) == "phi3",
                                     .ntk = family.fixed_ntk,
                                     .alpha = family.dynamic_alpha};
  if (family.fields.rotary_dim != nullptr) {
    const int64_t rotated = config.integer(family.fields.rotary_dim, 64, {.most = a.head_dim});
    fallback.partial_rotary = static_cast<double>(rotated) / static_cast<double>(a.head_dim);
  }
  if (family.fields.dynamic_factor != nullptr && config.has(family.fields.dynamic_factor)) {
    fallback.dynamic_factor = config.number(family.fields.dynamic_factor, 0.0, {});
    fallback.dynamic_positions = config.integer("max_trained_positions", 2048, {.most = kMostRows});
  }
  const bool by_type = family.rope_of_windows;
  if (by_type && config.has_members("rope_parameters") &&
      !config.has_members("rope_parameters.full_attention")) {
    config.fail("rope_parameters.full_attention", "an object", "nothing");
  }
  a.ropes.emplace_back(config, by_type ? "rope_parameters.full_attention" : "rope_parameters",
                       fallback);
  for (LayerPlan& layer : a.layers) layer.rope = 0;
  if (by_type) {
    // Layers with windows have a base of their own, and no scaling.
    fallback.theta = 10000.0;
    fallback.theta_field = family.fields.local_theta;
    fallback.scaled = false;
    a.ropes.emplace_back(config, "rope_parameters.sliding_attention", fallback);
  }
  if (family.unscaled_windows) {
    fallback.base_only = true;
    a.ropes.emplace_back(config, "rope_parameters", fallback);
  }
  if (family.windows != Windows::kWithoutRope) return;
  for (size_t i = 0; i < a.layers.size() && config.status().ok(); ++i) {
    bool rotates = true;
    if (const auto entry = entry_of(config, "no_rope_layers", i)) {
      rotates = config.flag(entry->c_str(), true);
    } else {
      rotates = (i + 1) % static_cast<size_t>(config.integer("no_rope_layer_interval", 4, {})) != 0;
    }
    if (!rotates) a.layers[i].rope = -1;
  }
}

void read_scales(ConfigReader& config, const Family& family, Architecture& a) {
  const Fields& fields = family.fields;
  const Defaults& defaults = family.defaults;
  double scale = 1.0 / std::sqrt(static_cast<double>(a.head_dim));
  if (fields.scale != nullptr) {
    scale = 1.0 / std::sqrt(config.number(fields.scale, defaults.scale, {}));
  }
  if (fields.scale_factor != nullptr) scale = config.number(fields.scale_factor, 1.0, {});
  // The mean of three products: content with content, and with positions in both directions.
  if (a.relative_span > 0) scale /= std::sqrt(3.0);
  if (family.unit_scale || !config.flag(fields.scales, true)) scale = 1.0;
  const bool by_layer = config.flag(fields.scale_by_layer, false);
  for (size_t i = 0; i < a.layers.size(); ++i) {
    a.layers[i].scale = static_cast<float>(by_layer ? scale / static_cast<double>(i + 1) : scale);
  }
  const Numbers cap{.null_is_zero = true};
  a.attention_cap =
      static_cast<float>(config.number(fields.attention_cap, defaults.attention_cap, cap));
  a.logit_cap = static_cast<float>(config.number(fields.logit_cap, defaults.logit_cap, cap));
  if (family.scales_embedding || config.flag(fields.scale_embedding, false)) {
    a.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(a.width)));
  }
  if (fields.embedding_factor != nullptr) {
    a.embedding_scale = static_cast<float>(config.number(fields.embedding_factor, 1.0, {}));
  }
  a.residual_factor = static_cast<float>(config.number(fields.residual_factor, 1.0, {}));
  a.logit_factor =
      static_cast<float>(config.number(fields.logit_factor, defaults.logit_factor, {}) /
                         config.number(fields.logit_divisor, 1.0, {}));
  if (a.scales_logits) {
    a.logit_factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.width)));
  }
  if (family.alibi) {
    a.alibi_slopes.resize(static_cast<size_t>(a.heads));
    alibi_slopes(a.alibi_slopes);
  }
  a.qkv_cap = static_cast<float>(config.number(fields.qkv_cap, 0.0, cap));
}

// The id of padding, where the family uses one: RoBERTa counts positions from it, and a classifier
// of the last token finds this token by it.
void read_padding(ConfigReader& config, const Family& family, Architecture& a) {
  const char* const field = "pad_token_id";
  const bool there = config.has(field) || config.has_members(field);
  if (family.positions_after_padding) {
    // MPNet's code has 1, whatever the configuration says.
    const bool fixed = std::string_view(family.model_type) == "mpnet";
    const bool given = !fixed && there;
    a.padding_id = given ? config.integer(field, 1, {.least = 0, .most = a.vocabulary - 1}) : 1;
    a.first_position = a.padding_id + 1;
    if (a.first_position >= a.positions) {
      config.fail(given ? field : family.fields.positions,
                  given ? "less than the number of positions - 1" : "more than 2",
                  std::to_string(given ? a.padding_id : a.positions));
    }
    return;
  }
  const bool finds_last = family.classifier == Classifier::kLastToken &&
                          a.architecture.find("ForSequenceClassification") != std::string::npos;
  if (!finds_last || !there) return;
  // A negative number is no id of a token.
  a.padding_id = std::max<int64_t>(-1, config.integer(field, -1, {-kMostRows, kMostRows}));
}

// DeBERTa v2 and v3: scores of content with positions, in both directions, by the matrices of
// queries and keys. Other forms are refused.
void read_relative_content(ConfigReader& config, Architecture& a) {
  for (const auto& [field, absent] : {std::pair{"relative_attention", false},
                                      {"share_att_key", false},
                                      {"position_biased_input", true}}) {
    if (config.flag(field, absent) != absent) continue;
    config.fail(field, absent ? "false" : "true", described(config.find(field)));
  }
  std::string types;
  if (config.has("pos_att_type")) types = config.text("pos_att_type", "");
  for (size_t i = 0; config.has("pos_att_type." + std::to_string(i)); ++i) {
    types += config.text(("pos_att_type." + std::to_string(i)).c_str(), "") + ' ';
  }
  if (types.find("c2p") == std::string::npos || types.find("p2c") == std::string::npos) {
    config.fail("pos_att_type", "c2p and p2c", '"' + types + '"');
  }
  const std::string norm = config.text("norm_rel_ebd", "none");
  a.relative_norm = norm == "layer_norm";
  if (!a.relative_norm && norm != "none") {
    config.fail("norm_rel_ebd", "layer_norm or none", '"' + norm + '"');
  }
  const Integers whole{.least = -1, .most = kMostRows};
  a.relative_span = config.integer("position_buckets", -1, whole);
  a.bucket_distance = config.integer("max_relative_positions", -1, whole);
  if (a.bucket_distance < 1) {
    a.bucket_distance = config.integer("max_position_embeddings", 512, {.most = kMostRows});
  }
  // Half of the buckets have one distance each; the logarithm of the others needs a base above 1.
  if (a.relative_span < 4 || a.bucket_distance <= a.relative_span / 2 + 1) {
    config.fail("position_buckets", "4 to twice the number of positions - 3",
                std::to_string(a.relative_span));
  }
}

void read_positions(ConfigReader& config, const Family& family, Architecture& a) {
  const Names& names = family.names;
  if (names.position != nullptr && family.fields.positions != nullptr) {
    // A configuration may name the largest number of rows.
    a.first_position = family.first_position;
    a.positions = std::min(kMostRows, a.first_position + config.integer(family.fields.positions,
                                                                        family.defaults.positions,
                                                                        {.most = kMostRows}));
  }
  read_padding(config, family, a);
  if (names.token_type != nullptr) {
    a.token_types = config.integer("type_vocab_size", family.defaults.token_types, {.least = 0});
  }
  if (family.token_dropout && config.flag("token_dropout", false)) {
    a.mask_id = config.integer("mask_token_id", -1, {.least = 0, .most = a.vocabulary - 1});
  }
  if (names.relative_bias != nullptr || names.layer_relative_bias != nullptr) {
    const char* const field = "relative_attention_num_buckets";
    a.buckets = config.integer(field, 32, {.least = 4});
    if (a.buckets % 2 != 0) config.fail(field, "an even number", std::to_string(a.buckets));
    // A quarter of the buckets has one distance each, a half if all keys are before the query;
    // longer distances share as many. MPNet's code has 128.
    const bool fixed = family.positions_after_padding;
    a.bucket_distance =
        config.integer(fixed ? nullptr : "relative_attention_max_distance", 128,
                       {.least = a.buckets / (a.causal ? 2 : 4) + 1, .most = kMostRows});
  }
  if (names.relative_embedding != nullptr) read_relative_content(config, a);
  if (names.patch != nullptr) {
    constexpr int64_t kMostPixels = 1 << 14, kMostPatch = 1 << 9, kMostChannels = 1 << 6;
    a.image_size = config.integer("image_size", 224, {.most = kMostPixels});
    a.patch_size = config.integer("patch_size", family.defaults.patch, {.most = kMostPatch});
    if (a.patch_size > a.image_size) {
      config.fail("patch_size", "at most image_size, " + std::to_string(a.image_size),
                  std::to_string(a.patch_size));
    }
    a.channels = config.integer("num_channels", 3, {.most = kMostChannels});
    a.trained_size = a.image_size;
    if (family.resizes_positions) {
      const std::string one = "preprocessor_config.json/crop_size", height = one + ".height";
      const std::string& field = config.has(height) ? height : one;
      if (config.has(field)) {
        a.image_size = config.integer(field.c_str(), 0, {a.patch_size, kMostPixels});
      }
    }
    a.first_tokens = names.distillation != nullptr ? 2 : names.first_token != nullptr ? 1 : 0;
    a.positions = a.image_tokens();
    if (names.registers != nullptr) {
      a.first_tokens += config.integer("num_register_tokens", 4, {.least = 0, .most = 4096});
    }
  }
}

void check_settings(ConfigReader& config, const Family& family) {
  for (const Setting& setting : family.settings) {
    const ConfigValue* const value = config.find(setting.field);
    if (value == nullptr || value->kind == ConfigValue::Kind::kNull) continue;
    const std::string text =
        value->kind == ConfigValue::Kind::kText ? value->text : described(value);
    const bool is_field = setting.value[0] == '=';
    const std::string wanted =
        is_field ? described(config.find(setting.value + 1)) : std::string(setting.value);
    if (text != wanted) config.fail(setting.field, wanted, described(value));
  }
}

// Weights in other forms than numbers: `quantization` is MLX's name.
void check_quantization(ConfigReader& top) {
  for (const std::string name : {"quantization_config", "quantization"}) {
    if (!top.has_members(name) && !top.has(name)) continue;
    const ConfigValue* const value = top.find(name);
    ConfigReader group(top, name);
    const std::string method = group.text("quant_method", "mlx"),
                      mode = group.text("mode", "affine");
    const std::string version = group.text("version", "gemm");
    const int64_t bits = group.integer("bits", 0, {.least = 0});
    const bool is_read = (method == "mlx" && mode == "affine") || method == "gptq" ||
                         (method == "awq" && version == "gemm");
    if (value == nullptr && is_read && (bits == 4 || (bits == 8 && method != "awq"))) continue;
    const std::string kind = method + (bits > 0 ? " of " + std::to_string(bits) + " bits" : "");
    top.fail(name, "none, or 4 or 8 bits of MLX (affine) or GPTQ, or 4 of AWQ (gemm)",
             value == nullptr ? kind : described(value));
  }
}

// The family of a configuration, and where its fields are.
struct Chosen {
  const Family* family = nullptr;
  std::string model_type = {};
  std::string prefix = {};  // of the fields, as in "text_config."
  bool text_part = false, towers = false;
};

Status choose_family(const Config& given, bool images, Chosen& chosen) {
  ConfigReader top(given, "");
  std::string type_field = "model_type";
  std::string type = top.has("model_type") ? top.text("model_type", "") : "";
  chosen.model_type = type;
  const TextPart* const part = find_text_part(type);
  chosen.text_part = part != nullptr;
  if (part != nullptr) {
    // Older files of Qwen2-VL have no text_config: its settings stand at the top.
    if (top.has_members("text_config")) chosen.prefix = "text_config.";
    if (!chosen.prefix.empty() && top.has(chosen.prefix + type_field)) {
      type_field = chosen.prefix + type_field;
      type = top.text(type_field.c_str(), "");
      const TextPart* const inner = find_text_part(type);
      if (inner != nullptr) type = inner->text;
    } else {
      type = part->text;
    }
  }
  const Towers* const towers = find_towers(type);
  if (towers != nullptr) {
    chosen.towers = true;
    chosen.prefix = images ? "vision_config." : "text_config.";
    type = images ? towers->images : towers->text;
  } else if (images) {
    return setting_error(type_field, "a model of texts and images, for its tower of images",
                         described(top.find(type_field)));
  }
  chosen.family = find_family(type);
  if (type == "nomic_bert" && top.has("n_embd")) chosen.family = &nomic_bert_of_remote_code();
  const ConfigValue* const positions = top.find("position_embedding_type");
  const bool alibi = positions != nullptr && positions->text == "alibi";
  if (type == "bert" && alibi) chosen.family = &jina_bert();
  MULTIHEAD_TRY(top.status());
  const auto fits = [&](const Family& family) {
    return part == nullptr || (family.causal && family.encoder == nullptr);
  };
  if (chosen.family != nullptr && fits(*chosen.family)) return {};
  std::string known = "one of ";
  for (const Family& each : families()) {
    if (fits(each)) known += std::string(each.model_type) + ", ";
  }
  for (const TextPart& each : text_parts()) known += std::string(each.model_type) + ", ";
  for (const Towers& each : models::towers()) known += std::string(each.model_type) + ", ";
  known.resize(known.size() - 2);
  return setting_error(type_field, known, described(top.find(type_field)));
}

Status read_stack(const Config& given, const Chosen& chosen, Architecture& architecture) {
  ConfigReader top(given, "");
  const Family* const family = chosen.family;
  const std::string& prefix = chosen.prefix;
  check_quantization(top);
  ConfigReader config(given, prefix);
  const Fields& fields = family->fields;
  const Defaults& defaults = family->defaults;
  const Names& names = family->names;
  Architecture a;
  a.family = family;
  a.model_type = chosen.model_type;
  a.text_part = chosen.text_part;
  a.has_towers = chosen.towers;
  a.neighbour_pairs = top.flag("gguf/neighbour_pairs", false);
  a.from_gguf = top.flag("gguf", false);
  a.transposed = family->transposed && !a.from_gguf;
  a.interleaved_qkv = family->interleaved_qkv && !a.from_gguf;
  a.architecture = top.has("architectures.0") ? top.text("architectures.0", "") : "";
  MULTIHEAD_TRY(top.status());
  check_settings(config, *family);
  const auto extent = [&](const char* fields_of, int64_t absent = 0, int64_t most = kMostWidth) {
    std::string names_of = fields_of;
    size_t end = names_of.find('|');
    while (end != std::string::npos && !config.has(names_of.substr(0, end))) {
      names_of.erase(0, end + 1);
      end = names_of.find('|');
    }
    names_of = names_of.substr(0, end);
    const char* const field = names_of.c_str();
    if (config.find(field) == nullptr && absent == 0) config.fail(field, "a number", "nothing");
    return config.integer(field, std::max<int64_t>(1, absent), {.most = most});
  };
  const bool nested = a.text_part || a.has_towers || names.patch != nullptr;
  a.width = extent(fields.width, nested ? defaults.width : 0);
  a.heads = extent(fields.heads, defaults.heads);
  // T5's decoder has as many layers as the encoder unless it says otherwise.
  const bool as_encoder = family->encoder != nullptr && !config.has(fields.layers);
  const int64_t layers = extent(as_encoder ? family->encoder->fields.layers : fields.layers,
                                nested ? defaults.layers : 0, kMostLayers);
  if (names.embedding != nullptr) {
    const char* const field = config.has(fields.vocabulary) ? fields.vocabulary : "vocab_size";
    a.vocabulary = extent(field, defaults.vocabulary, kMostRows);
  }
  const Integers or_derived{.null_is_zero = true};
  a.mlp = config.integer(fields.mlp, nested ? defaults.mlp : 0, or_derived);
  if (a.mlp == 0) a.mlp = 4 * a.width;
  if (fields.mlp_ratio != nullptr) {
    const double ratio = config.number(fields.mlp_ratio, 4.0, {.most = 1024});
    a.mlp = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(a.width) * ratio));
    if (config.flag("use_swiglu_ffn", false)) a.mlp = (2 * a.mlp / 3 + 7) / 8 * 8;
  }
  a.embedding_width =
      names.embedding_projection != nullptr ? config.integer("embedding_size", 128, {}) : a.width;
  a.kv_heads = config.integer(fields.kv_heads, defaults.kv_heads, or_derived);
  if (a.kv_heads == 0) a.kv_heads = a.heads;
  a.head_dim = config.integer(fields.head_dim, defaults.head_dim, or_derived);
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
  if (a.q_width() > kMostWidth) {
    config.fail(fields.head_dim,
                "at most " + std::to_string(kMostWidth / a.heads) + " for " +
                    std::to_string(a.heads) + " heads",
                std::to_string(a.head_dim));
  }
  MULTIHEAD_TRY(config.status());
  a.layers.resize(static_cast<size_t>(layers));
  a.parameter_sets =
      family->shares_layers ? config.integer("num_hidden_groups", 1, {.most = layers}) : layers;
  for (int64_t i = 0; i < layers; ++i) {
    // Layer i of L belongs to group floor(i / (L / groups)).
    a.layers[static_cast<size_t>(i)].weights = i * a.parameter_sets / layers;
  }
  a.eps = static_cast<float>(config.number(fields.eps, defaults.eps, {.least = 0, .most = 1}));
  if (names.output != nullptr || names.own_embedding != nullptr) {
    ConfigReader& of_tied = top.has("tie_word_embeddings") ? top : config;
    a.tied = of_tied.flag("tie_word_embeddings", defaults.tied);
    // Newer configurations of T5 have a flag, because they call every model tied.
    a.scales_logits = family->scales_tied_logits && config.flag("scale_decoder_outputs", a.tied);
    a.tied = a.tied || family->tied_by_files;
  }
  const bool qkv_default = family->qkv_bias, output_default = family->output_bias;
  const auto either = [](const char* one, const char* other) { return one ? one : other; };
  a.qkv_bias = config.flag(either(fields.qkv_bias, fields.attention_bias), qkv_default);
  a.output_bias = config.flag(either(fields.output_bias, fields.attention_bias), output_default);
  a.mlp_bias = config.flag(fields.mlp_bias, family->mlp_bias);
  a.norm_bias = config.flag(fields.norm_bias, fields.norm_bias == nullptr && family->norm_bias);
  a.transform_bias = config.flag(fields.transform_bias, fields.transform_bias == nullptr);
  const bool both_sides = config.flag(family->both_sides_field, false);
  if (family->classifier == Classifier::kTransform) {
    const char* const field = "classifier_pooling";
    const std::string pooling = config.text(field, "cls");
    a.classifies_mean = pooling == "mean";
    if (!a.classifies_mean && pooling != "cls")
      config.fail(field, "cls or mean", '"' + pooling + '"');
  }
  a.window_both_sides = family->window_both_sides || both_sides;
  if (names.patch != nullptr) a.qkv_bias = config.flag("qkv_bias", true);
  a.parallel = config.flag(family->parallel_field, family->parallel);
  a.one_norm = a.parallel && family->one_norm;
  a.causal = family->causal && !both_sides && config.flag("is_causal", true);
  read_activation(config, *family, a);
  read_positions(config, *family, a);
  read_ropes(config, *family, a);
  read_windows(config, *family, a);
  read_scales(config, *family, a);
  if (family->causal && !a.causal && !a.window_both_sides &&
      std::any_of(a.layers.begin(), a.layers.end(),
                  [](const LayerPlan& layer) { return layer.window > 0; })) {
    config.fail("is_causal", "true, or no sliding windows", "false");
  }
  while (config.has("id2label." + std::to_string(a.labels))) ++a.labels;
  MULTIHEAD_TRY(config.status());
  if (family->causal) {
    // Only language models generate.
    MULTIHEAD_TRY(read_generation(given, prefix, a));
  }
  MULTIHEAD_TRY(top.status());
  architecture = std::move(a);
  return {};
}

}  // namespace

Status read_architecture(const Config& config, bool images, Architecture& architecture,
                         Architecture& encoder) {
  Chosen chosen;
  MULTIHEAD_TRY(choose_family(config, images, chosen));
  const Family* const of_encoder = chosen.family->encoder;
  if (of_encoder == nullptr) return read_stack(config, chosen, architecture);
  // An encoder that was saved by itself is a model with one stack.
  const auto found = config.find("architectures.0");
  const bool alone = found != config.end() && found->second.text.ends_with("EncoderModel");
  MULTIHEAD_TRY(
      read_stack(config, {of_encoder, of_encoder->model_type}, alone ? architecture : encoder));
  return alone ? Status() : read_stack(config, chosen, architecture);
}

}  // namespace multihead::models
