// open(), ModelLoader and config.json: types of weights, pieces, names, and what wrong files get.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/architecture.h"
#include "models/golden_models.h"
#include "multihead/models.h"
#include "multihead/safetensors.h"
#include "multihead/weights.h"
#include "rules/element.h"
#include "support/little_endian.h"
#include "support/temporary_folder.h"

namespace multihead {
namespace {

namespace fs = std::filesystem;
using models::Config;
using models::ConfigValue;
using models::Model;
using models::ModelLoader;
using models::OpenOptions;
using models::StoredTensor;
using testing::golden_ids;
using testing::logits_of;
using testing::model_folder;
using testing::open_golden;

ConfigValue number(double value) { return {ConfigValue::Kind::kNumber, value, {}}; }
ConfigValue text(const char* value) { return {ConfigValue::Kind::kText, 0, value}; }

// The files of a golden model in memory.
struct Files {
  Config config;
  Safetensors weights;
  std::vector<StoredTensor> tensors;
  std::vector<std::vector<std::byte>> bytes;
};

const char* type_name(SafetensorsEntry::Type type) {
  return type == SafetensorsEntry::Type::kF32    ? "F32"
         : type == SafetensorsEntry::Type::kF16  ? "F16"
         : type == SafetensorsEntry::Type::kBF16 ? "BF16"
                                                 : "I64";
}

void read_files(const std::string& name, Files& files) {
  ASSERT_TRUE(models::read_config(model_folder(name) + "/config.json", files.config).ok());
  ASSERT_TRUE(Safetensors::read(model_folder(name) + "/model.safetensors", files.weights).ok());
  for (const auto& [tensor, entry] : files.weights.entries()) {
    files.tensors.push_back({tensor, type_name(entry.type), entry.shape});
    files.bytes.push_back(testing::little_endian(
        entry.data, entry.data.size() / static_cast<size_t>(entry.shape.elements())));
  }
}

// Gives all tensors in pieces of `piece` bytes.
Status load(const Files& files, const OpenOptions& options, size_t piece, Model& model) {
  ModelLoader loader;
  if (Status status = ModelLoader::create(files.config, files.tensors, options, loader);
      !status.ok()) {
    return status;
  }
  for (const size_t tensor : loader.needed()) {
    std::span<const std::byte> rest = files.bytes[tensor];
    while (!rest.empty()) {
      const auto next = rest.first(std::min(rest.size(), piece));
      if (Status status = loader.give(tensor, next); !status.ok()) return status;
      rest = rest.subspan(next.size());
    }
  }
  return loader.finish(model);
}

TEST(ModelLoader, PiecesOfAnyLengthGiveTheSameModel) {
  Context context(1);
  for (const char* name : {"gpt2", "llama3", "gemma2"}) {
    Files files;
    read_files(name, files);
    const std::vector<int32_t> ids = golden_ids(name, "short.input_ids");
    const std::vector<float> mapped = logits_of(open_golden(name), ids, context);
    for (const size_t piece : {size_t{1}, size_t{7}, size_t{100}, size_t{1} << 20}) {
      Model model;
      const Status status = load(files, {}, piece, model);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(logits_of(model, ids, context), mapped) << name << ", " << piece << " bytes";
    }
  }
}

// The errors of weights change logits a little: more for fewer bits.
TEST(ModelLoader, TypesOfWeights) {
  Context context(1);
  for (const char* name : {"gpt2", "llama3", "qwen3", "gpt_neox", "phi3"}) {
    const std::vector<int32_t> ids = golden_ids(name, "short.input_ids");
    const Model exact = open_golden(name, {.weights = WeightType::kF32});
    const std::vector<float> golden = logits_of(exact, ids, context);
    float largest = 0;
    for (const float value : golden) largest = std::max(largest, std::abs(value));
    int64_t bytes = exact.info().weight_bytes + 1;
    const std::pair<WeightType, float> types[] = {{WeightType::kF32, 1e-5F},
                                                  {WeightType::kF16, 0.01F},
                                                  {WeightType::kBF16, 0.1F},
                                                  {WeightType::kInt8, 0.15F},
                                                  {WeightType::kInt4, 1.5F}};
    for (const auto& [type, tolerance] : types) {
      const Model model = open_golden(name, {.weights = type});
      const std::vector<float> logits = logits_of(model, ids, context);
      float worst = 0;
      for (size_t i = 0; i < golden.size(); ++i) {
        worst = std::max(worst, std::abs(logits[i] - golden[i]));
      }
      EXPECT_LE(worst, tolerance * std::max(1.0F, largest)) << name << ", " << name_of(type);
      // Rows of 16 numbers fill half of an int8 block.
      if (type == WeightType::kF16 || type == WeightType::kInt4) {
        EXPECT_LT(model.info().weight_bytes, bytes) << name << ", " << name_of(type);
        bytes = model.info().weight_bytes;
      }
    }
  }
}

TEST(ModelLoader, MappedWeightsAreNotCopied) {
  Files files;
  read_files("llama3", files);
  ModelLoader loader;
  ASSERT_TRUE(ModelLoader::create(files.config, files.tensors, {.keep_mapped = true}, loader).ok());
  if (rules::kOrderOfFiles) {
    // The matrices stay in the files, so that only the norms need memory.
    EXPECT_LT(loader.bytes(true) * 20, loader.bytes(false));
  } else {
    EXPECT_EQ(loader.bytes(true), loader.bytes(false));
  }
  ASSERT_TRUE(
      ModelLoader::create(files.config, files.tensors, {.weights = WeightType::kInt8}, loader)
          .ok());
  EXPECT_EQ(loader.bytes(true), loader.bytes(false));
}

// view() copies the matrices that become one, and bytes() counts the copies.
TEST(ModelLoader, ViewedWeightsAreTheSame) {
  Context context(1);
  for (const char* name : {"gpt2", "llama3", "gemma2"}) {
    Files files;
    read_files(name, files);
    const std::vector<int32_t> ids = golden_ids(name, "short.input_ids");
    const std::vector<float> golden = logits_of(open_golden(name), ids, context);
    int64_t bytes[2];
    for (const bool keep : {false, true}) {
      ModelLoader loader;
      ASSERT_TRUE(
          ModelLoader::create(files.config, files.tensors, {.keep_mapped = keep}, loader).ok());
      for (const size_t tensor : loader.needed()) {
        ASSERT_TRUE(loader.view(tensor, files.bytes[tensor], nullptr).ok());
      }
      bytes[keep] = loader.bytes(true);
      EXPECT_LE(loader.bytes(false) - bytes[keep], loader.viewed_bytes());
      Model model;
      ASSERT_TRUE(loader.finish(model).ok());
      EXPECT_EQ(logits_of(model, ids, context), golden) << name << ", kept: " << keep;
    }
    if (std::string(name) != "gpt2" && rules::kOrderOfFiles) {
      EXPECT_GT(bytes[0], bytes[1]);
    }
  }
}

// Matrices of different types in memory stay apart.
TEST(ModelLoader, QueriesAndKeysOfDifferentTypes) {
  Context context(1);
  Files files;
  read_files("llama3", files);
  const std::vector<int32_t> ids = golden_ids("llama3", "short.input_ids");
  const Model narrow = open_golden("llama3");
  const std::vector<float> golden = logits_of(narrow, ids, context);
  int64_t more = 0;
  for (size_t i = 0; i < files.tensors.size(); ++i) {
    StoredTensor& tensor = files.tensors[i];
    if (tensor.name.find("q_proj") == std::string::npos) continue;
    ASSERT_EQ(tensor.type, "BF16");
    tensor.type = "F32";
    more += static_cast<int64_t>(files.bytes[i].size());
    std::vector<std::byte> wide(2 * files.bytes[i].size());
    for (size_t at = 0; at < files.bytes[i].size(); at += 2) {
      std::copy_n(&files.bytes[i][at], 2, &wide[2 * at + 2]);
    }
    files.bytes[i] = std::move(wide);
  }
  Model model;
  const Status status = load(files, {}, 1000, model);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(model.info().weight_bytes, narrow.info().weight_bytes + more);
  const std::vector<float> logits = logits_of(model, ids, context);
  for (size_t i = 0; i < golden.size(); ++i) ASSERT_NEAR(logits[i], golden[i], 1e-4F) << i;
}

TEST(ModelLoader, CopiedAndMappedWeightsAreTheSame) {
  Context context(1);
  for (const char* name : {"gpt2", "llama3", "qwen3"}) {
    const Model copied = open_golden(name), mapped = open_golden(name, {.keep_mapped = true});
    const std::vector<int32_t> ids = golden_ids(name, "short.input_ids");
    EXPECT_EQ(logits_of(copied, ids, context), logits_of(mapped, ids, context)) << name;
  }
}

TEST(ModelLoader, ProgressReachesAllBytesAndCanAbort) {
  int64_t last = 0, all = 0;
  const auto watch = [&](int64_t done, int64_t total) {
    EXPECT_GT(done, last);
    last = done;
    all = total;
    return true;
  };
  open_golden("bert", {.progress = watch});
  EXPECT_EQ(last, all);
  EXPECT_GT(all, 1000);
  Model model;
  const Status status = models::open(model_folder("bert"),
                                     {.progress = [](int64_t, int64_t) { return false; }}, model);
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_EQ(model.info().num_layers, 0);
}

// Names on the hub: without the prefix, LayerNorm.gamma, and tensors that nobody needs.
TEST(ModelLoader, OtherFormsOfNames) {
  Context context(1);
  const auto changed = [&](const std::string& name,
                           const std::function<std::string(std::string)>& rename) {
    Files files;
    read_files(name, files);
    for (StoredTensor& tensor : files.tensors) tensor.name = rename(tensor.name);
    files.tensors.push_back({"h.0.attn.bias", "U8", {1, 1, 64, 64}});
    files.tensors.push_back({"embeddings.position_ids", "I64", {1, 48}});
    files.bytes.resize(files.tensors.size());
    Model model;
    const Status status = load(files, {}, 4096, model);
    EXPECT_TRUE(status.ok()) << status.message();
    return model;
  };
  const auto without = [](std::string prefix) {
    return [prefix](std::string name) {
      return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
    };
  };
  for (const auto& [name, prefix] : {std::pair{"gpt2", "transformer."}, {"llama3", "model."}}) {
    const std::vector<int32_t> ids = golden_ids(name, "short.input_ids");
    EXPECT_EQ(logits_of(changed(name, without(prefix)), ids, context),
              logits_of(open_golden(name), ids, context))
        << name;
  }
  const auto older = [](std::string name) {
    for (const auto& [from, to] : {std::pair{"LayerNorm.weight", "LayerNorm.gamma"},
                                   std::pair{"LayerNorm.bias", "LayerNorm.beta"}}) {
      const size_t at = name.find(from);
      if (at != std::string::npos) name.replace(at, std::strlen(from), to);
    }
    return "bert." + name;
  };
  const Model model = changed("bert", older);
  EXPECT_TRUE(model.info().has_pooler);
  const std::vector<int32_t> ids = golden_ids("bert", "short.input_ids");
  std::vector<float> a(16), b(16);
  for (const auto& [one, out] : {std::pair{&model, &a}, {nullptr, &b}}) {
    const Model used = one != nullptr ? *one : open_golden("bert");
    ASSERT_TRUE(used.embed({.ids = ids}, {}, {out->data(), {1, 16}}, context).ok());
  }
  EXPECT_EQ(a, b);
}

// A golden model as the text part of one with images: settings below text_config, other prefixes.
void read_text_part(const std::string& name, const char* model_type, const std::string& prefix,
                    Files& files) {
  read_files(name, files);
  Config config;
  for (auto& [setting, value] : files.config) config["text_config." + setting] = std::move(value);
  config["model_type"] = text(model_type);
  files.config = std::move(config);
  for (StoredTensor& tensor : files.tensors) {
    tensor.name = tensor.name.starts_with("model.") ? prefix + tensor.name.substr(6)
                                                    : "language_model." + tensor.name;
  }
}

TEST(ModelLoader, TextPartOfAModelWithImages) {
  Context context(1);
  const struct {
    const char *name, *model_type;
    bool says_type;
  } cases[] = {{"gemma3", "gemma3", true},  {"gemma3", "gemma3", false},
               {"qwen2", "qwen2_vl", true}, {"mistral", "mistral3", false},
               {"phi3", "llava", true},     {"llama3", "smolvlm", false}};
  for (const auto& [name, model_type, says_type] : cases) {
    const std::vector<int32_t> ids = golden_ids(name, "short.input_ids");
    for (const char* prefix :
         {"language_model.model.", "model.language_model.", "model.text_model.", "model."}) {
      Files files;
      read_text_part(name, model_type, prefix, files);
      if (!says_type) files.config.erase("text_config.model_type");
      Model model;
      const Status status = load(files, {}, 4096, model);
      ASSERT_TRUE(status.ok()) << model_type << prefix << status.message();
      EXPECT_EQ(model.info().model_type, model_type);
      EXPECT_EQ(logits_of(model, ids, context), logits_of(open_golden(name), ids, context));
    }
  }
}

// transformers leaves out settings of a text part that are the defaults of its class.
TEST(ModelLoader, TextPartsHaveTheDefaultsOfTheirClass) {
  const std::pair<const char*, const char*> cases[] = {{"hidden_size", "(120, 4096)"},
                                                       {"vocab_size", "(32000, 16)"},
                                                       {"intermediate_size", "(14336, 16)"},
                                                       {"num_hidden_layers", "layers.2."},
                                                       {"num_attention_heads", "(256, 16)"}};
  for (const auto& [setting, told] : cases) {
    Files files;
    read_text_part("mistral", "mistral3", "model.language_model.", files);
    files.config.erase("text_config." + std::string(setting));
    files.config["text_config.head_dim"] = number(8);
    ModelLoader loader;
    const Status status = ModelLoader::create(files.config, files.tensors, {}, loader);
    EXPECT_NE(status.message().find(told), std::string::npos) << setting << status.message();
  }
}

TEST(ModelLoader, TextPartsOfOtherTypesAreNamed) {
  for (const char* type : {"mixtral", "bert"}) {
    Files files;
    read_text_part("mistral", "llava", "model.language_model.", files);
    files.config["text_config.model_type"] = text(type);
    ModelLoader loader;
    const Status status = ModelLoader::create(files.config, files.tensors, {}, loader);
    EXPECT_EQ(status.argument(), "config.json: text_config.model_type");
    EXPECT_NE(status.message().find("llama, mistral"), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find("roberta"), std::string::npos) << status.message();
  }
}

TEST(ModelLoader, MissingAndMisshapedTensorsAreNamed) {
  Files files;
  read_files("llama3", files);
  const auto message = [&](const std::function<void(std::vector<StoredTensor>&)>& change) {
    std::vector<StoredTensor> tensors = files.tensors;
    change(tensors);
    ModelLoader loader;
    const Status status = ModelLoader::create(files.config, tensors, {}, loader);
    EXPECT_EQ(status.code(), StatusCode::kFormat);
    return status.message();
  };
  const std::string q = "model.layers.1.self_attn.q_proj.weight";
  const auto is_q = [&](const StoredTensor& tensor) { return tensor.name == q; };
  EXPECT_NE(message([&](auto& tensors) { std::erase_if(tensors, is_q); }).find(q),
            std::string::npos);
  const auto change_q = [&](auto change) {
    return [&, change](std::vector<StoredTensor>& tensors) {
      change(*std::find_if(tensors.begin(), tensors.end(), is_q));
    };
  };
  EXPECT_NE(message(change_q([](StoredTensor& tensor) {
              tensor.shape = {16, 15};
            })).find(q + ": expected (16, 16)"),
            std::string::npos);
  EXPECT_NE(message(change_q([](StoredTensor& tensor) { tensor.type = "I8"; })).find("of I8"),
            std::string::npos);
}

TEST(ModelLoader, TensorsMustBeComplete) {
  Files files;
  read_files("qwen2", files);
  ModelLoader loader;
  ASSERT_TRUE(ModelLoader::create(files.config, files.tensors, {}, loader).ok());
  const size_t first = loader.needed()[0];
  ASSERT_TRUE(loader.give(first, std::span(files.bytes[first]).first(6)).ok());
  EXPECT_FALSE(loader.give(first, files.bytes[first]).ok());  // 6 bytes too many
  EXPECT_FALSE(loader.give(files.tensors.size(), {}).ok());
  Model model;
  EXPECT_NE(loader.finish(model).message().find(files.tensors[first].name), std::string::npos);
}

Status read_changed(const std::string& name, const std::string& setting, ConfigValue value) {
  Files files;
  read_files(name, files);
  files.config[setting] = std::move(value);
  ModelLoader loader;
  return ModelLoader::create(files.config, files.tensors, {}, loader);
}

TEST(ModelConfig, SettingsThatAreNotSupportedAreNamed) {
  using Kind = ConfigValue::Kind;
  const ConfigValue yes{Kind::kBool, 1, {}}, minus{Kind::kNumber, -1, {}},
      half{Kind::kNumber, 0.5, {}};
  const struct {
    const char *model, *setting;
    ConfigValue value;
  } cases[] = {{"llama3", "model_type", text("llama9")},
               {"llama3", "rope_parameters.rope_type", text("spiral")},
               {"llama3", "rope_parameters.factor", minus},
               {"llama3", "hidden_act", text("mish")},
               {"llama3", "hidden_size", half},
               {"llama3", "num_hidden_layers", minus},
               {"llama3", "num_key_value_heads", ConfigValue{Kind::kNumber, 3, {}}},
               {"llama3", "rms_norm_eps", minus},
               {"llama3", "tie_word_embeddings", text("no")},
               {"llama3", "quantization_config.quant_method", text("gptq")},
               {"phi3_long", "rope_parameters.long_factor.2", ConfigValue{}},
               {"qwen2", "layer_types.1", text("chunked_attention")},
               {"gemma2", "use_bidirectional_attention", yes},
               {"gemma2", "query_pre_attn_scalar", ConfigValue{Kind::kNumber, 0, {}}},
               {"bert", "position_embedding_type", text("relative_key")},
               {"bert", "is_decoder", yes},
               {"albert", "inner_group_num", ConfigValue{Kind::kNumber, 2, {}}},
               {"gpt2", "add_cross_attention", yes},
               {"deberta_v3", "relative_attention", ConfigValue{}},
               {"deberta_v3", "share_att_key", ConfigValue{Kind::kBool, 0, {}}},
               {"deberta_v3", "position_biased_input", yes},
               {"deberta_v3", "pos_att_type.0", text("p2p")},
               {"deberta_v3", "norm_rel_ebd", text("rms")},
               {"deberta_v3", "position_buckets", minus},
               {"deberta_v3", "position_buckets", ConfigValue{Kind::kNumber, 30, {}}},
               {"deberta_v3", "conv_kernel_size", ConfigValue{Kind::kNumber, 3, {}}},
               {"deberta_v3", "pooler_hidden_act", text("tanh")},
               {"modernbert_classes", "classifier_pooling", text("max")},
               {"modernbert_classes", "classifier_activation", text("silu")},
               {"bloom", "apply_residual_connection_post_layernorm", yes},
               {"bloom", "n_head", half},
               {"gpt_bigcode", "multi_query", ConfigValue{Kind::kBool, 0, {}}},
               {"jina_v2", "feed_forward_type", text("reglu")},
               {"jina_v2", "hidden_act", text("relu")},
               {"gte", "pack_qkv", ConfigValue{Kind::kBool, 0, {}}},
               {"gte", "layer_norm_type", text("rms_norm")},
               {"gte", "logn_attention_scale", yes},
               {"gte", "position_embedding_type", text("absolute")},
               {"llama3", "rope_parameters.rope_type", text("ntk")},
               {"esm", "position_embedding_type", text("absolute")},
               {"esm", "emb_layer_norm_before", yes},
               {"esm", "mask_token_id", minus},
               {"electra", "is_decoder", yes},
               {"electra", "embedding_size", minus},
               {"opt", "do_layer_norm_before", ConfigValue{Kind::kBool, 0, {}}},
               {"opt", "_remove_final_layer_norm", yes},
               {"opt", "layer_norm_elementwise_affine", ConfigValue{Kind::kBool, 0, {}}},
               {"opt", "word_embed_proj_dim", ConfigValue{Kind::kNumber, 8, {}}},
               {"phi", "qk_layernorm", yes},
               {"stablelm", "qk_layernorm", yes},
               {"cohere", "use_qk_norm", yes},
               {"arcee", "hidden_act", text("relu3")},
               {"llama3", "hidden_act", text("relu2")},
               {"gptj", "rotary_dim", ConfigValue{}},
               {"gptj", "rotary_dim", ConfigValue{Kind::kNumber, 10, {}}},
               {"gpt_neo", "attention_layers.1", text("sparse")},
               {"granite", "residual_multiplier", ConfigValue{Kind::kNumber, 0, {}}},
               {"granite", "logits_scaling", ConfigValue{}},
               {"olmo", "clip_qkv", minus},
               {"vit", "pooler_act", text("relu")},
               {"dinov2", "mlp_ratio", minus},
               {"dinov2", "use_swiglu_ffn", text("yes")},
               {"dinov2_classes", "num_register_tokens", minus},
               {"clip", "text_config.hidden_act", text("mish")},
               {"clip", "text_config.num_attention_heads", half},
               {"siglip", "text_config.vocab_size", minus}};
  for (const auto& each : cases) {
    const Status status = read_changed(each.model, each.setting, each.value);
    EXPECT_EQ(status.code(), StatusCode::kOption) << each.setting;
    std::string named = each.setting;
    if (named == "quantization_config.quant_method") named = "quantization_config";
    if (named == "pos_att_type.0") named = "pos_att_type";
    EXPECT_EQ(status.argument(), "config.json: " + named) << status.message();
  }
  Files files;
  read_files("llama3", files);
  files.config.erase("hidden_size");
  ModelLoader loader;
  EXPECT_EQ(ModelLoader::create(files.config, files.tensors, {}, loader).message(),
            "config.json: hidden_size: expected a number, got nothing");
}

struct Change {
  const char *model, *setting;
  ConfigValue value;
};

void expect_named(const Change& change) {
  const Status status = read_changed(change.model, change.setting, change.value);
  EXPECT_EQ(status.code(), StatusCode::kOption) << change.model << ' ' << change.setting;
  EXPECT_EQ(status.argument(), std::string("config.json: ") + change.setting) << status.message();
}

// Each was a division by zero, a model without layers or an error about other things.
// Files of the hub leave out what is as in transformers' classes.
TEST(ModelConfig, TowersHaveTheDefaultsOfTransformers) {
  const struct {
    const char* model;
    bool images;
    int64_t width, mlp, layers, heads, vocabulary, tokens;
    float factor;
  } cases[] = {{"clip", false, 512, 2048, 12, 8, 49408, 77, 1.702F},
               {"clip", true, 768, 3072, 12, 12, 0, 50, 1.702F},
               {"siglip", false, 768, 3072, 12, 12, 32000, 64, 1.0F},
               {"siglip", true, 768, 3072, 12, 12, 0, 196, 1.0F}};
  for (const auto& each : cases) {
    models::Architecture a, no_encoder;
    const Config config = {{"model_type", text(each.model)}};
    ASSERT_TRUE(read_architecture(config, each.images, a, no_encoder).ok()) << each.model;
    EXPECT_EQ(a.width, each.width);
    EXPECT_EQ(a.mlp, each.mlp);
    EXPECT_EQ(a.layers.size(), static_cast<size_t>(each.layers));
    EXPECT_EQ(a.heads, each.heads);
    EXPECT_EQ(a.vocabulary, each.vocabulary);
    EXPECT_EQ(each.images ? a.image_tokens() : a.positions, each.tokens);
    EXPECT_EQ(a.activation_factor, each.factor);
    EXPECT_EQ(a.eps, std::string(each.model) == "clip" ? 1e-5F : 1e-6F);
  }
}

TEST(ModelConfig, NullWhereANumberIsNeededIsNamed) {
  const std::pair<const char*, const char*> cases[] = {{"bert", "model_type"},
                                                       {"bert", "num_attention_heads"},
                                                       {"bert", "hidden_size"},
                                                       {"bert", "num_hidden_layers"},
                                                       {"bert", "vocab_size"},
                                                       {"bert", "max_position_embeddings"},
                                                       {"bert", "type_vocab_size"},
                                                       {"bert", "layer_norm_eps"},
                                                       {"bert", "hidden_act"},
                                                       {"gpt2", "n_layer"},
                                                       {"gpt2", "n_head"},
                                                       {"llama3", "rms_norm_eps"},
                                                       {"llama3", "num_attention_heads"},
                                                       {"gemma2", "query_pre_attn_scalar"},
                                                       {"gemma2", "layer_types.1"},
                                                       {"albert", "embedding_size"},
                                                       {"albert", "num_hidden_groups"},
                                                       {"t5", "relative_attention_num_buckets"},
                                                       {"t5", "relative_attention_max_distance"},
                                                       {"vit", "patch_size"},
                                                       {"vit", "image_size"},
                                                       {"vit", "num_channels"}};
  for (const auto& [model, setting] : cases) expect_named({model, setting, {}});
}

TEST(ModelConfig, NullThatTransformersTakesForNoneOpens) {
  for (const char* const setting :
       {"head_dim", "sliding_window", "pad_token_id", "eos_token_id", "bos_token_id",
        "rope_scaling", "rope_theta", "quantization_config", "use_sliding_window", "id2label.0"}) {
    EXPECT_TRUE(read_changed("mistral", setting, {}).ok()) << setting;
  }
  for (const char* const setting :
       {"attn_logit_softcapping", "final_logit_softcapping", "hidden_activation", "is_causal"}) {
    const Status status = read_changed("gemma2", setting, {});
    // Gemma 2 has windows, which have no meaning without an order of tokens.
    EXPECT_EQ(status.ok(), std::string(setting) != "is_causal") << status.message();
  }
  EXPECT_TRUE(read_changed("bert", "architectures.0", {}).ok());
  EXPECT_TRUE(read_changed("gpt2", "scale_attn_by_inverse_layer_idx", {}).ok());
}

TEST(ModelConfig, NumbersOutOfRangeAreNamed) {
  for (const double value :
       {0.0, -1.0, 0.5, 0x1p31, 0x1p62, 1e300, -1e300, HUGE_VAL, double{NAN}}) {
    for (const auto& [model, setting] : {std::pair{"bert", "num_attention_heads"},
                                         {"bert", "hidden_size"},
                                         {"bert", "vocab_size"},
                                         {"bert", "max_position_embeddings"},
                                         {"llama3", "num_hidden_layers"},
                                         {"llama3", "head_dim"},
                                         {"llama3", "num_key_value_heads"},
                                         {"t5", "d_kv"},
                                         {"t5", "relative_attention_num_buckets"},
                                         {"vit", "num_channels"},
                                         {"vit", "image_size"},
                                         {"vit", "patch_size"}}) {
      expect_named({model, setting, number(value)});
    }
  }
  const Change cases[] = {{"llama3", "head_dim", number(0x1p31 - 2)},
                          {"llama3", "head_dim", number(0x1p20)},
                          {"llama3", "hidden_size", number(0x1p31 - 2)},
                          {"llama3", "rms_norm_eps", number(2)},
                          {"llama3", "num_hidden_layers", number(5000)},
                          {"vit", "num_channels", number(1659435599)},
                          {"vit", "patch_size", number(13)},
                          {"gemma2", "attn_logit_softcapping", number(-5)},
                          {"gemma2", "attn_logit_softcapping", number(0)},
                          {"gemma2", "final_logit_softcapping", number(1e39)},
                          {"gemma2", "query_pre_attn_scalar", number(1e-300)},
                          {"gemma2", "sliding_window", number(-1)},
                          {"llama3", "eos_token_id", text("64")},
                          {"llama3", "eos_token_id", number(0.5)},
                          {"mistral_classes", "pad_token_id", text("0")},
                          {"mistral_classes", "pad_token_id", number(1e300)}};
  for (const Change& change : cases) expect_named(change);
}

// A list of a field's values looks like a field that is not there.
TEST(ModelConfig, ListsWhereOneValueIsNeededAreNamed) {
  for (const auto& [model, setting] : {std::pair{"vit", "image_size"},
                                       {"bert", "layer_norm_eps"},
                                       {"bert", "hidden_act"},
                                       {"llama3", "tie_word_embeddings"},
                                       {"mistral", "sliding_window"},
                                       {"roberta", "pad_token_id"}}) {
    Files files;
    read_files(model, files);
    files.config.erase(setting);
    files.config[setting + std::string(".0")] = number(1);
    ModelLoader loader;
    EXPECT_EQ(ModelLoader::create(files.config, files.tensors, {}, loader).argument(),
              std::string("config.json: ") + setting);
  }
}

// Rows behind the table of positions were read.
TEST(ModelConfig, PaddingBeyondPositionsOrVocabularyIsNamed) {
  for (const double id : {-1.0, 47.0, 48.0, 119.0, 5000.0, 1e300}) {
    expect_named({"roberta", "pad_token_id", number(id)});
  }
  for (const double positions : {1.0, 2.0}) {
    // Their padding is said.
    for (const char* const model : {"roberta", "xlm_roberta_classes"}) {
      Files files;
      read_files(model, files);
      files.config["max_position_embeddings"] = number(positions);
      ModelLoader loader;
      EXPECT_EQ(ModelLoader::create(files.config, files.tensors, {}, loader).argument(),
                "config.json: pad_token_id");
    }
    expect_named({"mpnet", "max_position_embeddings", number(positions)});
  }
  // Fewer tokens than positions.
  Files files;
  read_files("roberta", files);
  for (const char* const setting : {"vocab_size", "pad_token_id"}) {
    files.config[setting] = number(40);
  }
  ModelLoader loader;
  EXPECT_EQ(ModelLoader::create(files.config, files.tensors, {}, loader).argument(),
            "config.json: pad_token_id");
  EXPECT_EQ(open_golden("roberta").info().max_tokens, 46);
}

TEST(ModelConfig, RelativeBucketsThatHaveNoOrderAreNamed) {
  const char* const distance = "relative_attention_max_distance";
  const double buckets = [] {
    Files files;
    read_files("t5", files);
    return files.config.find("relative_attention_num_buckets")->second.number;
  }();
  for (const double wrong : {0.0, 1.0, buckets / 4 - 1, buckets / 4, 1e300}) {
    expect_named({"t5", distance, number(wrong)});
  }
  EXPECT_TRUE(read_changed("t5", distance, number(buckets / 4 + 1)).ok());
  expect_named({"t5", "relative_attention_num_buckets", number(buckets - 1)});
  expect_named({"mpnet", "relative_attention_num_buckets", number(16)});
}

// A setting that the family does not use is not read.
// Buckets of far distances may be narrower than one: five tokens then need rows that lie further
// apart than there are distances. They had no memory.
TEST(ModelConfig, NarrowRelativeBucketsHaveTheirRows) {
  Files files;
  read_files("deberta_v3", files);
  files.config["max_relative_positions"] = number(5);
  Model model;
  const Status opened = load(files, {}, size_t{1} << 20, model);
  ASSERT_TRUE(opened.ok()) << opened.message();
  const std::vector<int32_t> ids = {1, 2, 3, 4, 5};
  std::vector<float> state(5 * static_cast<size_t>(model.info().embed_dim));
  Context context(1);
  const Status status = model.forward(
      {.ids = ids}, {.last_hidden_state = {state.data(), {1, 5, model.info().embed_dim}}}, context);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(std::all_of(state.begin(), state.end(), [](float x) { return std::isfinite(x); }));
}

TEST(ModelConfig, DefaultPatchesLargerThanTheImageAreNamed) {
  Files files;
  read_files("siglip_vision", files);
  files.config.erase("patch_size");
  ModelLoader loader;
  const Status status = ModelLoader::create(files.config, files.tensors, {}, loader);
  EXPECT_EQ(status.argument(), "config.json: patch_size") << status.message();
}

TEST(ModelLoader, BytesHaveTheTableOfPositionsThatIsComputed) {
  Files files;
  read_files("marian", files);
  ModelLoader shorter, longer;
  ASSERT_TRUE(ModelLoader::create(files.config, files.tensors, {}, shorter).ok());
  const ConfigValue before = files.config["max_position_embeddings"];
  files.config["max_position_embeddings"] = number(before.number + 1000);
  ASSERT_TRUE(ModelLoader::create(files.config, files.tensors, {}, longer).ok());
  const auto width = static_cast<int64_t>(files.config["d_model"].number);
  // The encoder and the decoder have a table of floats each.
  EXPECT_EQ(longer.bytes(false) - shorter.bytes(false), 2 * 1000 * width * 4);
}

// Positions in blocks were left out without a word.
TEST(ModelLoader, TablesOfPositionsMayBeStoredInBlocks) {
  Files files;
  read_files("gpt2", files);
  const std::vector<int32_t> ids = golden_ids("gpt2", "short.input_ids");
  Context context(1);
  Model exact, of_blocks;
  ASSERT_TRUE(load(files, {}, size_t{1} << 20, exact).ok());
  for (size_t tensor = 0; tensor < files.tensors.size(); ++tensor) {
    StoredTensor& stored = files.tensors[tensor];
    if (!stored.name.ends_with("wpe.weight")) continue;
    const Dims shape = stored.shape;
    std::vector<float> numbers(files.bytes[tensor].size() / sizeof(float));
    ASSERT_EQ(stored.type, "F32");
    std::memcpy(numbers.data(), files.bytes[tensor].data(), files.bytes[tensor].size());
    const int64_t bytes = weight_row_bytes(WeightType::kInt8, shape[1]);
    files.bytes[tensor].resize(static_cast<size_t>(shape[0] * bytes));
    ASSERT_TRUE(quantize(ConstAnyTensor(numbers.data(), shape), WeightType::kInt8,
                         files.bytes[tensor].data(), context)
                    .ok());
    stored = {stored.name, "I8", {shape[0], bytes}};
  }
  const Status status = load(files, {}, size_t{1} << 20, of_blocks);
  ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<float> right = logits_of(exact, ids, context);
  const std::vector<float> got = logits_of(of_blocks, ids, context);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], right[i], 0.02);
}

