// GGUF files: the golden models written as llama.cpp's converter writes them, all types of blocks,
// and broken files.
#include "models/io/gguf.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <numbers>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "cpu/gemm/weight_blocks.h"
#include "models/golden_models.h"
#include "multihead/model_training.h"
#include "multihead/models.h"
#include "multihead/safetensors.h"
#include "multihead/weights.h"
#include "rules/element.h"
#include "support/temporary_folder.h"

namespace multihead::testing::gguf_test {
namespace {

using models::Config;
using models::Model;
using models::StoredTensor;
using Bytes = std::vector<std::byte>;

// ---- A writer. ----

class Gguf {
 public:
  template <class T>
  static void put(Bytes& to, T value) {
    using Bits = std::conditional_t<sizeof(T) == 8, uint64_t,
                                    std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
    const auto bits = std::bit_cast<Bits>(value);
    for (size_t i = 0; i < sizeof(T); ++i) to.push_back(static_cast<std::byte>(bits >> (8 * i)));
  }
  static void put_text(Bytes& to, const std::string& text) {
    put(to, static_cast<uint64_t>(text.size()));
    for (const char letter : text) to.push_back(static_cast<std::byte>(letter));
  }

  void set(const std::string& name, uint32_t value) {
    begin(name, 4);
    put(settings_, value);
  }
  void set(const std::string& name, float value) {
    begin(name, 6);
    put(settings_, value);
  }
  void set(const std::string& name, const std::string& value) {
    begin(name, 8);
    put_text(settings_, value);
  }
  void set_flag(const std::string& name, bool value) {
    begin(name, 7);
    settings_.push_back(static_cast<std::byte>(value));
  }
  void set_flags(const std::string& name, const std::vector<bool>& values) {
    begin(name, 9);
    put(settings_, uint32_t{7});
    put(settings_, static_cast<uint64_t>(values.size()));
    for (const bool value : values) settings_.push_back(static_cast<std::byte>(value));
  }
  // Adds an array of texts, such as the tokens.
  void set_texts(const std::string& name, size_t count) {
    begin(name, 9);
    put(settings_, uint32_t{8});
    put(settings_, static_cast<uint64_t>(count));
    for (size_t i = 0; i < count; ++i) put_text(settings_, "<" + std::to_string(i) + ">");
  }

  void add(const std::string& name, const Dims& shape, uint32_t type, const Bytes& bytes) {
    put_text(tensors_, name);
    put(tensors_, static_cast<uint32_t>(shape.rank()));
    for (int axis = shape.rank(); axis > 0; --axis)
      put(tensors_, static_cast<uint64_t>(shape[axis - 1]));
    put(tensors_, type);
    while (data_.size() % 32 != 0) data_.push_back({});
    put(tensors_, static_cast<uint64_t>(data_.size()));
    data_.insert(data_.end(), bytes.begin(), bytes.end());
    ++tensor_count_;
  }
  void add(const std::string& name, const Dims& shape, std::span<const float> numbers) {
    Bytes bytes;
    for (const float number : numbers) put(bytes, number);
    add(name, shape, 0, bytes);
  }

  Bytes file(uint32_t version = 3) const {
    Bytes all;
    for (const char letter : std::string("GGUF")) all.push_back(static_cast<std::byte>(letter));
    put(all, version);
    put(all, tensor_count_);
    put(all, setting_count_);
    all.insert(all.end(), settings_.begin(), settings_.end());
    all.insert(all.end(), tensors_.begin(), tensors_.end());
    while (all.size() % 32 != 0) all.push_back({});
    header = all.size();
    all.insert(all.end(), data_.begin(), data_.end());
    return all;
  }
  mutable size_t header = 0;

 private:
  void begin(const std::string& name, uint32_t type) {
    put_text(settings_, name);
    put(settings_, type);
    ++setting_count_;
  }
  Bytes settings_, tensors_, data_;
  uint64_t tensor_count_ = 0, setting_count_ = 0;
};

Status open_bytes(const Bytes& bytes, const models::OpenOptions& options, Model& model) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "model.gguf").string();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  return models::open(path, options, model);
}

Model opened(const Gguf& gguf, const models::OpenOptions& options = {}) {
  Model model;
  const Status status = open_bytes(gguf.file(), options, model);
  if (!status.ok()) ADD_FAILURE() << status.message();
  return model;
}

// ---- The golden models. ----

struct Numbers {
  Dims shape;
  std::vector<float> data;
};

struct Golden {
  const char* name;
  std::string architecture;
  std::vector<std::string> unsaid = {};  // settings of config.json that GGUF cannot say
};

std::map<std::string, Numbers> tensors_of(const std::string& name) {
  std::map<std::string, Numbers> all;
  Safetensors file;
  EXPECT_TRUE(Safetensors::read(model_folder(name) + "/model.safetensors", file).ok());
  for (const auto& [tensor, entry] : file.entries()) {
    Numbers numbers{entry.shape, std::vector<float>(static_cast<size_t>(entry.shape.elements()))};
    const DType type = entry.type == SafetensorsEntry::Type::kF32    ? DType::kF32
                       : entry.type == SafetensorsEntry::Type::kBF16 ? DType::kBF16
                                                                     : DType::kF16;
    rules::read_floats(entry.data.data(), type, 0, entry.shape.elements(), numbers.data.data());
    all.emplace(tensor, std::move(numbers));
  }
  return all;
}

// The model with this configuration.
Model loaded(const Config& config, const std::map<std::string, Numbers>& tensors,
             const models::OpenOptions& options = {}) {
  std::vector<StoredTensor> stored;
  std::vector<const Numbers*> numbers;
  for (const auto& [name, each] : tensors) {
    stored.push_back({name, "F32", each.shape});
    numbers.push_back(&each);
  }
  models::ModelLoader loader;
  Model model;
  Status status = models::ModelLoader::create(config, stored, options, loader);
  for (const size_t i : loader.needed()) {
    Bytes bytes;
    for (const float number : numbers[i]->data) Gguf::put(bytes, number);
    if (status.ok()) status = loader.give(i, bytes);
  }
  if (status.ok()) status = loader.finish(model);
  if (!status.ok()) ADD_FAILURE() << status.message();
  return model;
}

