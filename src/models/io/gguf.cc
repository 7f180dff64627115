#include "models/io/gguf.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "engine/error/printable.h"
#include "models/config_reader.h"
#include "models/family.h"
#include "models/stored_blocks.h"

namespace multihead::models {
// A namespace of its own, since files of a library are compiled together.
namespace gguf {
namespace {

// The largest counts in a header; a file with more is refused before its tensors are read.
constexpr uint64_t kMostTensors = 1 << 20, kMostSettings = 1 << 16;
constexpr uint64_t kMostAlignment = 1 << 20;

Status format_error(std::string_view what, std::string_view expected, std::string_view got) {
  return {StatusCode::kFormat, what, expected, got};
}

// ---- The bytes of the file, from the beginning on. ----

class Reader {
 public:
  explicit Reader(std::span<const std::byte> file) : file_(file) {}

  // Gives 0 beyond the end of the file, and sets `truncated`.
  template <class T>
  T number() {
    uint64_t bits = 0;
    for (const std::byte byte : take(sizeof(T))) {
      bits = (bits >> 8U) | (static_cast<uint64_t>(byte) << 56U);
    }
    bits >>= 64 - 8 * sizeof(T);
    if constexpr (sizeof(T) == 8) return std::bit_cast<T>(bits);
    if constexpr (sizeof(T) == 4) return std::bit_cast<T>(static_cast<uint32_t>(bits));
    if constexpr (sizeof(T) == 2) return std::bit_cast<T>(static_cast<uint16_t>(bits));
    if constexpr (sizeof(T) == 1) return std::bit_cast<T>(static_cast<uint8_t>(bits));
  }