TEST(ModelConfig, SettingsThatAreNotUsedMayBeAnything) {
  const Change cases[] = {{"llama3", "pad_token_id", number(-1)},
                          {"llama3", "pad_token_id", text("<pad>")},
                          {"llama3", "eos_token_id", number(-1)},
                          {"llama3", "type_vocab_size", text("two")},
                          {"llama3", "num_channels", number(-3)},
                          {"mistral", "max_window_layers", text("all")},
                          {"mistral", "sliding_window_pattern", number(0)},
                          {"mistral", "max_position_embeddings", number(1e300)},
                          {"bert", "eos_token_id", text("</s>")},
                          {"bert", "pad_token_id", number(-1)},
                          {"bert", "rope_scaling", text("linear")},
                          {"bert", "sliding_window", number(-1)},
                          {"t5", "tie_word_embeddings", text("no")},
                          {"mpnet", "pad_token_id", text("1")},
                          {"mpnet", "relative_attention_max_distance", number(2)},
                          {"olmo2", "mlp_bias", {ConfigValue::Kind::kBool, 1, {}}},
                          {"mistral_classes", "pad_token_id", number(-1)},
                          {"llama3", "sliding_window", text("none")}};
  for (const auto& [model, setting, value] : cases) {
    const Status status = read_changed(model, setting, value);
    EXPECT_TRUE(status.ok()) << model << ": " << status.message();
  }
}