// llama.cpp's name of a tensor. Empty if it leaves the tensor out, such as the head of a masked
// language model.
std::string gguf_name(std::string name, bool norms_after, const std::string& architecture = "") {
  for (const char* const before :
       {"model.language_model.", "language_model.", "model.", "transformer.", "gpt_neox.",
        "nomic_bert.", "roberta.", "encoder."}) {
    if (name.starts_with(before)) name = name.substr(std::string_view(before).size());
  }
  std::string block;
  for (const char* const before : {"layers.", "layer.", "h."}) {
    if (!name.starts_with(before)) continue;
    const size_t at = std::string_view(before).size(), end = name.find('.', at);
    block = "blk." + name.substr(at, end + 1 - at);
    name = name.substr(end + 1);
    break;
  }
  const size_t dot = name.rfind('.');
  const std::string suffix = name.substr(dot);
  name = name.substr(0, dot);
  const bool four = norms_after, seed = architecture == "seed_oss";
  const bool final_norm = name == "norm" || name == "final_norm" || name == "ln_f" ||
                          name == "final_layer_norm" || name == "final_layernorm";
  if (block.empty() && final_norm) return "output_norm" + suffix;
  const std::map<std::string, std::string> names = {
      {"embed_tokens", "token_embd"},
      {"embed_in", "token_embd"},
      {"wte", "token_embd"},
      {"word_embeddings", "token_embd"},
      {"embeddings.word_embeddings", "token_embd"},
      {"embeddings.tok_embeddings", "token_embd"},
      {"wpe", "position_embd"},
      {"embeddings.position_embeddings", "position_embd"},
      {"embeddings.token_type_embeddings", "token_types"},
      {"embeddings.LayerNorm", "token_embd_norm"},
      {"embeddings.norm", "token_embd_norm"},
      {"emb_ln", "token_embd_norm"},
      {"word_embeddings_layernorm", "token_embd_norm"},
      {"lm_head", "output"},
      {"embed_out", "output"},
      {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},
      {"attention.self.query", "attn_q"},
      {"attention.self.key", "attn_k"},
      {"attention.self.value", "attn_v"},
      {"self_attn.qkv_proj", "attn_qkv"},
      {"attn.c_attn", "attn_qkv"},
      {"attn.Wqkv", "attn_qkv"},
      {"attention.query_key_value", "attn_qkv"},
      {"self_attention.query_key_value", "attn_qkv"},
      {"self_attn.o_proj", "attn_output"},
      {"self_attn.dense", "attn_output"},
      {"attn.c_proj", "attn_output"},
      {"attn.Wo", "attn_output"},
      {"attn.out_proj", "attn_output"},
      {"attention.dense", "attn_output"},
      {"self_attention.dense", "attn_output"},
      {"attention.output.dense", "attn_output"},
      {"attention.output.LayerNorm", "attn_output_norm"},
      {"norm1", "attn_output_norm"},
      {"output.LayerNorm", "layer_output_norm"},
      {"mlp.layernorm", "layer_output_norm"},
      {"norm2", "layer_output_norm"},
      {"self_attn.q_norm", "attn_q_norm"},
      {"self_attn.k_norm", "attn_k_norm"},
      {"self_attn.query_layernorm", "attn_q_norm"},
      {"self_attn.key_layernorm", "attn_k_norm"},
      {"mlp.gate_up_proj", "ffn_up"},
      {"mlp.gated_layers", "ffn_up"},
      {"mlp.Wi", "ffn_up"},
      {"mlp.gate_proj", "ffn_gate"},
      {"mlp.fc12", "ffn_gate"},
      {"mlp.up_proj", "ffn_up"},
      {"mlp.c_fc", "ffn_up"},
      {"mlp.fc1", "ffn_up"},
      {"mlp.fc11", "ffn_up"},
      {"mlp.dense_h_to_4h", "ffn_up"},
      {"intermediate.dense", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},
      {"mlp.c_proj", "ffn_down"},
      {"mlp.fc2", "ffn_down"},
      {"mlp.wo", "ffn_down"},
      {"mlp.Wo", "ffn_down"},
      {"mlp.dense_4h_to_h", "ffn_down"},
      {"output.dense", "ffn_down"},
      {"input_layernorm", "attn_norm"},
      {"ln_1", "attn_norm"},
      {"attn_norm", "attn_norm"},
      {"ln_2", "ffn_norm"},
      {"mlp_norm", "ffn_norm"},
      {"pre_feedforward_layernorm", "ffn_norm"},
      {"post_feedforward_layernorm", "post_ffw_norm"},
      {"post_mlp_layernorm", "post_ffw_norm"},
      {"post_self_attn_layernorm", "post_attention_norm"},
      {"post_attention_layernorm", four || seed ? "post_attention_norm" : "ffn_norm"}};
  const auto found = names.find(name);
  return found == names.end() ? "" : block + found->second + suffix;
}

double setting(const Config& config, const std::string& name, double absent = 0) {
  const auto found = config.find(name);
  return found == config.end() || found->second.kind != models::ConfigValue::Kind::kNumber
             ? absent
             : found->second.number;
}

// The first of the settings that is a number.
double first_of(const Config& config, const std::vector<std::string>& names, double absent = 0) {
  for (const std::string& name : names) {
    if (const double number = setting(config, name); number != 0) return number;
  }
  return absent;
}

// Changes the rows of a matrix or the elements of a vector: row `row` is row from(row) of
// `numbers`.
std::vector<float> with_rows(const Numbers& numbers, const std::function<size_t(size_t)>& from) {
  std::vector<float> data = numbers.data;
  const auto columns = static_cast<size_t>(numbers.shape.rank() == 1 ? 1 : numbers.shape[1]);
  for (size_t row = 0; row < static_cast<size_t>(numbers.shape[0]); ++row) {
    for (size_t c = 0; c < columns; ++c)
      data[row * columns + c] = numbers.data[from(row) * columns + c];
  }
  return data;
}

void set_windows(const std::string& of, const Config& config, Gguf& gguf) {
  const double window = first_of(config, {"sliding_window", "local_attention"});
  if (window == 0) return;
  gguf.set(of + "attention.sliding_window", static_cast<uint32_t>(window));
  const std::string pattern = of + "attention.sliding_window_pattern";
  if (of == "olmo2." || of == "exaone4.") {
    std::vector<bool> slides;
    for (size_t i = 0; config.contains("layer_types." + std::to_string(i)); ++i)
      slides.push_back(config.at("layer_types." + std::to_string(i)).text == "sliding_attention");
    gguf.set_flags(pattern, slides);
  }
  if (of == "modern-bert.")
    gguf.set(pattern, static_cast<uint32_t>(setting(config, "global_attn_every_n_layers")));
}