  std::string_view text() {
    const auto bytes = take(number<uint64_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  std::span<const std::byte> take(uint64_t count) {
    if (truncated || count > file_.size() - at_) {
      truncated = true;
      return {};
    }
    const auto taken = file_.subspan(at_, static_cast<size_t>(count));
    at_ += taken.size();
    return taken;
  }

  uint64_t at() const { return at_; }
  bool truncated = false;

 private:
  std::span<const std::byte> file_;
  size_t at_ = 0;
};

// ---- Settings. ----

enum Type : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kText,
  kArray,
  kU64,
  kI64,
  kF64
};

ConfigValue number_value(double number) { return {ConfigValue::Kind::kNumber, number, {}}; }
ConfigValue flag_value(bool flag) { return {ConfigValue::Kind::kBool, flag ? 1.0 : 0.0, {}}; }
ConfigValue text_value(std::string text) { return {ConfigValue::Kind::kText, 0, std::move(text)}; }

std::optional<ConfigValue> read_value(Reader& reader, uint32_t type) {
  switch (type) {
    case kU8:
      return number_value(reader.number<uint8_t>());
    case kI8:
      return number_value(reader.number<int8_t>());
    case kU16:
      return number_value(reader.number<uint16_t>());
    case kI16:
      return number_value(reader.number<int16_t>());
    case kU32:
      return number_value(reader.number<uint32_t>());
    case kI32:
      return number_value(reader.number<int32_t>());
    case kF32:
      return number_value(static_cast<double>(reader.number<float>()));
    case kBool:
      return flag_value(reader.number<uint8_t>() != 0);
    case kText:
      return text_value(std::string(reader.text()));
    case kU64:
      return number_value(static_cast<double>(reader.number<uint64_t>()));
    case kI64:
      return number_value(static_cast<double>(reader.number<int64_t>()));
    case kF64:
      return number_value(reader.number<double>());
    default:
      return std::nullopt;
  }
}

// Passes over an array: no setting is made of it. The tokenizer's arrays are the largest part of
// the header.
bool skip_array(Reader& reader, int depth = 0) {
  constexpr int kMostDepth = 4;
  const auto type = reader.number<uint32_t>();
  const auto count = reader.number<uint64_t>();
  if (type == kArray && depth == kMostDepth) return false;
  for (uint64_t i = 0; i < count && !reader.truncated; ++i) {
    if (type == kArray ? !skip_array(reader, depth + 1) : !read_value(reader, type)) return false;
  }
  return true;
}

// The settings by their names; an array is null.
Status read_settings(Reader& reader, uint64_t count, Config& settings) {
  for (uint64_t i = 0; i < count && !reader.truncated; ++i) {
    const std::string name(reader.text());
    const auto type = reader.number<uint32_t>();
    ConfigValue value;
    if (type == kArray) {
      if (!skip_array(reader))
        return format_error(engine::printable(name), "an array of known types", "another one");
    } else if (auto read = read_value(reader, type)) {
      value = std::move(*read);
    } else {
      return format_error(engine::printable(name), "a type of 0 to 12", std::to_string(type));
    }
    if (!settings.emplace(name, std::move(value)).second)
      return format_error(engine::printable(name), "every setting once", "it twice");
  }
  return {};
}

// ---- Tensors. ----

struct Tensor {
  std::string name;
  Dims shape;
  uint32_t type = 0;
  uint64_t offset = 0;
};

// By their numbers in ggml.h; empty for numbers that are no type.
constexpr std::string_view kTypes[] = {
    "F32",     "F16",    "Q4_0",    "Q4_1",  "",       "",      "Q5_0",  "Q5_1",
    "Q8_0",    "Q8_1",   "Q2_K",    "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K",  "Q8_K",
    "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS",
    "I8",      "I16",    "I32",     "I64",   "F64",    "IQ1_M", "BF16",  "",
    "",        "",       "TQ1_0",   "TQ2_0", "",       "",      "",      "MXFP4"};

std::string type_name(uint32_t type) {
  const bool known = type < std::size(kTypes) && !kTypes[type].empty();
  return known ? std::string(kTypes[type]) : "type " + std::to_string(type);
}

Status read_tensors(Reader& reader, uint64_t count, std::vector<Tensor>& tensors) {
  for (uint64_t i = 0; i < count && !reader.truncated; ++i) {
    Tensor& tensor = tensors.emplace_back();
    tensor.name = std::string(reader.text());
    const auto rank = reader.number<uint32_t>();
    if (rank > 4)
      return format_error(engine::printable(tensor.name), "at most 4 axes", std::to_string(rank));
    std::vector<int64_t> extents;
    uint64_t elements = 1;  // without axes of 0
    for (uint32_t axis = 0; axis < rank; ++axis) {
      const auto extent = reader.number<uint64_t>();
      constexpr uint64_t kMost = uint64_t{1} << 48U;
      if (extent > kMost / elements) {
        return format_error(engine::printable(tensor.name), "at most 2^48 numbers", "more");
      }
      elements *= std::max<uint64_t>(1, extent);
      extents.push_back(static_cast<int64_t>(extent));
    }
    // The innermost axis comes first in the file.
    for (auto extent = extents.rbegin(); extent != extents.rend(); ++extent)
      tensor.shape.push_back(*extent);
    tensor.type = reader.number<uint32_t>();
    tensor.offset = reader.number<uint64_t>();
  }
  return {};
}

// Finds the bytes of a tensor; none if its type is not read, since its size is then unknown.
Status find_bytes(const Tensor& tensor, std::span<const std::byte> data,
                  std::span<const std::byte>& bytes) {
  const std::optional<Stored> type = stored_type(type_name(tensor.type));
  if (!type) return {};
  const StoredForm& form = form_of(*type);
  const int64_t columns = tensor.shape.rank() == 0 ? 1 : tensor.shape[tensor.shape.rank() - 1];
  if (columns % form.numbers != 0) {
    return format_error(engine::printable(tensor.name),
                        "rows of a multiple of " + std::to_string(form.numbers) + " numbers in " +
                            std::string(form.name),
                        std::to_string(columns));
  }
  const uint64_t size = static_cast<uint64_t>(tensor.shape.elements() / form.numbers) * form.bytes;
  if (tensor.offset > data.size() || size > data.size() - tensor.offset) {
    return format_error(engine::printable(tensor.name),
                        std::to_string(size) + " bytes from byte " + std::to_string(tensor.offset) +
                            " of the tensors on",
                        "a file with " + std::to_string(data.size()));
  }
  bytes = data.subspan(static_cast<size_t>(tensor.offset), static_cast<size_t>(size));
  return {};
}

// ---- Names and settings of Hugging Face's model. ----

struct Kind {
  std::string_view architecture;  // general.architecture
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

// Makes config.json's settings of a GGUF file's settings.
class Translator {
 public:
  Translator(const Config& settings, std::string architecture, const Family& family, Config& config)
      : settings_(settings),
        architecture_(std::move(architecture)),
        family_(family),
        config_(config) {}