// transformers reads them in Gemma 2 and 3, and in GPT-2.
TEST(ModelConfig, SettingsOfOtherFamiliesDoNotAct) {
  Context context(1);
  for (const char* const name : {"mistral", "llama3", "gemma"}) {
    Files files;
    read_files(name, files);
    files.config["attn_logit_softcapping"] = files.config["final_logit_softcapping"] = number(0.1);
    files.config["scale_attn_weights"] = {ConfigValue::Kind::kBool, 0, {}};
    files.config["scale_attn_by_inverse_layer_idx"] = {ConfigValue::Kind::kBool, 1, {}};
    files.config["query_pre_attn_scalar"] = number(3);
    Model model;
    const Status status = load(files, {}, 1 << 20, model);
    ASSERT_TRUE(status.ok()) << status.message();
    const std::vector<int32_t> ids = golden_ids(name, "short.input_ids");
    EXPECT_EQ(logits_of(model, ids, context), logits_of(open_golden(name), ids, context)) << name;
  }
}

TEST(ModelConfig, RotaryScalingThatIsNotUnderstoodIsNamed) {
  const auto named = [](const char* model, const char* argument,
                        std::vector<std::pair<const char*, ConfigValue>> changes) {
    Files files;
    read_files(model, files);
    std::erase_if(files.config, [](const auto& field) {
      return field.first.starts_with("rope_parameters") || field.first.starts_with("rope_scaling");
    });
    for (auto& [setting, value] : changes) files.config[setting] = std::move(value);
    ModelLoader loader;
    const Status status = ModelLoader::create(files.config, files.tensors, {}, loader);
    EXPECT_EQ(status.argument(), argument == nullptr ? "" : std::string("config.json: ") + argument)
        << status.message();
  };
  const auto type = [](const char* name) { return std::pair{"rope_scaling.type", text(name)}; };
  named("mistral", nullptr, {});
  named("mistral", nullptr,
        {{"rope_scaling.type", text("default")}, {"rope_scaling.factor", number(4)}});
  named("mistral", nullptr, {{"rope_scaling.factor", {}}});
  named("mistral", nullptr, {{"rope_parameters.rope_theta", number(1e6)}});
  named("mistral", "rope_scaling.rope_type", {{"rope_scaling.factor", number(4)}});
  named("mistral", "rope_parameters.rope_type", {{"rope_parameters.factor", number(4)}});
  named("mistral", "rope_parameters.rope_type",
        {{"rope_parameters.full_attention.rope_theta", number(1e6)}});
  named("gemma3", "rope_parameters.full_attention", {{"rope_parameters.rope_theta", number(1e6)}});
  named("mistral", "rope_scaling", {{"rope_scaling", text("linear")}});
  named("gemma3", "rope_parameters", {{"rope_parameters", number(4)}});
  named("mistral", "rope_scaling.type", {{"rope_scaling.type", number(4)}});
  named("mistral", "rope_scaling.rope_type", {type("spiral")});
  for (const char* const scaling : {"linear", "dynamic", "llama3"}) {
    named("mistral", "rope_scaling.factor", {type(scaling)});
  }
  for (const char* const scaling : {"linear", "dynamic", "llama3", "yarn", "longrope"}) {
    for (const ConfigValue& wrong :
         {number(0), number(-1), number(NAN), number(1e300), text("4")}) {
      named("mistral", "rope_scaling.factor", {type(scaling), {"rope_scaling.factor", wrong}});
    }
  }
  const char* const original = "rope_scaling.original_max_position_embeddings";
  for (const char* const scaling : {"llama3", "yarn", "longrope"}) {
    for (const double wrong : {0.0, -1.0, 0.5, 1e300, double{NAN}}) {
      named("mistral", original,
            {type(scaling), {"rope_scaling.factor", number(4)}, {original, number(wrong)}});
    }
  }
  named("mistral", "max_position_embeddings",
        {type("dynamic"),
         {"rope_scaling.factor", number(4)},
         {"max_position_embeddings", number(-1)}});
  named("mistral", "rope_theta", {{"rope_theta", number(0)}});
  named("mistral", "rope_theta", {{"rope_theta", number(1e-300)}});
  named("mistral", "rope_theta",
        {type("yarn"), {"rope_scaling.factor", number(4)}, {"rope_theta", number(1)}});
  named("mistral", "rope_scaling.attention_factor",
        {type("yarn"),
         {"rope_scaling.factor", number(4)},
         {"rope_scaling.attention_factor", number(-1)}});
  named("mistral", "rope_scaling.partial_rotary_factor",
        {{"rope_scaling.partial_rotary_factor", number(1e29)}});
}