void set_ropes(const std::string& of, const Config& config, double width, Gguf& gguf) {
  const std::vector<std::string> bases = {"rope_parameters.rope_theta", "rope_theta",
                                          "rope_parameters.full_attention.rope_theta"};
  double theta = first_of(config, bases);
  if (theta == 0) return;
  // Hunyuan's converter makes another base of alpha.
  if (const double alpha = setting(config, "rope_parameters.alpha"); alpha > 0)
    theta *= std::pow(alpha, width / (width - 2));
  gguf.set(of + "rope.freq_base", static_cast<float>(theta));
  gguf.set(
      of + "rope.dimension_count",
      static_cast<uint32_t>(width * setting(config, "rope_parameters.partial_rotary_factor", 1)));
  const double local = setting(config, "rope_parameters.sliding_attention.rope_theta");
  if (local > 0) gguf.set(of + "rope.freq_base_swa", static_cast<float>(local));
  if (setting(config, "rope_scaling.factor") > 0) {
    gguf.set(of + "rope.scaling.type", "linear");
    gguf.set(of + "rope.scaling.factor",
             static_cast<float>(setting(config, "rope_scaling.factor")));
  }
  if (config.contains("rope_parameters.rope_type") &&
      config.at("rope_parameters.rope_type").text == "yarn") {
    gguf.set(of + "rope.scaling.type", "yarn");
    gguf.set(of + "rope.scaling.factor",
             static_cast<float>(setting(config, "rope_parameters.factor")));
    gguf.set(
        of + "rope.scaling.original_context_length",
        static_cast<uint32_t>(setting(config, "rope_parameters.original_max_position_embeddings")));
  }
}

// Writes a model as the converter of llama.cpp writes it.
Gguf converted(const Golden& golden, const Config& config,
               const std::map<std::string, Numbers>& tensors) {
  Gguf gguf;
  const std::string of = golden.architecture + ".";
  const auto count = [&](const std::string& name, const std::vector<std::string>& from,
                         double absent = 0) {
    const double number = first_of(config, from, absent);
    if (number != 0) gguf.set(of + name, static_cast<uint32_t>(number));
    return number;
  };
  gguf.set("general.architecture", golden.architecture);
  const double wide = count("embedding_length", {"hidden_size", "n_embd"});
  const double heads = count("attention.head_count", {"num_attention_heads", "n_head"});
  count("context_length", {"max_position_embeddings", "n_positions"}, wide);
  count("block_count", {"num_hidden_layers", "n_layer"});
  // GPT-2's setting intermediate_size says nothing.
  count("feed_forward_length",
        {"n_inner", golden.architecture == "gpt2" ? "-" : "intermediate_size"}, 4 * wide);
  count("attention.head_count_kv", {"num_key_value_heads"});
  const auto width = static_cast<uint32_t>(setting(config, "head_dim", wide / heads));
  if (config.contains("head_dim")) {
    gguf.set(of + "attention.key_length", width);
    gguf.set(of + "attention.value_length", width);
  }
  const double eps =
      first_of(config, {"layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"});
  gguf.set(of + (eps > 0 ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon"),
           static_cast<float>(eps > 0 ? eps : setting(config, "rms_norm_eps")));
  set_ropes(of, config, width, gguf);
  set_windows(of, config, gguf);
  const std::pair<const char*, const char*> factors[] = {
      {"attn_logit_softcapping", "attn_logit_softcapping"},
      {"final_logit_softcapping", "final_logit_softcapping"},
      {"clip_qkv", "attention.clamp_kqv"},
      {"attention_multiplier", "attention.scale"},
      {"embedding_multiplier", "embedding_scale"},
      {"residual_multiplier", "residual_scale"},
      {"logits_scaling", "logit_scale"},
      {"logit_scale", "logit_scale"}};
  for (const auto& [from, to] : factors) {
    if (setting(config, from) > 0) gguf.set(of + to, static_cast<float>(setting(config, from)));
  }
  if (config.contains("use_parallel_residual"))
    gguf.set_flag(of + "use_parallel_residual", config.at("use_parallel_residual").number != 0);
  if (golden.architecture.find("bert") != std::string::npos) {
    gguf.set_flag(of + "attention.causal", false);
    gguf.set(of + "pooling_type", 2U);
  }
  gguf.set_texts("tokenizer.ggml.tokens", 3);
  if (setting(config, "eos_token_id") > 0)
    gguf.set("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(setting(config, "eos_token_id")));
  const auto is_one_of = [&](const std::vector<std::string>& architectures) {
    return std::find(architectures.begin(), architectures.end(), golden.architecture) !=
           architectures.end();
  };
  const bool gemma = golden.architecture.starts_with("gemma");
  const bool paired = is_one_of({"llama", "mistral3", "smollm3", "granite", "olmo", "arcee"});
  const bool four = tensors.contains("model.layers.0.post_feedforward_layernorm.weight") ||
                    tensors.contains("layers.0.post_feedforward_layernorm.weight");
  const auto head_rows = static_cast<size_t>(width);
  for (const auto& [name, numbers] : tensors) {
    const std::string to = gguf_name(name, four, golden.architecture);
    if (to.empty() || (golden.architecture == "eurobert" && to.starts_with("output."))) continue;
    Dims shape = numbers.shape;
    std::vector<float> data = numbers.data;
    if (gemma && name.find("norm.weight") != std::string::npos) {
      for (float& number : data) number += 1.0F;
    }
    if (paired &&
        (name.find("q_proj") != std::string::npos || name.find("k_proj") != std::string::npos)) {
      data = with_rows(numbers, [&](size_t row) {
        const size_t head = row / head_rows, i = row % head_rows;
        return head * head_rows + i / 2 + i % 2 * (head_rows / 2);
      });
    }
    if (is_one_of({"gptneox", "bloom"}) && name.find("query_key_value") != std::string::npos) {
      data = with_rows(numbers, [&](size_t row) {
        const auto part = static_cast<size_t>(wide);
        const size_t kind = row / part, head = row % part / head_rows;
        return head * 3 * head_rows + kind * head_rows + row % head_rows;
      });
    }
    if (golden.architecture == "gpt2" && shape.rank() == 2 && to.starts_with("blk.")) {
      shape = {numbers.shape[1], numbers.shape[0]};
      for (size_t i = 0; i < data.size(); ++i) {
        const auto rows = static_cast<size_t>(shape[1]), columns = static_cast<size_t>(shape[0]);
        data[i] = numbers.data[i % rows * columns + i / rows];
      }
    }
    gguf.add(to, shape, data);
  }
  if (config.contains("rope_parameters.low_freq_factor")) {
    const double factor = setting(config, "rope_parameters.factor"),
                 low = setting(config, "rope_parameters.low_freq_factor");
    const double high = setting(config, "rope_parameters.high_freq_factor"),
                 old = setting(config, "rope_parameters.original_max_position_embeddings");
    std::vector<float> scaled;
    for (uint32_t i = 0; i < width; i += 2) {
      const double wavelength =
          2 * std::numbers::pi *
          std::pow(setting(config, "rope_parameters.rope_theta"), i / static_cast<double>(width));
      const double smooth = (old / wavelength - low) / (high - low);
      scaled.push_back(static_cast<float>(wavelength < old / high ? 1
                                          : wavelength > old / low
                                              ? factor
                                              : 1 / ((1 - smooth) / factor + smooth)));
    }
    gguf.add("rope_freqs.weight", {static_cast<int64_t>(scaled.size())}, scaled);
  }
  return gguf;
}

class GoldenGguf : public ::testing::TestWithParam<Golden> {};

// The settings of a folder without those that GGUF cannot say.
Config config_of(const Golden& golden) {
  Config config;
  EXPECT_TRUE(models::read_config(model_folder(golden.name) + "/config.json", config).ok());
  for (const std::string& unsaid : golden.unsaid) {
    std::erase_if(config, [&](const auto& member) { return member.first.starts_with(unsaid); });
  }
  const auto head = setting(config, "head_dim", 8);
  // Another pattern than the family's.
  if (config.contains("layer_types.3")) config["layer_types.1"].text = "full_attention";
  if (golden.architecture == "gemma2" || golden.architecture == "gemma3")
    config["query_pre_attn_scalar"].number = head;
  if (golden.architecture == "gemma3") {
    config["rope_theta"] = {models::ConfigValue::Kind::kNumber, 50000, {}};
    config["rope_scaling.factor"] = {models::ConfigValue::Kind::kNumber, 4, {}};
    config["rope_scaling.rope_type"] = {models::ConfigValue::Kind::kText, 0, "linear"};
  }
  return config;
}

// The last hidden states, and behind them the logits of a language model.
std::vector<float> outputs_of(const Model& model, const std::vector<int32_t>& ids,
                              Context& context) {
  const auto tokens = static_cast<int64_t>(ids.size()), width = model.info().embed_dim;
  std::vector<float> all(static_cast<size_t>(tokens * width));
  const Status status = model.forward(
      {.ids = ids}, {.last_hidden_state = Tensor(all.data(), {1, tokens, width})}, context);
  if (!status.ok()) ADD_FAILURE() << status.message();
  if (model.info().output != models::Output::kLanguageModel) return all;
  const auto logits = logits_of(model, ids, context);
  all.insert(all.end(), logits.begin(), logits.end());
  return all;
}

TEST_P(GoldenGguf, GivesTheNumbersOfTheFolder) {
  const Golden& golden = GetParam();
  const Config config = config_of(golden);
  const auto tensors = tensors_of(golden.name);
  const bool embeds = golden.architecture.find("bert") != std::string::npos;
  Config of_text = config;
  for (const auto& [name, value] : config) {
    if (name.starts_with("text_config.")) of_text[name.substr(12)] = value;
  }
  const Model folder = loaded(config, tensors), file = opened(converted(golden, of_text, tensors));
  const bool is_mistral = golden.architecture == "mistral3";
  const std::string parts = golden.architecture.ends_with("vl") ? "_text" : "";
  EXPECT_EQ(file.info().model_type, is_mistral ? "llama" : folder.info().model_type + parts);
  EXPECT_EQ(file.info().end_ids, folder.info().end_ids);
  EXPECT_EQ(file.info().max_tokens, folder.info().max_tokens);
  EXPECT_EQ(file.info().causal, folder.info().causal);
  if (embeds) EXPECT_EQ(file.info().pooling, models::Pooling::kFirstToken);
  if (!embeds) EXPECT_EQ(file.info().parameters, folder.info().parameters);
  Context context(1);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 40; ++i)
    ids.push_back((7 * i + 3) % static_cast<int32_t>(folder.info().vocab_size));
  auto want = outputs_of(folder, ids, context), got = outputs_of(file, ids, context);
  want.resize(std::min(want.size(), got.size()));
  if (!embeds) ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-5) << i;
}

