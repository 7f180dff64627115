#include "models/gguf_settings.h"

#include <algorithm>
#include <cmath>
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

ConfigValue number_value(double number) { return {ConfigValue::Kind::kNumber, number, {}}; }
ConfigValue flag_value(bool flag) { return {ConfigValue::Kind::kBool, flag ? 1.0 : 0.0, {}}; }
ConfigValue text_value(std::string text) { return {ConfigValue::Kind::kText, 0, std::move(text)}; }

constexpr const char* kArchitecture = "general.architecture";

struct Kind {
  std::string_view architecture;
  const char* model_type;
  bool neighbour_pairs = false;
};
constexpr Kind kKinds[] = {{"llama", "llama", true},
                           {"mistral3", "llama", true},
                           {"qwen2", "qwen2"},
                           {"qwen2vl", "qwen2_vl_text"},
                           {"qwen3", "qwen3"},
                           {"qwen3vl", "qwen3_vl_text"},
                           {"smollm3", "smollm3", true},
                           {"gemma", "gemma"},
                           {"gemma2", "gemma2"},
                           {"gemma3", "gemma3_text"},
                           {"gemma-embedding", "gemma3_text"},
                           {"phi2", "phi"},
                           {"phi3", "phi3"},
                           {"granite", "granite", true},
                           {"olmo", "olmo", true},
                           {"olmo2", "olmo2"},
                           {"command-r", "cohere"},
                           {"cohere2", "cohere2"},
                           {"glm4", "glm4"},
                           {"chatglm", "glm"},
                           {"ernie4_5", "ernie4_5"},
                           {"arcee", "arcee", true},
                           {"exaone4", "exaone4"},
                           {"seed_oss", "seed_oss"},
                           {"hunyuan-dense", "hunyuan_v1_dense"},
                           {"stablelm", "stablelm"},
                           {"starcoder", "gpt_bigcode"},
                           {"starcoder2", "starcoder2"},
                           {"gpt2", "gpt2"},
                           {"gptneox", "gpt_neox"},
                           {"bloom", "bloom"},
                           {"bert", "bert"},
                           {"jina-bert-v2", "bert"},
                           {"nomic-bert", "nomic_bert"},
                           {"modern-bert", "modernbert"},
                           {"eurobert", "eurobert"}};

bool is_number(const Config& settings, const std::string& name) {
  const auto found = settings.find(name);
  return found != settings.end() && found->second.kind == ConfigValue::Kind::kNumber;
}

// OLMo 2 and 3 have one architecture; only OLMo 3 has windows.
const Family& family_of(const Kind& kind, const Config& settings) {
  if (kind.architecture == "jina-bert-v2") return jina_bert();
  const bool is_olmo3 =
      kind.architecture == "olmo2" && is_number(settings, "olmo2.attention.sliding_window");
  return *find_family(is_olmo3 ? "olmo3" : kind.model_type);
}