// Nomic's names of settings, and its scaling of rotary positions, which is the dynamic one of
// transformers.
TEST(ModelConfig, NomicBertScalesBeyondTrainedPositions) {
  Context context(1);
  const std::vector<int32_t> ids = golden_ids("nomic_bert", "long.input_ids");
  const auto logits_with = [&](const char* file,
                               const std::map<std::string, ConfigValue>& changes) {
    Files files;
    read_files("nomic_bert", files);
    EXPECT_TRUE(models::read_config(model_folder("nomic_bert") + file, files.config).ok());
    for (const auto& [setting, value] : changes) files.config[setting] = value;
    Model model;
    const Status status = load(files, {}, 4096, model);
    EXPECT_TRUE(status.ok()) << status.message();
    return logits_of(model, ids, context);
  };
  const std::map<std::string, ConfigValue> dynamic = {
      {"rope_parameters.rope_type", text("dynamic")},
      {"rope_parameters.factor", number(2)},
      {"max_position_embeddings", number(20)}};
  const std::map<std::string, ConfigValue> own = {{"rotary_scaling_factor", number(2)},
                                                  {"max_trained_positions", number(20)}};
  const std::vector<float> scaled = logits_with("/config.json", dynamic);
  EXPECT_EQ(logits_with("/config_v4.json", own), scaled);
  EXPECT_NE(logits_with("/config_v4.json", {}), scaled);
  EXPECT_EQ(logits_with("/config_v4.json", {{"rotary_scaling_factor", number(2)}}),
            logits_with("/config_v4.json", {}));
}