INSTANTIATE_TEST_SUITE_P(
    Architectures, GoldenGguf,
    ::testing::Values(
        Golden{"llama3", "llama"}, Golden{"mistral3", "mistral3"},
        Golden{"qwen2", "qwen2", {"layer_types", "use_sliding_window", "sliding_window"}},
        Golden{"qwen2_vl", "qwen2vl"}, Golden{"qwen3_vl", "qwen3vl"},
        Golden{"smollm3",
               "smollm3",
               {"layer_types", "use_sliding_window", "sliding_window", "no_rope_layer"}},
        Golden{"olmo", "olmo"}, Golden{"olmo2", "olmo2"}, Golden{"olmo3", "olmo2"},
        Golden{"phi", "phi2"}, Golden{"phi3", "phi3", {"original_max_position_embeddings"}},
        Golden{"starcoder2", "starcoder2"}, Golden{"gpt_bigcode", "starcoder"},
        Golden{"gemma", "gemma"}, Golden{"gemma2", "gemma2", {"layer_types"}},
        Golden{"gemma3", "gemma3", {"layer_types", "rope_parameters", "_sliding_window_pattern"}},
        Golden{"embeddinggemma", "gemma-embedding", {"layer_types", "_sliding_window_pattern"}},
        Golden{"granite", "granite"}, Golden{"cohere", "command-r"},
        Golden{"cohere2", "cohere2", {"layer_types"}}, Golden{"glm", "chatglm"},
        Golden{"glm4", "glm4"}, Golden{"ernie4_5", "ernie4_5"}, Golden{"arcee", "arcee"},
        Golden{"exaone4", "exaone4"}, Golden{"seed_oss", "seed_oss"},
        Golden{"hunyuan", "hunyuan-dense"}, Golden{"stablelm", "stablelm"},
        Golden{"stablelm_12b", "stablelm"},
        Golden{"gpt2", "gpt2", {"scale_attn_by_inverse_layer_idx"}}, Golden{"gpt_neox", "gptneox"},
        Golden{"bloom", "bloom"}, Golden{"bert", "bert"}, Golden{"jina_v2", "jina-bert-v2"},
        Golden{"nomic_bert", "nomic-bert"}, Golden{"modernbert", "modern-bert", {"layer_types"}},
        Golden{"eurobert", "eurobert"}),
    [](const auto& given) {
      std::string name = given.param.name;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

// A file's settings and numbers.
struct Parts {
  Config settings;
  std::map<std::string, Numbers> tensors;
};

Parts parts_of(const Golden& golden) {
  const auto tensors = tensors_of(golden.name);
  const Bytes bytes = converted(golden, config_of(golden), tensors).file();
  models::GgufFile file;
  EXPECT_TRUE(models::read_gguf(bytes, file).ok());
  Parts parts{file.settings, {}};
  for (size_t i = 0; i < file.tensors.size(); ++i) {
    Numbers numbers{file.tensors[i].shape, std::vector<float>(file.bytes[i].size() / 4)};
    std::memcpy(numbers.data.data(), file.bytes[i].data(), file.bytes[i].size());
    parts.tensors.emplace(file.tensors[i].name, std::move(numbers));
  }
  return parts;
}

// Puts the rows of tensors below one another.
void join(Parts& parts, const std::vector<std::string>& names, const std::string& to) {
  Numbers all;
  for (const std::string& name : names) {
    const auto found = parts.tensors.find(name);
    if (found == parts.tensors.end()) return;
    Dims shape = found->second.shape;
    if (!all.data.empty()) shape[0] += all.shape[0];
    all.shape = shape;
    all.data.insert(all.data.end(), found->second.data.begin(), found->second.data.end());
    parts.tensors.erase(found);
  }
  parts.tensors.emplace(to, std::move(all));
}

void expect_same(const Model& got, const Model& want) {
  Context context(1);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 12; ++i) ids.push_back(7 * i + 3);
  const auto wanted = outputs_of(want, ids, context), gotten = outputs_of(got, ids, context);
  for (size_t i = 0; i < std::min(wanted.size(), gotten.size()); ++i)
    ASSERT_NEAR(gotten[i], wanted[i], 2e-5) << i;
}

TEST(GgufTest, ReadsQAndKAndVAsOneMatrix) {
  for (const Golden& golden : {Golden{"llama3", "llama"}, Golden{"seed_oss", "seed_oss"}}) {
    Parts parts = parts_of(golden);
    const Model want = loaded(parts.settings, parts.tensors);
    for (const std::string block : {"blk.0.", "blk.1."}) {
      for (const std::string kind : {".weight", ".bias"}) {
        join(parts, {block + "attn_q" + kind, block + "attn_k" + kind, block + "attn_v" + kind},
             block + "attn_qkv" + kind);
      }
    }
    EXPECT_TRUE(parts.tensors.contains("blk.1.attn_qkv.weight"));
    expect_same(loaded(parts.settings, parts.tensors), want);
  }
}

// Ollama has both in one file, and old files the angles of rotations.
TEST(GgufTest, LeavesOutWhatReadsImages) {
  Parts parts = parts_of({"gemma3", "gemma3", {"layer_types", "rope_parameters"}});
  const Model want = loaded(parts.settings, parts.tensors);
  for (const char* const name :
       {"v.blk.0.attn_q.weight", "mm.0.bias", "cls.weight", "blk.0.attn_rot_embd.weight"})
    parts.tensors[name] = {{4}, std::vector<float>(4)};
  expect_same(loaded(parts.settings, parts.tensors), want);
}

// The first files of Jina v2 have two matrices where later ones have one.
TEST(GgufTest, ReadsTheGateApart) {
  Parts parts = parts_of({"jina_v2", "jina-bert-v2"});
  const Model want = loaded(parts.settings, parts.tensors);
  for (const std::string block : {"blk.0.", "blk.1."}) {
    Numbers both = parts.tensors[block + "ffn_up.weight"];
    const Dims shape = {both.shape[0] / 2, both.shape[1]};
    const auto half = both.data.begin() + shape.elements();
    parts.tensors[block + "ffn_gate.weight"] = {shape, {both.data.begin(), half}};
    parts.tensors[block + "ffn_up.weight"] = {shape, {half, both.data.end()}};
  }
  expect_same(loaded(parts.settings, parts.tensors), want);
}

// RoBERTa is BERT without the rows of positions that it does not use. llama-quantize drops an axis
// of 1.
TEST(GgufTest, ReadsRobertaAsBert) {
  const Golden golden{"roberta", "bert"};
  Parts parts = parts_of(golden);
  Numbers& positions = parts.tensors["position_embd.weight"];
  const int64_t width = positions.shape[1];
  positions.data.erase(positions.data.begin(), positions.data.begin() + 2 * width);
  positions.shape[0] -= 2;
  Numbers& types = parts.tensors["token_types.weight"];
  ASSERT_EQ(types.shape, Dims({1, width}));
  types.shape = {width};
  const Model file = loaded(parts.settings, parts.tensors);
  EXPECT_EQ(file.info().max_tokens, 46);
  EXPECT_EQ(file.info().max_seq_length, 46);
  expect_same(file, loaded(config_of(golden), tensors_of(golden.name)));
}

TEST(GgufTest, EmbedsWithDenseModules) {
  const Golden golden{"embeddinggemma", "gemma-embedding", {"layer_types"}};
  Parts parts = parts_of(golden);
  Config config = config_of(golden);
  auto tensors = tensors_of(golden.name);
  const auto text = [](const char* value) {
    return models::ConfigValue{models::ConfigValue::Kind::kText, 0, value};
  };
  const std::pair<const char*, const char*> modules[] = {
      {"Transformer", ""}, {"Pooling", "1_Pooling"}, {"Dense", "2_Dense"}, {"Normalize", "4_N"}};
  for (size_t i = 0; i < std::size(modules); ++i) {
    config["modules.json/" + std::to_string(i) + ".type"] = text(modules[i].first);
    config["modules.json/" + std::to_string(i) + ".path"] = text(modules[i].second);
  }
  config["1_Pooling/config.json/pooling_mode"] = text("mean");
  config["2_Dense/config.json/in_features"].number = 16;
  config["2_Dense/config.json/out_features"].number = 24;
  for (const char* const name : {"in_features", "out_features"})
    config["2_Dense/config.json/" + std::string(name)].kind = models::ConfigValue::Kind::kNumber;
  config["2_Dense/config.json/bias"].kind = models::ConfigValue::Kind::kBool;
  config["2_Dense/config.json/activation_function"] = text("Identity");
  Numbers dense{{24, 16}, {}};
  for (int i = 0; i < 24 * 16; ++i) dense.data.push_back(static_cast<float>(i * 37 % 100) * 0.01F);
  tensors["2_Dense/linear.weight"] = parts.tensors["dense_2.weight"] = dense;
  const Model file = loaded(parts.settings, parts.tensors), folder = loaded(config, tensors);
  EXPECT_EQ(file.info().vector_dim, 24);
  EXPECT_EQ(file.info().output, models::Output::kNone);
  EXPECT_FALSE(file.info().causal);
  const std::vector<int32_t> ids = {5, 9, 33, 2, 60};
  Context context(1);
  std::vector<float> got(24), want(24);
  ASSERT_TRUE(file.embed({.ids = ids}, {}, Tensor(got.data(), {1, 24}), context).ok());
  ASSERT_TRUE(folder.embed({.ids = ids}, {}, Tensor(want.data(), {1, 24}), context).ok());
  for (size_t i = 0; i < 24; ++i) EXPECT_NEAR(got[i], want[i], 1e-6) << i;
}

// ---- Blocks. ----

constexpr int64_t kWidth = 256;

struct Form {
  const char* name;
  uint32_t type;
  size_t numbers, bytes;
  std::vector<size_t> halves;  // places of scales in f16
};
const Form kForms[] = {{"Q4_0", 2, 32, 18, {0}},       {"Q4_1", 3, 32, 20, {0, 2}},
                       {"Q5_0", 6, 32, 22, {0}},       {"Q5_1", 7, 32, 24, {0, 2}},
                       {"Q8_0", 8, 32, 34, {0}},       {"Q4_K", 12, 256, 144, {0, 2}},
                       {"Q5_K", 13, 256, 176, {0, 2}}, {"Q6_K", 14, 256, 210, {208}}};

// The numbers of one block, written from the pictures of its bits in ggml-common.h.
std::vector<float> numbers_of(const Form& form, const std::byte* block) {
  const std::string name = form.name;
  const auto at = [&](size_t i) { return static_cast<int>(block[i]); };
  const auto half = [&](size_t i) {
    return rules::to_float(Float16{static_cast<uint16_t>(at(i) + 256 * at(i + 1))});
  };
  std::vector<float> numbers(form.numbers);
  for (size_t i = 0; i < form.numbers; ++i) {
    if (name == "Q8_0") {
      numbers[i] = half(0) * static_cast<float>(static_cast<int8_t>(at(2 + i)));
    } else if (form.numbers == 32) {
      const bool least = name.ends_with("1"), five = name.starts_with("Q5");
      const size_t head = least ? 4 : 2, low = head + (five ? 4 : 0);
      int digit = i < 16 ? at(low + i) % 16 : at(low + i - 16) / 16;
      if (five) digit += 16 * (at(head + i / 8) >> (i % 8) & 1);
      const float product = half(0) * static_cast<float>(least ? digit : digit - (five ? 16 : 8));
      numbers[i] = least ? product + half(2) : product;
    } else if (name == "Q6_K") {
      const size_t part = i / 128 * 64 + i % 64, shift = i % 128 / 32 * 2;
      const int low = i % 128 < 64 ? at(part) % 16 : at(part) / 16;
      const int digit = low + 16 * (at(128 + i / 128 * 32 + i % 32) >> shift & 3) - 32;
      const float scale = half(208) * static_cast<float>(static_cast<int8_t>(at(192 + i / 16)));
      numbers[i] = scale * static_cast<float>(digit);
    } else {
      const size_t j = i / 32;
      const int factor = j < 4 ? at(4 + j) % 64 : at(8 + j) % 16 + at(j) / 64 * 16;
      const int offset = j < 4 ? at(8 + j) % 64 : at(8 + j) / 16 + at(4 + j) / 64 * 16;
      const bool five = name == "Q5_K";
      const int pair = at((five ? 48 : 16) + i / 64 * 32 + i % 32);
      int digit = i / 32 % 2 == 0 ? pair % 16 : pair / 16;
      if (five) digit += 16 * (at(16 + i % 32) >> j & 1);
      const float product = half(0) * static_cast<float>(factor) * static_cast<float>(digit);
      const float least = half(2) * static_cast<float>(offset);
      numbers[i] = product - least;
    }
  }
  return numbers;
}

// A Llama of one layer. `matrix` gives the matrices, rows of `kWidth`.
struct Small {
  Gguf gguf;
  std::map<std::string, Numbers> tensors;
  Config config;
};
template <class Matrix>
Small small_model(const Matrix& matrix, uint32_t layers = 1) {
  Small made;
  const auto set = [&](const char* name, double value) {
    made.config[name] = {models::ConfigValue::Kind::kNumber, value, {}};
  };
  made.config["model_type"] = {models::ConfigValue::Kind::kText, 0, "qwen3"};
  set("hidden_size", kWidth);
  set("intermediate_size", kWidth);
  set("num_hidden_layers", layers);
  set("num_attention_heads", 4);
  set("num_key_value_heads", 4);
  set("head_dim", 64);
  set("vocab_size", 64);
  set("rms_norm_eps", 1e-6F);
  set("max_position_embeddings", 64);
  made.config["tie_word_embeddings"] = {models::ConfigValue::Kind::kBool, 1, {}};
  Gguf& gguf = made.gguf;
  gguf.set("general.architecture", std::string("qwen3"));
  for (const auto& [name, value] : std::map<std::string, uint32_t>{{"context_length", 64},
                                                                   {"embedding_length", kWidth},
                                                                   {"block_count", layers},
                                                                   {"feed_forward_length", kWidth},
                                                                   {"attention.head_count", 4},
                                                                   {"attention.head_count_kv", 4},
                                                                   {"attention.key_length", 64}}) {
    gguf.set("qwen3." + name, value);
  }
  gguf.set("qwen3.attention.layer_norm_rms_epsilon", 1e-6F);
  const auto norm = [&](const std::string& full, int64_t size) {
    Numbers ones{{size}, std::vector<float>(static_cast<size_t>(size), 1.0F)};
    gguf.add(gguf_name(full, false), ones.shape, ones.data);
    made.tensors[full] = std::move(ones);
  };
  const auto add = [&](const std::string& full, const Dims& shape) {
    made.tensors[full] = {shape, matrix(gguf, gguf_name(full, false), shape)};
  };
  norm("model.norm.weight", kWidth);
  add("model.embed_tokens.weight", {64, kWidth});
  for (uint32_t layer = 0; layer < layers; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    norm(at + "input_layernorm.weight", kWidth);
    norm(at + "post_attention_layernorm.weight", kWidth);
    norm(at + "self_attn.q_norm.weight", 64);
    norm(at + "self_attn.k_norm.weight", 64);
    for (const char* const name :
         {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
          "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      add(at + name + ".weight", {kWidth, kWidth});
    }
  }
  return made;
}

std::vector<float> logits(const Model& model) {
  Context context(1);
  return logits_of(model, {5, 9, 33, 2, 60}, context);
}

Bytes saved(const Model& model, SafetensorsType type) {
  Bytes bytes;
  EXPECT_TRUE(models::save_weights(model, type, bytes).ok());
  return bytes;
}

// Saved as in memory, rows of blocks are tensors of bytes that a folder may have.
void expect_rows_open_again(const Model& model, const Small& made, bool same_numbers) {
  const Bytes bytes = saved(model, SafetensorsType::kAsGiven);
  Safetensors file;
  ASSERT_TRUE(Safetensors::parse(bytes, file).ok());
  std::vector<StoredTensor> stored;
  std::vector<const SafetensorsEntry*> entries;
  for (const auto& [name, tensor] : made.tensors) {
    entries.push_back(file.find(name));
    ASSERT_NE(entries.back(), nullptr) << name;
    stored.push_back({name, tensor.shape.rank() == 2 ? "I8" : "F32", entries.back()->shape});
  }
  for (const auto weights : {std::optional<WeightType>(), std::optional(WeightType::kF32)}) {
    models::ModelLoader loader;
    Model again;
    ASSERT_TRUE(
        models::ModelLoader::create(made.config, stored, {.weights = weights}, loader).ok());
    for (const size_t i : loader.needed()) ASSERT_TRUE(loader.give(i, entries[i]->data).ok());
    ASSERT_TRUE(loader.finish(again).ok());
    if (weights && same_numbers)
      EXPECT_EQ(logits(again), logits(opened(made.gguf, {.weights = weights})));
    if (!weights) EXPECT_EQ(logits(again), logits(model));
  }
}

class BlockTest : public ::testing::TestWithParam<Form> {};

TEST_P(BlockTest, HasTheBitsOfGgml) {
  const Form& form = GetParam();
  std::mt19937 random(1);
  const Small made = small_model([&](Gguf& gguf, const std::string& name, const Dims& shape) {
    Bytes bytes;
    std::vector<float> numbers;
    for (size_t block = 0; block < static_cast<size_t>(shape.elements()) / form.numbers; ++block) {
      Bytes next;
      for (size_t i = 0; i < form.bytes; ++i) next.push_back(static_cast<std::byte>(random()));
      for (const size_t at : form.halves) {
        const Float16 scale = rules::to_float16(static_cast<float>(random() % 100) *
                                                (form.numbers == 256 ? 2e-6F : 1e-4F));
        next[at] = static_cast<std::byte>(scale.bits);
        next[at + 1] = static_cast<std::byte>(scale.bits >> 8);
      }
      const auto decoded = numbers_of(form, next.data());
      numbers.insert(numbers.end(), decoded.begin(), decoded.end());
      bytes.insert(bytes.end(), next.begin(), next.end());
    }
    gguf.add(name, shape, form.type, bytes);
    return numbers;
  });
  const auto want = logits(loaded(made.config, made.tensors, {.weights = WeightType::kF32}));
  EXPECT_EQ(logits(opened(made.gguf, {.weights = WeightType::kF32})), want);
  // By default the weights in memory have the numbers of the file.
  const Model usual = opened(made.gguf);
  const std::map<std::string, WeightType> kept = {
      {"Q8_0", WeightType::kInt8}, {"Q4_0", WeightType::kInt4}, {"Q4_1", WeightType::kQ4_1},
      {"Q5_0", WeightType::kQ5_0}, {"Q5_1", WeightType::kQ5_1}, {"Q4_K", WeightType::kQ4_K},
      {"Q5_K", WeightType::kQ5_K}, {"Q6_K", WeightType::kQ6_K}};
  const bool is_same = cpu::multiplies_few_rows(kept.at(form.name));  // else int8
  const WeightType type = is_same ? kept.at(form.name) : WeightType::kInt8;
  int64_t bytes =
      loaded(made.config, made.tensors, {.weights = WeightType::kInt8}).info().weight_bytes;
  for (const auto& [name, tensor] : made.tensors) {
    if (tensor.shape.rank() < 2) continue;
    bytes += weight_bytes(type, tensor.shape[0], kWidth) -
             weight_bytes(WeightType::kInt8, tensor.shape[0], kWidth);
  }
  EXPECT_EQ(usual.info().weight_bytes, bytes);
  if (is_same) {
    EXPECT_EQ(saved(usual, SafetensorsType::kF32),
              saved(opened(made.gguf, {.weights = WeightType::kF32}), SafetensorsType::kF32));
  }
  expect_rows_open_again(usual, made, is_same);
  float most = 0, error = 0;
  const auto got = logits(usual);
  for (size_t i = 0; i < want.size(); ++i) {
    most = std::max(most, std::abs(want[i]));
    error = std::max(error, std::abs(got[i] - want[i]));
  }
  EXPECT_GT(most, 0.05F);
  EXPECT_LT(error, 0.05F * most);
}

INSTANTIATE_TEST_SUITE_P(Types, BlockTest, ::testing::ValuesIn(kForms),
                         [](const auto& given) { return std::string(given.param.name); });

// Q8_0 or Q4_0, as quantize() rounds.
Bytes blocks_of(const std::vector<float>& numbers, WeightType type, const Dims& shape) {
  Bytes rows(static_cast<size_t>(weight_bytes(type, shape[0], shape[1])));
  Context context(1);
  EXPECT_TRUE(quantize(ConstAnyTensor(numbers.data(), shape), type, rows.data(), context).ok());
  Bytes blocks;
  const size_t of_numbers = type == WeightType::kInt8 ? 32 : 16, per_row = kWidth / 32;
  for (size_t row = 0; row < static_cast<size_t>(shape[0]); ++row) {
    const std::byte* const from =
        rows.data() + row * static_cast<size_t>(weight_row_bytes(type, kWidth));
    for (size_t block = 0; block < per_row; ++block) {
      uint16_t scale = 0;
      std::memcpy(&scale, from + 2 * block, 2);
      Gguf::put(blocks, scale);
      const std::byte* const first = from + 2 * per_row + block * of_numbers;
      blocks.insert(blocks.end(), first, first + of_numbers);
    }
  }
  return blocks;
}

TEST(GgufTest, Q8AndQ4AreUsedAsTheyAre) {
  for (const WeightType type : {WeightType::kInt8, WeightType::kInt4}) {
    std::mt19937 random(2);
    const Small made = small_model([&](Gguf& gguf, const std::string& name, const Dims& shape) {
      std::vector<float> numbers(static_cast<size_t>(shape.elements()));
      for (float& number : numbers) number = static_cast<float>(random() % 1000) * 1e-4F - 0.05F;
      gguf.add(name, shape, type == WeightType::kInt8 ? 8 : 2, blocks_of(numbers, type, shape));
      return numbers;
    });
    EXPECT_EQ(logits(opened(made.gguf)),
              logits(loaded(made.config, made.tensors, {.weights = type})));
  }
}

// Layers have one graph, although the values' matrix has another type in some of them.
TEST(GgufTest, LayersOfDifferentTypes) {
  const auto model_of = [](uint32_t type_of_first, models::OpenOptions options) {
    std::mt19937 random(4);
    const Small made = small_model(
        [&](Gguf& gguf, const std::string& name, const Dims& shape) {
          const bool is_first = name == "blk.0.attn_v.weight";
          std::vector<float> numbers(static_cast<size_t>(shape.elements()));
          for (float& number : numbers)
            number = static_cast<float>(random() % 1000) * 1e-4F - 0.05F;
          const WeightType type =
              is_first && type_of_first == 8 ? WeightType::kInt8 : WeightType::kInt4;
          gguf.add(name, shape, type == WeightType::kInt8 ? 8 : 2, blocks_of(numbers, type, shape));
          return numbers;
        },
        2);
    return opened(made.gguf, options);
  };
  const auto near = [](const std::vector<float>& a, const std::vector<float>& b) {
    float most = 0, error = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      most = std::max(most, std::abs(b[i]));
      error = std::max(error, std::abs(a[i] - b[i]));
    }
    return error < 0.05F * most;
  };
  for (const uint32_t type : {2U, 8U}) {
    EXPECT_TRUE(
        near(logits(model_of(type, {})), logits(model_of(type, {.weights = WeightType::kF32}))));
  }
}

// ---- What is refused. ----

Small f32_model() {
  std::mt19937 random(3);
  return small_model([&](Gguf& gguf, const std::string& name, const Dims& shape) {
    std::vector<float> numbers(static_cast<size_t>(shape.elements()));
    for (float& number : numbers) number = static_cast<float>(random() % 1000) * 1e-4F - 0.05F;
    gguf.add(name, shape, numbers);
    return numbers;
  });
}

TEST(GgufTest, MemoryHasOnlyTypesThatNumbersCanBecome) {
  const Small made = f32_model();
  for (const auto& options : {models::OpenOptions{.weights = WeightType::kQ4_K},
                              models::OpenOptions{.embedding_weights = WeightType::kQ5_0}}) {
    Model model;
    const Status status = open_bytes(made.gguf.file(), options, model);
    EXPECT_EQ(status.code(), StatusCode::kOption);
    EXPECT_EQ(status.argument(), "weights");
  }
}

TEST(GgufTest, RefusesWhatIsNoWholeFile) {
  const Small made = f32_model();
  const Bytes whole = made.gguf.file();
  for (size_t size = 4; size < whole.size(); size += size < made.gguf.header ? 1 : 40'000) {
    models::GgufFile read;
    const Status status = models::read_gguf(std::span(whole).first(size), read);
    ASSERT_EQ(status.code(), StatusCode::kFormat) << size;
    ASSERT_TRUE(read.settings.empty());
  }
  // Any other bytes give an error or another model, and read nothing beyond the file.
  std::mt19937 random(4);
  for (int i = 0; i < 3000; ++i) {
    Bytes changed(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(made.gguf.header));
    for (int k = 0; k < 1 + i % 3; ++k)
      changed[4 + random() % (changed.size() - 4)] = static_cast<std::byte>(random());
    models::GgufFile read;
    (void)models::read_gguf(changed, read);
  }
}

struct Refused {
  const char* what;
  void (*change)(Gguf&);
  const char* argument;
  const char* words;
};

TEST(GgufTest, NamesWhatItDoesNotRead) {
  const Refused cases[] = {
      {"an architecture",
       [](Gguf& gguf) { gguf.set("general.architecture", std::string("mamba")); },
       "general.architecture", "gemma3"},
      {"a setting twice", [](Gguf& gguf) { gguf.set("qwen3.block_count", 1U); },
       "qwen3.block_count", "twice"},
      {"experts", [](Gguf& gguf) { gguf.set("qwen3.expert_count", 8U); }, "qwen3.expert_count",
       "8"},
      {"a value width", [](Gguf& gguf) { gguf.set("qwen3.attention.value_length", 32U); },
       "qwen3.attention.value_length", "64"},
      {"a scaling", [](Gguf& gguf) { gguf.set("qwen3.rope.scaling.type", std::string("other")); },
       "qwen3.rope.scaling.type", "yarn"},
      {"longrope", [](Gguf& gguf) { gguf.set("qwen3.rope.scaling.type", std::string("longrope")); },
       "qwen3.rope.scaling.type", "rope_factors_long"},
      {"a factor", [](Gguf& gguf) { gguf.set("qwen3.logit_scale", 2.0F); }, "qwen3.logit_scale",
       "none for qwen3"},
      {"another scale of longer texts",
       [](Gguf& gguf) { gguf.set("qwen3.attention.temperature_scale", 0.1F); },
       "qwen3.attention.temperature_scale", "0"},
      {"a classifier", [](Gguf& gguf) { gguf.set("qwen3.pooling_type", 4U); }, "qwen3.pooling_type",
       "0 to 3"},
      {"a base of windows", [](Gguf& gguf) { gguf.set("qwen3.rope.freq_base_swa", 5.0F); },
       "qwen3.rope.freq_base_swa", "5"},
      {"a tensor",
       [](Gguf& gguf) { gguf.add("blk.0.attn_sinks.weight", {4}, std::vector<float>(4)); },
       "weights", "blk.0.attn_sinks.weight"},
      {"parts", [](Gguf& gguf) { gguf.set("split.count", 3U); }, "split.count", "join the files"},
      {"an alignment", [](Gguf& gguf) { gguf.set("general.alignment", 0U); }, "general.alignment",
       "1 to"},
      {"a list", [](Gguf& gguf) { gguf.set_texts("qwen3.rope.freq_base", 2); },
       "qwen3.rope.freq_base", "an array"},
  };
  for (const Refused& refused : cases) {
    Gguf gguf;
    // The name of the architecture is first in the file; another one has to be there alone.
    Small made = f32_model();
    Gguf& changed = std::string(refused.what) == "an architecture" ? gguf : made.gguf;
    refused.change(changed);
    Model model;
    const Status status = open_bytes(changed.file(), {}, model);
    EXPECT_EQ(status.code(), StatusCode::kFormat) << refused.what;
    EXPECT_TRUE(status.argument().ends_with(refused.argument))
        << refused.what << ": " << status.argument();
    EXPECT_NE(status.message().find(refused.words), std::string::npos) << status.message();
  }
  // The product of all three is 0, but the product of the last two does not fit in 64 bits.
  Gguf large;
  large.set("general.architecture", std::string("qwen3"));
  large.add("x", {int64_t{1} << 48, int64_t{1} << 48, 0}, 0, {});
  models::GgufFile read;
  EXPECT_EQ(models::read_gguf(large.file(), read).expected(), "at most 2^48 numbers");
  Model model;
  EXPECT_NE(open_bytes(f32_model().gguf.file(1), {}, model).message().find("version 2 or 3"),
            std::string::npos);
  const Small other = small_model([&](Gguf& gguf, const std::string& name, const Dims& shape) {
    std::vector<float> numbers(static_cast<size_t>(shape.elements()));
    const bool is_one = name == "blk.0.ffn_down.weight";
    gguf.add(name, shape, is_one ? 23 : 0, Bytes(4 * numbers.size()));
    return numbers;
  });
  const Status status = open_bytes(other.gguf.file(), {}, model);
  EXPECT_NE(status.message().find("layers.0.mlp.down_proj.weight"), std::string::npos)
      << status.message();
  EXPECT_NE(status.message().find("IQ4_XS"), std::string::npos) << status.message();
  const TemporaryFolder folder;
  std::ofstream((folder.path() / "other.bin").string()) << "other";
  EXPECT_NE(models::open((folder.path() / "other.bin").string(), {}, model)
                .message()
                .find("another file"),
            std::string::npos);
}

}  // namespace
}  // namespace multihead::testing::gguf_test
