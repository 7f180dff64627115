#include "models/gguf_settings.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "engine/error/printable.h"
#include "models/config_reader.h"
#include "models/family.h"

namespace multihead::models {
// A namespace of its own, since files of a library are compiled together.
namespace gguf_settings {
namespace {

Status format_error(std::string_view what, std::string_view expected, std::string_view got) {
  return {StatusCode::kFormat, what, expected, got};
}

ConfigValue number_value(double number) { return {ConfigValue::Kind::kNumber, number, {}}; }
ConfigValue flag_value(bool flag) { return {ConfigValue::Kind::kBool, flag ? 1.0 : 0.0, {}}; }
ConfigValue text_value(std::string text) { return {ConfigValue::Kind::kText, 0, std::move(text)}; }

constexpr const char* kArchitecture = "general.architecture";

struct Kind {
  std::string_view architecture;
  const char* model_type;
  bool neighbour_pairs = false;
};
constexpr Kind kKinds[] = {{"llama", "llama", true},     {"qwen2", "qwen2"}, {"qwen3", "qwen3"},
                           {"smollm3", "smollm3", true}, {"olmo2", "olmo2"}, {"phi3", "phi3"},
                           {"starcoder2", "starcoder2"}, {"gemma", "gemma"}, {"gemma2", "gemma2"},
                           {"gemma3", "gemma3_text"}};

struct Named {
  std::string_view gguf;
  const char* Names::*name;
};
constexpr Named kNames[] = {{"token_embd", &Names::embedding},
                            {"output_norm", &Names::final_norm},
                            {"output", &Names::output},
                            {"attn_norm", &Names::attention_norm},
                            {"attn_q", &Names::q},
                            {"attn_k", &Names::k},
                            {"attn_v", &Names::v},
                            {"attn_qkv", &Names::qkv},
                            {"attn_output", &Names::o},
                            {"attn_q_norm", &Names::q_norm},
                            {"attn_k_norm", &Names::k_norm},
                            {"post_attention_norm", &Names::attention_out_norm},
                            {"ffn_norm", &Names::mlp_norm},
                            {"ffn_gate", &Names::gate},
                            {"ffn_up", &Names::up},
                            {"ffn_down", &Names::down},
                            {"post_ffw_norm", &Names::mlp_out_norm}};

// Hugging Face's name of a tensor, such as "blk.3.attn_q.weight". A tensor that the family does not
// have keeps its name.
std::string hugging_face_name(const Family& family, const std::string& name) {
  const size_t dot = name.rfind('.');
  std::string_view base(name.data(), std::min(dot, name.size()));
  std::string layer;
  if (base.starts_with("blk.")) {
    const size_t end = base.find('.', 4);
    if (end == std::string_view::npos) return name;
    layer = base.substr(4, end - 4);
    base.remove_prefix(end + 1);
  }
  const auto* const found = std::find_if(std::begin(kNames), std::end(kNames),
                                         [&](const Named& each) { return each.gguf == base; });
  if (dot == std::string::npos || found == std::end(kNames)) return name;
  const char* named = family.names.*found->name;
  // Phi 3 has both matrices in one.
  if (named == nullptr && base == "ffn_up") named = family.names.gate_up;
  if (named == nullptr) return name;
  std::string result(named);
  const size_t number = result.find('#');
  if ((number == std::string::npos) != layer.empty()) return name;
  if (number != std::string::npos) result.replace(number, 1, layer);
  return (found->name == &Names::output ? "" : std::string(family.prefixes.front())) + result +
         name.substr(dot);
}

const StoredTensor* find_tensor(std::span<const StoredTensor> tensors, std::string_view name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const StoredTensor& each) { return each.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

// Makes config.json's settings of a GGUF file's settings.
class Translator {
 public:
  Translator(const Config& settings, std::string architecture, const Family& family, Config& config)
      : settings_(settings),
        architecture_(std::move(architecture)),
        family_(family),
        config_(config) {}

  Status translate(std::span<const StoredTensor> tensors) {
    const auto has = [&](std::string_view name) { return find_tensor(tensors, name) != nullptr; };
    const Fields& fields = family_.fields;
    config_["model_type"] = text_value(family_.model_type);
    config_["tie_word_embeddings"] = flag_value(!has("output.weight"));
    const std::pair<const char*, const char*> copied[] = {
        {"context_length", fields.positions},
        {"embedding_length", fields.width},
        {"block_count", fields.layers},
        {"feed_forward_length", fields.mlp},
        {"attention.head_count", fields.heads},
        {"attention.head_count_kv", fields.kv_heads},
        {"attention.key_length", fields.head_dim},
        {"attention.layer_norm_epsilon", fields.eps},
        {"attention.layer_norm_rms_epsilon", fields.eps},
        {"attention.sliding_window", fields.window},
        {"attn_logit_softcapping", fields.attention_cap},
        {"final_logit_softcapping", fields.logit_cap},
        {"rope.freq_base", fields.theta}};
    for (const auto& [from, to] : copied) copy(from, to);
    const StoredTensor* const embedding = find_tensor(tensors, "token_embd.weight");
    if (embedding == nullptr || embedding->shape.rank() != 2)
      return format_error("token_embd.weight", "a matrix of this name", "none");
    config_["vocab_size"] = number_value(static_cast<double>(embedding->shape[0]));
    for (const char* name : {"embedding_length", "block_count", "attention.head_count"}) {
      if (find(name) == nullptr) fail(name, "a number", "nothing");
    }
    if (fields.attention_bias != nullptr)
      config_[fields.attention_bias] = flag_value(has("blk.0.attn_q.bias"));
    if (fields.mlp_bias != nullptr)
      config_[fields.mlp_bias] = flag_value(has("blk.0.ffn_down.bias"));
    copy_token("eos_token_id", "eos_token_id");
    copy_token("eot_token_id", "generation_config.json/eos_token_id");
    const double key_length = number("attention.key_length", 0);
    const std::pair<const char*, double> only[] = {{"expert_count", 0},
                                                   {"attention.value_length", key_length}};
    for (const auto& [name, expected] : only) {
      const double got = number(name, expected);
      if (got != expected) fail(name, text_of(expected), text_of(got));
    }
    if (fields.scale != nullptr) scale();
    rope(tensors);
    return status_;
  }

 private:
  std::string full(std::string_view name) const { return architecture_ + "." + std::string(name); }

  const ConfigValue* find(std::string_view name) const {
    const auto found = settings_.find(full(name));
    return found == settings_.end() ? nullptr : &found->second;
  }

  void fail(std::string_view name, std::string_view expected, std::string_view got) {
    if (status_.ok()) status_ = format_error(engine::printable(full(name)), expected, got);
  }

  double number(std::string_view name, double absent) {
    const ConfigValue* const value = find(name);
    if (value == nullptr) return absent;
    if (value->kind == ConfigValue::Kind::kNumber) return value->number;
    fail(name, "a number", value->kind == ConfigValue::Kind::kNull ? "an array" : described(value));
    return absent;
  }

  void copy(std::string_view from, const char* to) {
    if (to != nullptr && find(from) != nullptr) config_[to] = number_value(number(from, 0));
  }

  void copy_token(const std::string& from, const char* to) {
    const auto found = settings_.find("tokenizer.ggml." + from);
    if (found != settings_.end()) config_[to] = found->second;
  }

  // llama.cpp knows the scale of scores by the size of the model.
  void scale() {
    const double layers = number("block_count", 0), heads = number("attention.head_count", 1);
    const double by_width = number("embedding_length", 0) / std::max(heads, 1.0);
    const bool is_27b = layers == (architecture_ == "gemma2" ? 46 : 62);
    config_[family_.fields.scale] =
        number_value(is_27b ? by_width : number("attention.key_length", by_width));
  }

  void rope(std::span<const StoredTensor> tensors) {
    const double width =
        number("attention.key_length",
               number("embedding_length", 0) / std::max(number("attention.head_count", 1), 1.0));
    const double rotated = number("rope.dimension_count", width);
    // A little more than the quotient, which may be below the whole number that it stands for.
    if (rotated != width && width > 0)
      config_["partial_rotary_factor"] = number_value((rotated + 0.125) / width);
    std::string type;
    if (const ConfigValue* const value = find("rope.scaling.type")) type = value->text;
    double factor = number("rope.scaling.factor", 0);
    if (type.empty() && find("rope.scale_linear") != nullptr) {
      type = "linear";
      factor = number("rope.scale_linear", 0);
    }
    const auto set = [&](const std::string& name, double value) {
      config_["rope_scaling." + name] = number_value(value);
    };
    const double original = number("rope.scaling.original_context_length", 0);
    if (type == "linear" || type == "yarn") {
      if (factor == 0 || factor == 1) return;
      set("factor", factor);
    } else if (!type.empty() && type != "none" && type != "longrope") {
      fail("rope.scaling.type", "none, linear, yarn or longrope", engine::printable(type));
      return;
    }
    // Llama 3 has one list: the factors that its rule gives, for every length.
    const bool lists =
        add_factors(tensors, kRopeFactors[1]) && add_factors(tensors, kRopeFactors[2]);
    const bool one_list = !lists && add_factors(tensors, kRopeFactors[0]);
    if (lists || one_list) type = "longrope";
    if (type == "longrope" && !lists && !one_list) {
      fail("rope.scaling.type",
           "the tensors rope_factors_long and rope_factors_short beside longrope", "none");
    }
    if (type.empty() || type == "none") return;
    config_["rope_scaling.rope_type"] = text_value(type);
    if (original > 0 && !one_list) set("original_max_position_embeddings", original);
    if (one_list) set("attention_factor", 1);
    if (find("rope.scaling.attn_factor") != nullptr)
      set("attention_factor", number("rope.scaling.attn_factor", 1));
  }

  // Writes the list of a tensor, with ones for its numbers. False if there is no such tensor.
  bool add_factors(std::span<const StoredTensor> tensors, const RopeFactors& factors) {
    constexpr int64_t kMost = 4096;
    const StoredTensor* const tensor = find_tensor(tensors, factors.tensor);
    if (tensor == nullptr) return false;
    const int64_t count = tensor->shape.elements();
    if (count > kMost)
      fail(factors.tensor, "at most " + std::to_string(kMost) + " numbers", std::to_string(count));
    for (int64_t at = 0; at < std::min(count, kMost); ++at)
      set_rope_factor(config_, factors, at, 1.0);
    return true;
  }

  const Config& settings_;
  std::string architecture_;
  const Family& family_;
  Config& config_;
  Status status_;
};

Status translate(Config& settings, std::vector<StoredTensor>& tensors) {
  const auto parts = settings.find("split.count");
  if (parts != settings.end() && parts->second.number > 1) {
    return format_error("split.count", "1: join the files with llama-gguf-split --merge",
                        text_of(parts->second.number));
  }
  const std::string architecture = settings.find(kArchitecture)->second.text;
  const auto* const kind =
      std::find_if(std::begin(kKinds), std::end(kKinds),
                   [&](const Kind& each) { return each.architecture == architecture; });
  if (kind == std::end(kKinds)) {
    std::string known;
    for (const Kind& each : kKinds)
      known += (known.empty() ? "one of " : ", ") + std::string(each.architecture);
    return format_error(kArchitecture, known,
                        architecture.empty() ? "nothing" : engine::printable(architecture));
  }
  const Family& family = *find_family(kind->model_type);
  Config config;
  config["gguf/neighbour_pairs"] = flag_value(kind->neighbour_pairs);
  config["gguf"] = flag_value(true);
  MULTIHEAD_TRY(Translator(settings, architecture, family, config).translate(tensors));
  for (StoredTensor& tensor : tensors) tensor.name = hugging_face_name(family, tensor.name);
  settings = std::move(config);
  return {};
}

}  // namespace
}  // namespace gguf_settings

bool is_gguf(const Config& settings) { return settings.contains(gguf_settings::kArchitecture); }

Status from_gguf(Config& settings, std::vector<StoredTensor>& tensors) {
  return gguf_settings::translate(settings, tensors);
}

void set_rope_factor(Config& config, const RopeFactors& factors, int64_t at, double number) {
  const auto set = [&](bool has, const char* list) {
    if (!has) return;
    config["rope_scaling." + std::string(list) + "." + std::to_string(at)] = {
        ConfigValue::Kind::kNumber, number, {}};
  };
  set(factors.short_factor, "short_factor");
  set(factors.long_factor, "long_factor");
}

}  // namespace multihead::models