TEST(ModelConfig, ListsOfLayersThatAreTooShortAreNamed) {
  for (const auto& [model, setting] :
       {std::pair{"qwen2", "layer_types.1"}, {"smollm3", "no_rope_layers.1"}}) {
    Files files;
    read_files(model, files);
    ASSERT_EQ(files.config.erase(setting), 1U) << model;
    ModelLoader loader;
    EXPECT_EQ(ModelLoader::create(files.config, files.tensors, {}, loader).argument(),
              std::string("config.json: ") + setting);
  }
  // GPT-Neo's form [[kinds, repeats], ...] in place of a list.
  Files files;
  read_files("gpt_neo", files);
  std::erase_if(files.config,
                [](const auto& field) { return field.first.starts_with("attention_layers"); });
  ModelLoader loader;
  EXPECT_TRUE(ModelLoader::create(files.config, files.tensors, {}, loader).ok());
  files.config["attention_types.1.0.0"] = text("sparse");
  EXPECT_EQ(ModelLoader::create(files.config, files.tensors, {}, loader).argument(),
            "config.json: attention_types.1.0.0");
  std::erase_if(files.config,
                [](const auto& field) { return field.first.starts_with("attention_types.1"); });
  EXPECT_EQ(ModelLoader::create(files.config, files.tensors, {}, loader).message(),
            "config.json: attention_types: expected a kind for each layer, got kinds of 2 layers");
}