  Status translate(const std::vector<Tensor>& tensors,
                   const std::vector<std::span<const std::byte>>& bytes) {
    const auto has = [&](std::string_view name) {
      return std::any_of(tensors.begin(), tensors.end(),
                         [&](const Tensor& each) { return each.name == name; });
    };
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
    for (const Tensor& tensor : tensors) {
      if (tensor.name == "token_embd.weight" && tensor.shape.rank() == 2)
        config_["vocab_size"] = number_value(static_cast<double>(tensor.shape[0]));
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
    rope(tensors, bytes);
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

  void rope(const std::vector<Tensor>& tensors,
            const std::vector<std::span<const std::byte>>& bytes) {
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
    const bool lists = add_factors(tensors, bytes, "rope_factors_short.weight", "short_factor") &&
                       add_factors(tensors, bytes, "rope_factors_long.weight", "long_factor");
    // Llama 3: the factors that its rule gives, for every length.
    const bool one_list = !lists &&
                          add_factors(tensors, bytes, "rope_freqs.weight", "short_factor") &&
                          add_factors(tensors, bytes, "rope_freqs.weight", "long_factor");
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

  // False if there is no such tensor.
  bool add_factors(const std::vector<Tensor>& tensors,
                   const std::vector<std::span<const std::byte>>& bytes, std::string_view name,
                   const std::string& list) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].name != name) continue;
      if (type_name(tensors[i].type) != "F32") fail(name, "F32", type_name(tensors[i].type));
      Reader reader(bytes[i]);
      for (size_t at = 0; at < bytes[i].size() / sizeof(float); ++at) {
        config_["rope_scaling." + list + "." + std::to_string(at)] =
            number_value(static_cast<double>(reader.number<float>()));
      }
      return true;
    }
    return false;
  }

  const Config& settings_;
  std::string architecture_;
  const Family& family_;
  Config& config_;
  Status status_;
};

Status read(std::span<const std::byte> file, GgufModel& model) {
  Reader reader(file);
  reader.take(4);
  const auto version = reader.number<uint32_t>();
  if (version != 2 && version != 3)
    return format_error("GGUF", "version 2 or 3", std::to_string(version));
  const auto count = reader.number<uint64_t>(), settings_count = reader.number<uint64_t>();
  if (count > kMostTensors || settings_count > kMostSettings) {
    return format_error("GGUF",
                        "at most " + std::to_string(kMostTensors) + " tensors and " +
                            std::to_string(kMostSettings) + " settings",
                        std::to_string(count) + " and " + std::to_string(settings_count));
  }
  Config settings;
  MULTIHEAD_TRY(read_settings(reader, settings_count, settings));
  std::vector<Tensor> tensors;
  if (!reader.truncated) MULTIHEAD_TRY(read_tensors(reader, count, tensors));
  const auto setting = [&](const char* name, double absent) {
    const auto found = settings.find(name);
    return found == settings.end() || found->second.kind != ConfigValue::Kind::kNumber
               ? absent
               : found->second.number;
  };
  const double alignment = setting("general.alignment", 32);
  if (!(alignment >= 1 && alignment <= static_cast<double>(kMostAlignment)) ||
      alignment != std::floor(alignment)) {
    return format_error("general.alignment", "1 to " + std::to_string(kMostAlignment),
                        text_of(alignment));
  }
  reader.take((static_cast<uint64_t>(alignment) - reader.at() % static_cast<uint64_t>(alignment)) %
              static_cast<uint64_t>(alignment));
  if (reader.truncated)
    return format_error("GGUF", "the whole header",
                        "a file of " + std::to_string(file.size()) + " bytes that ends in it");
  if (setting("split.count", 1) > 1) {
    return format_error("split.count", "1: join the files with llama-gguf-split --merge",
                        text_of(setting("split.count", 1)));
  }

  const auto named = settings.find("general.architecture");
  const std::string architecture = named == settings.end() ? "" : named->second.text;
  const auto* const kind =
      std::find_if(std::begin(kKinds), std::end(kKinds),
                   [&](const Kind& each) { return each.architecture == architecture; });
  if (kind == std::end(kKinds)) {
    std::string known;
    for (const Kind& each : kKinds)
      known += (known.empty() ? "one of " : ", ") + std::string(each.architecture);
    return format_error("general.architecture", known,
                        architecture.empty() ? "nothing" : engine::printable(architecture));
  }
  const Family& family = *find_family(kind->model_type);
  GgufModel made;
  const auto data = file.subspan(static_cast<size_t>(reader.at()));
  for (const Tensor& tensor : tensors) {
    MULTIHEAD_TRY(find_bytes(tensor, data, made.bytes.emplace_back()));
    made.tensors.push_back(
        {hugging_face_name(family, tensor.name), type_name(tensor.type), tensor.shape});
  }
  made.config["gguf/neighbour_pairs"] = flag_value(kind->neighbour_pairs);
  made.config["gguf"] = flag_value(true);
  MULTIHEAD_TRY(
      Translator(settings, architecture, family, made.config).translate(tensors, made.bytes));
  model = std::move(made);
  return {};
}

}  // namespace
}  // namespace gguf

bool is_gguf(std::span<const std::byte> file) {
  return file.size() >= 4 && std::memcmp(file.data(), "GGUF", 4) == 0;
}

Status read_gguf(std::span<const std::byte> file, GgufModel& model) {
  return gguf::read(file, model);
}

}  // namespace multihead::models