struct Named {
  std::string_view gguf;
  const char* Names::*name;
};
constexpr Named kNames[] = {{"token_embd", &Names::embedding},
                            {"position_embd", &Names::position},
                            {"token_types", &Names::token_type},
                            {"token_embd_norm", &Names::embedding_norm},
                            {"output_norm", &Names::final_norm},
                            {"output", &Names::output},
                            {"attn_norm", &Names::attention_norm},
                            {"attn_output_norm", &Names::attention_sum_norm},
                            {"layer_output_norm", &Names::mlp_sum_norm},
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
  if (name == "dense_2.weight") return "2_Dense/linear.weight";
  if (name == "dense_3.weight") return "3_Dense/linear.weight";
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
  // Seed's norm before the MLP has the name that it has in Hugging Face's files.
  if (named == nullptr && base == "post_attention_norm") named = family.names.mlp_norm;
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
    const auto has_bias = [&](const std::string& of) { return has("blk.0." + of + ".bias"); };
    const Fields& fields = family_.fields;
    config_["model_type"] = text_value(family_.model_type);
    config_["tie_word_embeddings"] = flag_value(!has("output.weight"));
    const std::pair<const char*, const char*> copied[] = {
        {"context_length", fields.positions},
        {"feed_forward_length", fields.mlp},
        {"attention.head_count_kv", fields.kv_heads},
        {"attention.key_length", fields.head_dim},
        {"attention.layer_norm_epsilon", fields.eps},
        {"attention.layer_norm_rms_epsilon", fields.eps},
        {"attention.sliding_window", fields.window},
        {"attn_logit_softcapping", fields.attention_cap},
        {"final_logit_softcapping", fields.logit_cap},
        {"hidden_activation", fields.activation},
        {"use_parallel_residual", family_.parallel_field}};
    for (const auto& [from, to] : copied) copy(from, to);
    const std::pair<const char*, const char*> needed[] = {{"embedding_length", fields.width},
                                                          {"block_count", fields.layers},
                                                          {"attention.head_count", fields.heads}};
    for (const auto& [from, to] : needed) {
      // The first of several names.
      copy(from, std::string(std::string_view(to).substr(0, std::string_view(to).find('|'))));
      if (find(from) == nullptr) fail(from, "a number", "nothing");
    }
    const std::pair<const char*, const char*> factors[] = {
        {"attention.clamp_kqv", fields.qkv_cap},
        {"attention.scale", fields.scale_factor},
        {"embedding_scale", fields.embedding_factor},
        {"residual_scale", fields.residual_factor},
        {"logit_scale",
         fields.logit_divisor != nullptr ? fields.logit_divisor : fields.logit_factor}};
    for (const auto& [from, to] : factors) {
      copy(from, to);
      if (to == nullptr && find(from) != nullptr)
        fail(from, "none for " + architecture_, text_of(number(from, 0)));
    }
    const StoredTensor* const embedding = find_tensor(tensors, "token_embd.weight");
    if (embedding == nullptr || embedding->shape.rank() != 2)
      return format_error("token_embd.weight", "a matrix of this name", "none");
    config_["vocab_size"] = number_value(static_cast<double>(embedding->shape[0]));
    const bool qkv_bias = has_bias("attn_q") || has_bias("attn_qkv");
    const std::pair<const char*, bool> flags[] = {{fields.attention_bias, qkv_bias},
                                                  {fields.qkv_bias, qkv_bias},
                                                  {fields.output_bias, has_bias("attn_output")},
                                                  {fields.mlp_bias, has_bias("ffn_down")}};
    for (const auto& [to, value] : flags) {
      if (to != nullptr) config_[to] = flag_value(value);
    }
    // llama.cpp knows StableLM's parallel form by the norm that it lacks.
    if (family_.parallel_field != nullptr && family_.one_norm)
      config_[family_.parallel_field] = flag_value(!has("blk.0.ffn_norm.weight"));
    heads();
    tables(tensors);
    windows();
    sees_both_sides();
    sentence(tensors);
    copy_token("eos_token_id", "eos_token_id");
    copy_token("eot_token_id", "generation_config.json/eos_token_id");
    const double key_length = number("attention.key_length", 0);
    const std::pair<const char*, double> only[] = {{"expert_count", 0},
                                                   {"nextn_predict_layers", 0},
                                                   {"attention.temperature_scale", 0},
                                                   {"rope.scaling.yarn_log_multiplier", 0},
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
    if (status_.ok()) status_ = format_error(full(name), expected, got);
  }

  double number(std::string_view name, double absent) {
    const ConfigValue* const value = find(name);
    if (value == nullptr) return absent;
    if (value->kind == ConfigValue::Kind::kNumber) return value->number;
    fail(name, "a number", value->kind == ConfigValue::Kind::kNull ? "an array" : described(value));
    return absent;
  }

  void copy(std::string_view from, const char* to) {
    if (to != nullptr) copy(from, std::string(to));
  }

  void copy(std::string_view from, const std::string& to) {
    const ConfigValue* const value = find(from);
    if (value == nullptr) return;
    const bool is_other =
        value->kind == ConfigValue::Kind::kText || value->kind == ConfigValue::Kind::kBool;
    config_[to] = is_other ? *value : number_value(number(from, 0));
  }

  // llama.cpp's defaults are not always the family's.
  void heads() {
    const Fields& fields = family_.fields;
    const double count = number("attention.head_count", 1);
    const double usual = number("embedding_length", 0) / std::max(count, 1.0);
    const double shared =
        family_.defaults.kv_heads > 0 ? static_cast<double>(family_.defaults.kv_heads) : count;
    const auto only = [&](const char* name, const char* field, double expected) {
      const double got = number(name, expected);
      if (field == nullptr && got != expected) fail(name, text_of(expected), text_of(got));
      if (field != nullptr && find(name) == nullptr) config_[field] = number_value(expected);
    };
    only("attention.head_count_kv", fields.kv_heads, fields.kv_heads == nullptr ? shared : count);
    if (fields.head_dim == nullptr || usual == std::floor(usual))
      only("attention.key_length", fields.head_dim, usual);
  }

  // Numbers of rows that GGUF does not tell.
  void tables(std::span<const StoredTensor> tensors) {
    const StoredTensor* const positions = find_tensor(tensors, "position_embd.weight");
    if (positions != nullptr && family_.names.position != nullptr &&
        family_.fields.positions != nullptr && positions->shape.rank() == 2) {
      config_[family_.fields.positions] = number_value(static_cast<double>(positions->shape[0]));
    }
    if (family_.names.token_type == nullptr) return;
    const StoredTensor* const types = find_tensor(tensors, "token_types.weight");
    const bool is_table = types != nullptr && types->shape.rank() == 2;
    config_["type_vocab_size"] = number_value(types == nullptr ? 0.0
                                              : is_table ? static_cast<double>(types->shape[0])
                                                         : 1);
  }

  void windows() {
    const Fields& fields = family_.fields;
    const std::string pattern = "attention.sliding_window_pattern";
    // Without a window, as EXAONE 4 of 1.2B, all layers see everything.
    if (fields.window != nullptr && family_.rope_in_windows &&
        find("attention.sliding_window") == nullptr)
      config_[fields.window] = number_value(0);
    const ConfigValue* const period = find(pattern);
    if (period == nullptr || fields.window == nullptr) return;
    if (period->kind == ConfigValue::Kind::kNumber) {
      if (family_.windows == Windows::kPattern) copy(pattern, "sliding_window_pattern");
      if (family_.windows == Windows::kBetweenFull) copy(pattern, "global_attn_every_n_layers");
    }
    const ConfigValue* slides = nullptr;
    for (size_t i = 0; (slides = find(pattern + "." + std::to_string(i))) != nullptr; ++i) {
      config_["layer_types." + std::to_string(i)] =
          text_value(slides->number != 0 ? "sliding_attention" : "full_attention");
    }
  }

  void sees_both_sides() {
    const bool embeds = architecture_ == "gemma-embedding";
    if (embeds) {
      config_[family_.both_sides_field] = flag_value(true);
      config_["architectures.0"] = text_value("Gemma3TextModel");
    }
    const ConfigValue* const causal = find("attention.causal");
    if (causal == nullptr) return;
    if (family_.causal && !embeds) config_["is_causal"] = flag_value(causal->number != 0);
    if (!family_.causal && causal->number != 0) fail("attention.causal", "false", "true");
  }

  // The vector of a text, as llama-embedding computes it.
  void sentence(std::span<const StoredTensor> tensors) {
    constexpr const char* kPoolings[] = {"", "mean", "cls", "lasttoken"};
    const double type = number("pooling_type", 0);
    const bool is_known = type == 0 || type == 1 || type == 2 || type == 3;
    if (!is_known) fail("pooling_type", "0 to 3: none, mean, cls or last", text_of(type));
    if (is_known && type > 0)
      config_["1_Pooling/config.json/pooling_mode"] = text_value(kPoolings[static_cast<int>(type)]);
    const bool embeds = !family_.causal || architecture_ == "gemma-embedding";
    if (embeds) copy("context_length", "sentence_bert_config.json/max_seq_length");
    if (find_tensor(tensors, "dense_2.weight") == nullptr) return;
    int count = 0;
    const auto add = [&](const std::string& kind, const std::string& path) {
      const std::string module = "modules.json/" + std::to_string(count++);
      config_[module + ".type"] = text_value(kind);
      config_[module + ".path"] = text_value(path);
    };
    add("Transformer", "");
    add("Pooling", "1_Pooling");
    if (type == 0) config_["1_Pooling/config.json/pooling_mode"] = text_value("mean");
    for (const char* const name : {"dense_2", "dense_3"}) {
      const std::string path = std::string(1, name[6]) + "_Dense";
      const StoredTensor* const matrix = find_tensor(tensors, name + std::string(".weight"));
      if (matrix == nullptr || matrix->shape.rank() != 2) continue;
      add("Dense", path);
      config_[path + "/config.json/in_features"] =
          number_value(static_cast<double>(matrix->shape[1]));
      config_[path + "/config.json/out_features"] =
          number_value(static_cast<double>(matrix->shape[0]));
      config_[path + "/config.json/bias"] = flag_value(false);
      config_[path + "/config.json/activation_function"] = text_value("Identity");
    }
    add("Normalize", "4_Normalize");
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
    if (!family_.rope) return;
    const double rotated = number("rope.dimension_count", width);
    // A little more than the quotient, which may be below the whole number that it stands for.
    if (width > 0)
      config_[family_.fields.partial_rotary] =
          number_value(rotated == width ? 1.0 : (rotated + 0.125) / width);
    // Gemma 3's files of Ollama have other names for its two bases, which are the family's.
    const double base = number("rope.freq_base", 10000.0);
    if (find("rope.freq_base") != nullptr || !family_.rope_of_windows)
      config_[family_.fields.theta] = number_value(base);
    const double local = number("rope.freq_base_swa", base);
    if (family_.rope_of_windows) {
      copy("rope.freq_base_swa", family_.fields.local_theta);
    } else if (local != base) {
      fail("rope.freq_base_swa", text_of(base), text_of(local));
    }
    // GLM's pairs are neighbours, but not in the files of its models with images.
    if (family_.rope_neighbours && find("rope.dimension_sections") != nullptr)
      fail("rope.dimension_sections", "none for " + architecture_, "an array");
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
    if (type != "yarn") return;
    for (const std::pair<const char*, const char*>& each :
         {std::pair{"attn_factor", "attention_factor"},
          {"beta_fast", "beta_fast"},
          {"beta_slow", "beta_slow"},
          {"truncate", "truncate"}}) {
      copy(std::string("rope.scaling.yarn_") + each.first,
           std::string("rope_scaling.") + each.second);
    }
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
  const Family& family = family_of(*kind, settings);
  Config config;
  if (&family == &jina_bert()) config["position_embedding_type"] = text_value("alibi");
  config["gguf/neighbour_pairs"] = flag_value(kind->neighbour_pairs);
  config["gguf"] = flag_value(true);
  MULTIHEAD_TRY(Translator(settings, architecture, family, config).translate(tensors));
  for (StoredTensor& tensor : tensors) {
    // llama-quantize leaves out that a table has one row.
    if (tensor.name == "token_types.weight" && tensor.shape.rank() == 1)
      tensor.shape = {1, tensor.shape[0]};
    tensor.name = hugging_face_name(family, tensor.name);
  }
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