// Numbers of a tensor (count) of a golden model, which is in f32.
std::vector<float> floats_of(const Files& files, const std::string& name) {
  for (size_t i = 0; i < files.tensors.size(); ++i) {
    if (files.tensors[i].name != name) continue;
    std::vector<float> numbers(files.bytes[i].size() / sizeof(float));
    std::memcpy(numbers.data(), files.bytes[i].data(), files.bytes[i].size());
    return numbers;
  }
  ADD_FAILURE() << name;
  return {};
}

void add_tensor(Files& files, const std::string& name, const Dims& shape,
                const std::vector<float>& numbers) {
  files.tensors.push_back({name, "F32", shape});
  const auto bytes = std::as_bytes(std::span(numbers));
  files.bytes.emplace_back(bytes.begin(), bytes.end());
}

std::vector<float> random_floats(size_t count) {
  std::vector<float> numbers(count);
  uint32_t random = 1;
  for (float& value : numbers) {
    random = random * 1664525U + 1013904223U;
    value = static_cast<float>(static_cast<int32_t>(random)) * 0x1p-31F;
  }
  return numbers;
}

// x (rows, 16) W^T + b for two outputs.
std::vector<float> two_outputs(const std::vector<float>& x, const std::vector<float>& weight,
                               const std::vector<float>& bias) {
  std::vector<float> y;
  for (size_t row = 0; row < x.size() / 16; ++row) {
    for (size_t out = 0; out < 2; ++out) {
      float sum = bias[out];
      for (size_t c = 0; c < 16; ++c) sum += x[row * 16 + c] * weight[out * 16 + c];
      y.push_back(sum);
    }
  }
  return y;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& right) {
  ASSERT_EQ(got.size(), right.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], right[i], 1e-5F) << i;
}

TEST(ModelHeads, StartAndEndOfAnAnswer) {
  Context context(1);
  const std::vector<float> weight = random_floats(2 * 16), bias = {0.25F, -0.5F};
  for (const char* const name : {"roberta", "bert", "distilbert_classes", "albert", "mpnet"}) {
    for (const char* const architecture : {"XForQuestionAnswering", ""}) {
      // Without the name of a class, the head of a masked language model comes first.
      if (*architecture == '\0' && std::string(name) != "bert") continue;
      Files files;
      read_files(name, files);
      files.config["architectures.0"] = text(architecture);
      add_tensor(files, "qa_outputs.weight", {2, 16}, weight);
      add_tensor(files, "qa_outputs.bias", {2}, bias);
      Model model;
      const Status status = load(files, {}, 1 << 20, model);
      ASSERT_TRUE(status.ok()) << name << ": " << status.message();
      EXPECT_EQ(model.info().output, models::Output::kQuestionAnswering) << name;
      EXPECT_EQ(model.info().num_labels, 2);
      const std::vector<int32_t> ids = golden_ids(name, "short.input_ids");
      const auto tokens = static_cast<int64_t>(ids.size());
      std::vector<float> state(ids.size() * 16), logits(ids.size() * 2);
      ASSERT_TRUE(model
                      .forward({.ids = ids},
                               {.last_hidden_state = {state.data(), {1, tokens, 16}},
                                .logits = {logits.data(), {1, tokens, 2}}},
                               context)
                      .ok());
      expect_near(logits, two_outputs(state, weight, bias));
    }
  }
}

TEST(ModelHeads, NextSentence) {
  Context context(1);
  Files files;
  read_files("bert", files);
  files.config["architectures.0"] = text("BertForNextSentencePrediction");
  const std::vector<float> weight = random_floats(2 * 16), bias = {0.25F, -0.5F};
  add_tensor(files, "cls.seq_relationship.weight", {2, 16}, weight);
  add_tensor(files, "cls.seq_relationship.bias", {2}, bias);
  Model model;
  const Status status = load(files, {}, 1 << 20, model);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(model.info().output, models::Output::kClassification);
  const std::vector<int32_t> ids = golden_ids("bert", "short.input_ids");
  std::vector<float> pooled(16), logits(2);
  ASSERT_TRUE(
      model
          .forward({.ids = ids},
                   {.logits = {logits.data(), {1, 2}}, .pooler_output = {pooled.data(), {1, 16}}},
                   context)
          .ok());
  expect_near(logits, two_outputs(pooled, weight, bias));
}

TEST(ModelHeads, AnUntiedMaskedModelHasTheBiasOfItsMatrix) {
  Context context(1);
  Files files;
  read_files("bert_masked", files);
  const std::vector<int32_t> ids = golden_ids("bert_masked", "short.input_ids");
  const std::vector<float> tied = logits_of(open_golden("bert_masked"), ids, context);
  const std::vector<float> embedding = floats_of(files, "bert.embeddings.word_embeddings.weight");
  std::vector<float> bias = floats_of(files, "cls.predictions.bias");
  const auto vocabulary = static_cast<int64_t>(bias.size());
  for (float& value : bias) value += 1.0F;
  files.config["tie_word_embeddings"] = {ConfigValue::Kind::kBool, 0, {}};
  add_tensor(files, "cls.predictions.decoder.weight", {vocabulary, 16}, embedding);
  add_tensor(files, "cls.predictions.decoder.bias", {vocabulary}, bias);
  Model model;
  const Status status = load(files, {}, 1 << 20, model);
  ASSERT_TRUE(status.ok()) << status.message();
  std::vector<float> right = tied;
  for (float& value : right) value += 1.0F;
  expect_near(logits_of(model, ids, context), right);
}

TEST(ModelHeads, ADecoderWithoutAHeadOpensForEmbeddings) {
  Files files;
  read_files("qwen2", files);
  for (size_t i = 0; i < files.tensors.size(); ++i) {
    if (files.tensors[i].name == "lm_head.weight") files.tensors[i].name = "other";
  }
  Model model;
  const Status status = load(files, {}, 1 << 20, model);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(model.info().output, models::Output::kNone);
}

TEST(ModelHeads, ADecoderMaySeeBothDirections) {
  Context context(1);
  const std::vector<int32_t> ids = golden_ids("qwen2", "short.input_ids");
  const auto tokens = static_cast<int64_t>(ids.size());
  Files files;
  read_files("qwen2", files);
  files.config["use_sliding_window"] = {ConfigValue::Kind::kBool, 0, {}};
  for (const bool causal : {true, false}) {
    files.config["is_causal"] = {ConfigValue::Kind::kBool, causal ? 1.0 : 0.0, {}};
    Model model;
    const Status status = load(files, {}, 1 << 20, model);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(model.info().causal, causal);
    std::vector<float> map(static_cast<size_t>(tokens * tokens));
    ASSERT_TRUE(
        model.attentions({.ids = ids}, 0, 0, {map.data(), {1, tokens, tokens}}, context).ok());
    EXPECT_EQ(map[1] > 0, !causal);
    models::Session session;
    EXPECT_EQ(models::Session::create(model, {}, session).ok(), causal);
  }
}

class ModelFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const auto& entry : fs::directory_iterator(model_folder("qwen3"))) {
      fs::copy(entry.path(), folder_ / entry.path().filename());
    }
  }

  Status open() {
    Model model;
    return models::open(folder_.string(), {}, model);
  }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  std::string read(const std::string& name) {
    std::ifstream file(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // A shard of the model.
  std::string shard() {
    for (const auto& entry : fs::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("model-00002")) return name;
    }
    return "";
  }

  testing::TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
};

TEST_F(ModelFolder, BrokenFilesAreOneError) {
  ASSERT_TRUE(open().ok()) << open().message();
  const std::string name = shard(), good = read(name), config = read("config.json");
  const std::string index = "model.safetensors.index.json", list = read(index);
  ASSERT_FALSE(good.empty());
  fs::remove(folder_ / name);
  EXPECT_NE(open().message().find(name), std::string::npos);
  for (const size_t length : {size_t{0}, size_t{5}, size_t{200}, good.size() - 1}) {
    write(name, good.substr(0, length));
    EXPECT_EQ(open().code(), StatusCode::kFormat) << length;
  }
  write(name, good);
  ASSERT_TRUE(open().ok());
  for (const char* text : {"", "[1, 2]", "{\"model_type\": ", "3", "null"}) {
    write("config.json", text);
    EXPECT_EQ(open().code(), StatusCode::kFormat) << text;
  }
  write("config.json", "{}");
  EXPECT_EQ(open().argument(), "config.json: model_type");
  write("config.json", std::string(100000, '['));
  EXPECT_EQ(open().code(), StatusCode::kFormat);
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "{\"a\":";
  write("config.json", deep);
  EXPECT_EQ(open().code(), StatusCode::kFormat);
  write("config.json", config);
  for (const char* text : {"", "{}", R"({"weight_map": {"a": "../../etc/passwd"}})",
                           R"({"weight_map": {"a": "missing.safetensors"}})"}) {
    write(index, text);
    EXPECT_EQ(open().code(), StatusCode::kFormat) << text;
  }
  fs::remove(folder_ / index);
  EXPECT_NE(open().message().find("model.safetensors"), std::string::npos);
  write(index, list);
  ASSERT_TRUE(open().ok());
  fs::remove(folder_ / "config.json");
  EXPECT_NE(open().message().find("config.json"), std::string::npos);
}

// A folder of random bytes in place of some bytes of a file opens or is one error.
TEST_F(ModelFolder, ChangedBytesAreSurvived) {
  Context context(1);
  const std::string name = shard(), good = read(name), config = read("config.json");
  uint32_t random = 1;
  const auto next = [&] { return random = random * 1664525U + 1013904223U, random >> 8U; };
  for (int round = 0; round < 200; ++round) {
    std::string text = config, bytes = good;
    for (int i = 0; i < 3; ++i) {
      text[next() % text.size()] = "0129\"{}[],:-.e"[next() % 14];
      bytes[next() % 400] = static_cast<char>(next());
    }
    write(round % 2 == 0 ? "config.json" : name, round % 2 == 0 ? text : bytes);
    Model model;
    if (models::open(folder_.string(), {}, model).ok() && model.info().vocab_size > 0) {
      std::vector<float> out(static_cast<size_t>(model.info().embed_dim));
      const std::vector<int32_t> ids = {0, 0};
      static_cast<void>(
          model.embed({.ids = ids}, {}, {out.data(), {1, model.info().embed_dim}}, context));
    }
    write("config.json", config);
    write(name, good);
  }
}

}  // namespace
}  // namespace multihead
