// The table of families.
#include <cstdint>
#include <span>
#include <string_view>

#include "models/bart.h"
#include "models/family.h"
#include "models/modernbert.h"
#include "models/t5.h"

namespace multihead::models {
namespace {

using Prefix = std::string_view;

// ---- Names of parameters that several families share. ----

constexpr Names kBertNames{.embedding = "embeddings.word_embeddings",
                           .position = "embeddings.position_embeddings",
                           .token_type = "embeddings.token_type_embeddings",
                           .embedding_norm = "embeddings.LayerNorm",
                           .attention_sum_norm = "encoder.layer.#.attention.output.LayerNorm",
                           .q = "encoder.layer.#.attention.self.query",
                           .k = "encoder.layer.#.attention.self.key",
                           .v = "encoder.layer.#.attention.self.value",
                           .o = "encoder.layer.#.attention.output.dense",
                           .mlp_sum_norm = "encoder.layer.#.output.LayerNorm",
                           .up = "encoder.layer.#.intermediate.dense",
                           .down = "encoder.layer.#.output.dense",
                           .pooler = "pooler.dense",
                           .output = "cls.predictions.decoder",
                           .output_bias = "cls.predictions.bias|cls.predictions.decoder.bias",
                           .transform = "cls.predictions.transform.dense",
                           .transform_norm = "cls.predictions.transform.LayerNorm",
                           .classifier = "classifier",
                           .next_sentence = "cls.seq_relationship"};

constexpr Names kRobertaNames = [] {
  Names names = kBertNames;
  names.next_sentence = nullptr;
  names.output = "lm_head.decoder";
  names.output_bias = "lm_head.bias|lm_head.decoder.bias";
  names.transform = "lm_head.dense";
  names.transform_norm = "lm_head.layer_norm";
  names.classifier_dense = "classifier.dense";
  names.classifier = "classifier.out_proj|classifier";
  return names;
}();

constexpr Names kMpnetNames = [] {
  Names names = kRobertaNames;
  names.token_type = nullptr;
  names.relative_bias = "encoder.relative_attention_bias";
  names.attention_sum_norm = "encoder.layer.#.attention.LayerNorm";
  names.q = "encoder.layer.#.attention.attn.q";
  names.k = "encoder.layer.#.attention.attn.k";
  names.v = "encoder.layer.#.attention.attn.v";
  names.o = "encoder.layer.#.attention.attn.o";
  return names;
}();

constexpr Names kDistilBertNames{.embedding = "embeddings.word_embeddings",
                                 .position = "embeddings.position_embeddings",
                                 .embedding_norm = "embeddings.LayerNorm",
                                 .attention_sum_norm = "transformer.layer.#.sa_layer_norm",
                                 .q = "transformer.layer.#.attention.q_lin",
                                 .k = "transformer.layer.#.attention.k_lin",
                                 .v = "transformer.layer.#.attention.v_lin",
                                 .o = "transformer.layer.#.attention.out_lin",
                                 .mlp_sum_norm = "transformer.layer.#.output_layer_norm",
                                 .up = "transformer.layer.#.ffn.lin1",
                                 .down = "transformer.layer.#.ffn.lin2",
                                 .output = "vocab_projector",
                                 .output_bias = "vocab_projector.bias",
                                 .transform = "vocab_transform",
                                 .transform_norm = "vocab_layer_norm",
                                 .classifier_dense = "pre_classifier",
                                 .classifier = "classifier"};

// `#` is the number of the group of layers, which share their parameters.
constexpr Names kAlbertNames{
    .embedding = "embeddings.word_embeddings",
    .position = "embeddings.position_embeddings",
    .token_type = "embeddings.token_type_embeddings",
    .embedding_norm = "embeddings.LayerNorm",
    .embedding_projection = "encoder.embedding_hidden_mapping_in",
    .attention_sum_norm = "encoder.albert_layer_groups.#.albert_layers.0.attention.LayerNorm",
    .q = "encoder.albert_layer_groups.#.albert_layers.0.attention.query",
    .k = "encoder.albert_layer_groups.#.albert_layers.0.attention.key",
    .v = "encoder.albert_layer_groups.#.albert_layers.0.attention.value",
    .o = "encoder.albert_layer_groups.#.albert_layers.0.attention.dense",
    .mlp_sum_norm = "encoder.albert_layer_groups.#.albert_layers.0.full_layer_layer_norm",
    .up = "encoder.albert_layer_groups.#.albert_layers.0.ffn",
    .down = "encoder.albert_layer_groups.#.albert_layers.0.ffn_output",
    .pooler = "pooler",
    .output = "predictions.decoder",
    .output_bias = "predictions.bias|predictions.decoder.bias",
    .transform = "predictions.dense",
    .transform_norm = "predictions.LayerNorm",
    .classifier = "classifier"};

constexpr Names kLlamaNames{.embedding = "embed_tokens",
                            .attention_norm = "layers.#.input_layernorm",
                            .q = "layers.#.self_attn.q_proj",
                            .k = "layers.#.self_attn.k_proj",
                            .v = "layers.#.self_attn.v_proj",
                            .o = "layers.#.self_attn.o_proj",
                            .mlp_norm = "layers.#.post_attention_layernorm",
                            .gate = "layers.#.mlp.gate_proj",
                            .up = "layers.#.mlp.up_proj",
                            .down = "layers.#.mlp.down_proj",
                            .final_norm = "norm",
                            .output = "lm_head",
                            .classifier = "score|classifier"};

constexpr Names kQwen3Names = [] {
  Names names = kLlamaNames;
  names.q_norm = "layers.#.self_attn.q_norm";
  names.k_norm = "layers.#.self_attn.k_norm";
  return names;
}();

constexpr Names kOlmo2Names = [] {
  Names names = kQwen3Names;
  names.attention_norm = names.mlp_norm = nullptr;
  names.attention_out_norm = "layers.#.post_attention_layernorm";
  names.mlp_out_norm = "layers.#.post_feedforward_layernorm";
  return names;
}();

constexpr Names kGemma2Names = [] {
  Names names = kLlamaNames;
  names.attention_out_norm = "layers.#.post_attention_layernorm";
  names.mlp_norm = "layers.#.pre_feedforward_layernorm";
  names.mlp_out_norm = "layers.#.post_feedforward_layernorm";
  return names;
}();

constexpr Names kGemma3Names = [] {
  Names names = kGemma2Names;
  names.q_norm = kQwen3Names.q_norm;
  names.k_norm = kQwen3Names.k_norm;
  return names;
}();

constexpr Names kPhi3Names = [] {
  Names names = kLlamaNames;
  names.q = names.k = names.v = names.gate = names.up = nullptr;
  names.qkv = "layers.#.self_attn.qkv_proj";
  names.gate_up = "layers.#.mlp.gate_up_proj";
  return names;
}();

constexpr Names kStarcoder2Names = [] {
  Names names = kLlamaNames;
  names.gate = nullptr;
  names.up = "layers.#.mlp.c_fc";
  names.down = "layers.#.mlp.c_proj";
  return names;
}();

constexpr Names kGptNeoxNames{.embedding = "embed_in",
                              .attention_norm = "layers.#.input_layernorm",
                              .qkv = "layers.#.attention.query_key_value",
                              .o = "layers.#.attention.dense",
                              .mlp_norm = "layers.#.post_attention_layernorm",
                              .up = "layers.#.mlp.dense_h_to_4h",
                              .down = "layers.#.mlp.dense_4h_to_h",
                              .final_norm = "final_layer_norm",
                              .output = "embed_out",
                              .classifier = "score|classifier"};

constexpr Names kGpt2Names{.embedding = "wte",
                           .position = "wpe",
                           .attention_norm = "h.#.ln_1",
                           .qkv = "h.#.attn.c_attn",
                           .o = "h.#.attn.c_proj",
                           .mlp_norm = "h.#.ln_2",
                           .up = "h.#.mlp.c_fc",
                           .down = "h.#.mlp.c_proj",
                           .final_norm = "ln_f",
                           .output = "lm_head",
                           .classifier = "score|classifier"};

// GPT-2's names, with matrices of their own.
constexpr Names kGptNeoNames = [] {
  Names names = kGpt2Names;
  names.qkv = nullptr;
  names.q = "h.#.attn.attention.q_proj";
  names.k = "h.#.attn.attention.k_proj";
  names.v = "h.#.attn.attention.v_proj";
  names.o = "h.#.attn.attention.out_proj";
  return names;
}();

constexpr Names kGptJNames = [] {
  Names names = kGpt2Names;
  names.position = names.qkv = names.mlp_norm = nullptr;
  names.q = "h.#.attn.q_proj";
  names.k = "h.#.attn.k_proj";
  names.v = "h.#.attn.v_proj";
  names.o = "h.#.attn.out_proj";
  names.up = "h.#.mlp.fc_in";
  names.down = "h.#.mlp.fc_out";
  return names;
}();

constexpr Names kBloomNames{.embedding = "word_embeddings",
                            .embedding_norm = "word_embeddings_layernorm",
                            .attention_norm = "h.#.input_layernorm",
                            .qkv = "h.#.self_attention.query_key_value",
                            .o = "h.#.self_attention.dense",
                            .mlp_norm = "h.#.post_attention_layernorm",
                            .up = "h.#.mlp.dense_h_to_4h",
                            .down = "h.#.mlp.dense_4h_to_h",
                            .final_norm = "ln_f",
                            .output = "lm_head",
                            .classifier = "score|classifier"};

constexpr Names kOptNames{.embedding = "embed_tokens",
                          .position = "embed_positions",
                          .attention_norm = "layers.#.self_attn_layer_norm",
                          .q = "layers.#.self_attn.q_proj",
                          .k = "layers.#.self_attn.k_proj",
                          .v = "layers.#.self_attn.v_proj",
                          .o = "layers.#.self_attn.out_proj",
                          .mlp_norm = "layers.#.final_layer_norm",
                          .up = "layers.#.fc1",
                          .down = "layers.#.fc2",
                          .final_norm = "final_layer_norm",
                          .output = "lm_head",
                          .classifier = "score|classifier"};

constexpr Names kPhiNames = [] {
  Names names = kLlamaNames;
  names.o = "layers.#.self_attn.dense";
  names.mlp_norm = names.gate = nullptr;
  names.up = "layers.#.mlp.fc1";
  names.down = "layers.#.mlp.fc2";
  names.final_norm = "final_layernorm";
  return names;
}();

constexpr Names kGlmNames = [] {
  Names names = kLlamaNames;
  names.gate = names.up = nullptr;
  names.gate_up = kPhi3Names.gate_up;
  return names;
}();

constexpr Names kGlm4Names = [] {
  Names names = kGlmNames;
  names.attention_out_norm = "layers.#.post_self_attn_layernorm";
  names.mlp_out_norm = "layers.#.post_mlp_layernorm";
  return names;
}();

constexpr Names kCohereNames = [] {
  Names names = kLlamaNames;
  names.mlp_norm = nullptr;
  return names;
}();

constexpr Names kHunyuanNames = [] {
  Names names = kLlamaNames;
  names.q_norm = "layers.#.self_attn.query_layernorm";
  names.k_norm = "layers.#.self_attn.key_layernorm";
  return names;
}();

constexpr Names kArceeNames = [] {
  Names names = kLlamaNames;
  names.gate = nullptr;
  return names;
}();

// Its norms have no parameters, so their names only say where they are.
constexpr Names kNanochatNames = [] {
  Names names = kQwen3Names;
  names.embedding_norm = names.final_norm;
  names.gate = nullptr;
  names.up = "layers.#.mlp.fc1";
  names.down = "layers.#.mlp.fc2";
  return names;
}();

constexpr Names kVitNames{
    .position = "embeddings.position_embeddings",
    .patch = "embeddings.patch_embeddings.projection",
    .first_token = "embeddings.cls_token",
    .attention_norm = "encoder.layer.#.layernorm_before|layers.#.layernorm_before",
    .q = "encoder.layer.#.attention.attention.query|layers.#.attention.q_proj",
    .k = "encoder.layer.#.attention.attention.key|layers.#.attention.k_proj",
    .v = "encoder.layer.#.attention.attention.value|layers.#.attention.v_proj",
    .o = "encoder.layer.#.attention.output.dense|layers.#.attention.o_proj",
    .mlp_norm = "encoder.layer.#.layernorm_after|layers.#.layernorm_after",
    .up = "encoder.layer.#.intermediate.dense|layers.#.mlp.fc1",
    .down = "encoder.layer.#.output.dense|layers.#.mlp.fc2",
    .final_norm = "layernorm",
    .pooler = "pooler.dense",
    .classifier = "classifier"};

constexpr Names kDeitNames = [] {
  Names names = kVitNames;
  names.distillation = "embeddings.distillation_token";
  names.classifier = "classifier|cls_classifier";
  names.distilled = "distillation_classifier";
  return names;
}();

constexpr Names kDinov2Names = [] {
  Names names = kVitNames;
  names.registers = nullptr;
  names.attention_norm = "encoder.layer.#.norm1";
  names.q = "encoder.layer.#.attention.attention.query";
  names.k = "encoder.layer.#.attention.attention.key";
  names.v = "encoder.layer.#.attention.attention.value";
  names.o = "encoder.layer.#.attention.output.dense";
  names.attention_scale = "encoder.layer.#.layer_scale1.lambda1";
  names.mlp_norm = "encoder.layer.#.norm2";
  names.gate_up = "encoder.layer.#.mlp.weights_in";
  names.up = "encoder.layer.#.mlp.fc1";
  names.down = "encoder.layer.#.mlp.fc2|encoder.layer.#.mlp.weights_out";
  names.mlp_scale = "encoder.layer.#.layer_scale2.lambda1";
  names.pooler = nullptr;
  return names;
}();

constexpr Names kDinov2RegistersNames = [] {
  Names names = kDinov2Names;
  names.registers = "embeddings.register_tokens";
  return names;
}();

// Both towers of CLIP.
constexpr Names kClipNames{.position = "embeddings.position_embedding",
                           .attention_norm = "encoder.layers.#.layer_norm1",
                           .q = "encoder.layers.#.self_attn.q_proj",
                           .k = "encoder.layers.#.self_attn.k_proj",
                           .v = "encoder.layers.#.self_attn.v_proj",
                           .o = "encoder.layers.#.self_attn.out_proj",
                           .mlp_norm = "encoder.layers.#.layer_norm2",
                           .up = "encoder.layers.#.mlp.fc1",
                           .down = "encoder.layers.#.mlp.fc2"};

constexpr Names kClipTextNames = [] {
  Names names = kClipNames;
  names.embedding = "embeddings.token_embedding";
  names.final_norm = "final_layer_norm";
  names.projection = "text_projection";
  return names;
}();

constexpr Names kClipVisionNames = [] {
  Names names = kClipNames;
  names.patch = "embeddings.patch_embedding";
  names.first_token = "embeddings.class_embedding";
  names.embedding_norm = "pre_layrnorm";  // so spelled
  names.final_norm = "post_layernorm";
  names.projection = "visual_projection";
  return names;
}();

constexpr Names kSiglipTextNames = [] {
  Names names = kClipTextNames;
  names.projection = "head";
  return names;
}();

constexpr Names kSiglipVisionNames = [] {
  Names names = kClipVisionNames;
  names.first_token = names.embedding_norm = names.projection = nullptr;
  names.attention_pooler = "head.";
  return names;
}();

constexpr Names kElectraNames = [] {
  Names names = kBertNames;
  names.next_sentence = names.pooler = nullptr;
  names.embedding_projection = "embeddings_project";
  names.output = "generator_lm_head";
  names.output_bias = "generator_lm_head.bias";
  names.transform = "generator_predictions.dense";
  names.transform_norm = "generator_predictions.LayerNorm";
  names.classifier_dense = kRobertaNames.classifier_dense;
  names.classifier = kRobertaNames.classifier;
  return names;
}();

constexpr Names kDebertaNames = [] {
  Names names = kBertNames;
  names.next_sentence = names.pooler = names.position = nullptr;
  names.relative_embedding = "encoder.rel_embeddings";
  names.relative_norm = "encoder.LayerNorm";
  names.q = "encoder.layer.#.attention.self.query_proj";
  names.k = "encoder.layer.#.attention.self.key_proj";
  names.v = "encoder.layer.#.attention.self.value_proj";
  names.classifier_dense = "pooler.dense";
  return names;
}();

constexpr Names kJinaBertNames = [] {
  Names names = kBertNames;
  names.position = names.up = nullptr;
  names.gate_up = "encoder.layer.#.mlp.gated_layers";
  names.down = "encoder.layer.#.mlp.wo";
  names.mlp_sum_norm = "encoder.layer.#.mlp.layernorm";
  return names;
}();

constexpr Names kGteNames{.embedding = "embeddings.word_embeddings",
                          .token_type = "embeddings.token_type_embeddings",
                          .embedding_norm = "embeddings.LayerNorm",
                          .attention_sum_norm = "encoder.layer.#.attn_ln",
                          .qkv = "encoder.layer.#.attention.qkv_proj",
                          .o = "encoder.layer.#.attention.o_proj",
                          .mlp_sum_norm = "encoder.layer.#.mlp_ln",
                          .gate_up = "encoder.layer.#.mlp.up_gate_proj",
                          .down = "encoder.layer.#.mlp.down_proj",
                          .pooler = "pooler.dense",
                          .output = "lm_head.decoder",
                          .output_bias = "lm_head.decoder.bias",
                          .transform = "lm_head.dense",
                          .transform_norm = "lm_head.norm",
                          .classifier = "classifier"};

constexpr Names kEsmNames = [] {
  Names names = kRobertaNames;
  names.position = names.token_type = names.embedding_norm = nullptr;
  names.attention_sum_norm = names.mlp_sum_norm = nullptr;
  names.attention_norm = "encoder.layer.#.attention.LayerNorm";
  names.mlp_norm = "encoder.layer.#.LayerNorm";
  names.final_norm = "encoder.emb_layer_norm_after";
  return names;
}();

constexpr Names kNomicBertNames{.embedding = "embeddings.word_embeddings",
                                .token_type = "embeddings.token_type_embeddings",
                                .embedding_norm = "emb_ln",
                                .attention_sum_norm = "encoder.layers.#.norm1",
                                .qkv = "encoder.layers.#.attn.Wqkv",
                                .o = "encoder.layers.#.attn.out_proj",
                                .mlp_sum_norm = "encoder.layers.#.norm2",
                                .gate = "encoder.layers.#.mlp.fc12",
                                .up = "encoder.layers.#.mlp.fc11",
                                .down = "encoder.layers.#.mlp.fc2",
                                .pooler = "pooler.dense",
                                .output = "cls.predictions.decoder",
                                .output_bias = "cls.predictions.bias|cls.predictions.decoder.bias",
                                .transform = "cls.predictions.transform.dense",
                                .transform_norm = "cls.predictions.transform.layer_norm",
                                .classifier = "classifier"};

// ---- Fields that several families share. ----

constexpr Fields kLlamaFields{.kv_heads = "num_key_value_heads",
                              .head_dim = "head_dim",
                              .eps = "rms_norm_eps",
                              .attention_bias = "attention_bias",
                              .mlp_bias = "mlp_bias"};

constexpr Fields kWindowFields = [] {
  Fields fields = kLlamaFields;
  fields.attention_bias = fields.mlp_bias = nullptr;
  fields.window = "sliding_window";
  return fields;
}();

constexpr Fields kQwen3Fields = [] {
  Fields fields = kWindowFields;
  fields.attention_bias = "attention_bias";
  return fields;
}();

constexpr Fields kGemmaFields = [] {
  Fields fields = kQwen3Fields;
  fields.activation = "hidden_activation";
  return fields;
}();

constexpr Fields kStablelmFields = [] {
  Fields fields;
  fields.kv_heads = "num_key_value_heads";
  fields.qkv_bias = "use_qkv_bias";
  return fields;
}();

// Heads for questions have "transformer.".
constexpr Prefix kModelPrefix[] = {"model.", "transformer.", ""};
// Prefixes of text parts; transformers 4 wrote "language_model.model." and "language_model.".
constexpr Prefix kTextPartPrefixes[] = {"model.language_model.", "language_model.model.",
                                        "model.text_model.",     "model.",
                                        "language_model.",       ""};
constexpr Prefix kBertPrefix[] = {"bert.", ""};
constexpr Prefix kRobertaPrefix[] = {"roberta.", ""};
constexpr Prefix kDistilBertPrefix[] = {"distilbert.", ""};
constexpr Prefix kAlbertPrefix[] = {"albert.", ""};
constexpr Prefix kMpnetPrefix[] = {"mpnet.", ""};
constexpr Prefix kGpt2Prefix[] = {"transformer.", ""};
constexpr Prefix kGptNeoxPrefix[] = {"gpt_neox.", ""};
constexpr Prefix kVitPrefix[] = {"vit.", ""};
constexpr Prefix kDeitPrefix[] = {"deit.", ""};
constexpr Prefix kDinov2Prefix[] = {"dinov2.", "dinov2_with_registers.", ""};
constexpr Prefix kTextTowerPrefix[] = {"text_model.", ""};
constexpr Prefix kVisionTowerPrefix[] = {"vision_model.", ""};
constexpr Prefix kDebertaPrefix[] = {"deberta.", ""};
constexpr Prefix kGtePrefix[] = {"new.", ""};
constexpr Prefix kElectraPrefix[] = {"electra.", ""};
constexpr Prefix kEsmPrefix[] = {"esm.", ""};
constexpr Prefix kNomicBertPrefixes[] = {"nomic_bert.", "bert.", ""};
constexpr Prefix kOptPrefixes[] = {"model.decoder.", "decoder.", ""};

constexpr Setting kEncoderSettings[] = {{"is_decoder", "false"},
                                        {"add_cross_attention", "false"},
                                        {"position_embedding_type", "absolute"}};
// MPNet's code has 32, whatever the configuration says.
constexpr Setting kMpnetSettings[] = {{"is_decoder", "false"},
                                      {"add_cross_attention", "false"},
                                      {"relative_attention_num_buckets", "32"}};
constexpr Setting kGpt2Settings[] = {{"add_cross_attention", "false"}};
constexpr Setting kGemmaSettings[] = {{"use_bidirectional_attention", "false"}};
constexpr Setting kQkNormSettings[] = {{"qk_layernorm", "false"}, {"use_qk_norm", "false"}};
constexpr Setting kBigCodeSettings[] = {{"add_cross_attention", "false"}, {"multi_query", "true"}};
constexpr Setting kBloomSettings[] = {{"apply_residual_connection_post_layernorm", "false"}};
// 350m, which is not read, has both.
constexpr Setting kOptSettings[] = {{"do_layer_norm_before", "true"},
                                    {"_remove_final_layer_norm", "false"},
                                    {"layer_norm_elementwise_affine", "true"},
                                    {"word_embed_proj_dim", "=hidden_size"}};
constexpr Setting kAlbertSettings[] = {{"inner_group_num", "1"},
                                       {"position_embedding_type", "absolute"}};
constexpr Setting kDebertaSettings[] = {{"conv_kernel_size", "0"},
                                        {"embedding_size", "=hidden_size"},
                                        {"pooler_hidden_act", "gelu"},
                                        {"pooler_hidden_size", "=hidden_size"}};
constexpr Setting kJinaBertSettings[] = {{"is_decoder", "false"},
                                         {"add_cross_attention", "false"},
                                         {"feed_forward_type", "geglu"},
                                         {"hidden_act", "gelu"}};
constexpr Setting kGteSettings[] = {{"layer_norm_type", "layer_norm"},
                                    {"logn_attention_scale", "false"},
                                    {"pack_qkv", "true"},
                                    {"position_embedding_type", "rope"}};
constexpr Setting kEsmSettings[] = {{"is_decoder", "false"},
                                    {"add_cross_attention", "false"},
                                    {"position_embedding_type", "rotary"},
                                    {"emb_layer_norm_before", "false"},
                                    {"is_folding_model", "false"}};
constexpr Setting kNomicBertSettings[] = {{"activation_function", "swiglu"},
                                          {"causal", "false"},
                                          {"mlp_fc2_bias", "=mlp_fc1_bias"},
                                          {"moe_every_n_layers", "0"},
                                          {"parallel_block", "false"},
                                          {"prenorm", "false"},
                                          {"rotary_emb_interleaved", "false"},
                                          {"rotary_emb_scale_base", "null"},
                                          {"use_rms_norm", "false"}};
constexpr Setting kVitSettings[] = {{"pooler_act", "tanh"}};

// ---- The families. ----

constexpr Family vit_like(const char* model_type, std::span<const Prefix> prefixes,
                          const Names& names) {
  return {.model_type = model_type,
          .prefixes = prefixes,
          .fields = {.positions = nullptr},
          .names = names,
          .states_before_norm = true,
          .pooling = Pooling::kFirstToken,
          .classifier = Classifier::kFirst,
          .settings = kVitSettings};
}

constexpr Family dinov2_like(const char* model_type, const Names& names, bool antialias) {
  return {.model_type = model_type,
          .prefixes = kDinov2Prefix,
          .fields = {.mlp = nullptr, .positions = nullptr, .mlp_ratio = "mlp_ratio"},
          .defaults = {.eps = 1e-6, .patch = 14},
          .names = names,
          .states_before_norm = true,
          .resizes_positions = true,
          .resizes_with_antialias = antialias,
          .pooling = Pooling::kFirstToken,
          .classifier = Classifier::kFirstAndMean};
}

constexpr Family bert_like(const char* model_type, std::span<const Prefix> prefixes,
                           const Names& names) {
  return {.model_type = model_type,
          .prefixes = prefixes,
          .names = names,
          .classifier = Classifier::kPooler,
          .settings = kEncoderSettings};
}

constexpr Family roberta_like(const char* model_type, std::span<const Prefix> prefixes,
                              const Names& names) {
  Family family = bert_like(model_type, prefixes, names);
  family.positions_after_padding = true;
  family.transform_gelu = true;
  family.classifier = Classifier::kFirstTanh;
  return family;
}

constexpr Family llama_like(const char* model_type, const Fields& fields, const Defaults& defaults,
                            const Names& names) {
  return {.model_type = model_type,
          .prefixes = kModelPrefix,
          .fields = fields,
          .defaults = defaults,
          .names = names,
          .causal = true,
          .rms_norm = true,
          .rope = true,
          .qkv_bias = false,
          .output_bias = false,
          .mlp_bias = false};
}

constexpr Family qwen2_like(const char* model_type, const Defaults& defaults) {
  Family family = llama_like(model_type, kWindowFields, defaults, kLlamaNames);
  family.qkv_bias = true;
  family.windows = Windows::kUpper;
  return family;
}

constexpr Family qwen3_like(const char* model_type, int64_t positions, double theta) {
  Family family = llama_like(model_type, kQwen3Fields,
                             {.vocabulary = 151936,
                              .heads = 32,
                              .width = 4096,
                              .layers = 32,
                              .mlp = 22016,
                              .kv_heads = 32,
                              .head_dim = 128,
                              .positions = positions,
                              .window = 4096,
                              .eps = 1e-6,
                              .theta = theta,
                              .window_pattern = 28,
                              .activation = "silu",
                              .tied = false},
                             kQwen3Names);
  family.windows = Windows::kUpper;
  return family;
}

constexpr Family glm_like(const char* model_type, const Names& names) {
  Family family = llama_like(model_type, kLlamaFields,
                             {.kv_heads = 2,
                              .head_dim = 128,
                              .positions = 131072,
                              .eps = 1.5625e-7,
                              .partial_rotary = 0.5,
                              .activation = "silu",
                              .tied = false},
                             names);
  family.fields.attention_bias = family.fields.mlp_bias = nullptr;
  family.fields.qkv_bias = "attention_bias";
  family.qkv_bias = true;
  family.rope_neighbours = true;
  return family;
}

constexpr Family cohere_like(const char* model_type, double theta) {
  Family family = llama_like(model_type, kLlamaFields,
                             {.positions = 8192,
                              .eps = 1e-5,
                              .theta = theta,
                              .logit_factor = 0.0625,
                              .activation = "silu"},
                             kCohereNames);
  family.fields.eps = "layer_norm_eps";
  family.fields.mlp_bias = nullptr;
  family.fields.logit_factor = "logit_scale";
  family.rms_norm = family.norm_bias = false;
  family.rope_neighbours = true;
  family.parallel = family.one_norm = true;
  family.settings = kQkNormSettings;
  return family;
}

constexpr Family gemma_like(const char* model_type, const Defaults& defaults, const Names& names) {
  Family family = llama_like(model_type, kGemmaFields, defaults, names);
  family.norm_plus_one = true;
  family.scales_embedding = true;
  family.settings = kGemmaSettings;
  return family;
}

// Gemma 2 and 3: the scale is a setting, and scores and logits may have caps.
constexpr Family scaled_gemma_like(const char* model_type, const Defaults& defaults,
                                   const Names& names) {
  Family family = gemma_like(model_type, defaults, names);
  family.fields.scale = "query_pre_attn_scalar";
  family.fields.attention_cap = "attn_logit_softcapping";
  family.fields.logit_cap = "final_logit_softcapping";
  return family;
}

constexpr Family kFamilies[] = {
    bert_like("bert", kBertPrefix, kBertNames),
    roberta_like("roberta", kRobertaPrefix, kRobertaNames),
    roberta_like("xlm-roberta", kRobertaPrefix, kRobertaNames),
    roberta_like("camembert", kRobertaPrefix, kRobertaNames),
    [] {
      Family family = roberta_like("mpnet", kMpnetPrefix, kMpnetNames);
      family.settings = kMpnetSettings;
      return family;
    }(),
    [] {
      Family family = bert_like("electra", kElectraPrefix, kElectraNames);
      family.transform_gelu = true;
      family.classifier = Classifier::kFirstGelu;
      return family;
    }(),
    {.model_type = "deberta-v2",
     .prefixes = kDebertaPrefix,
     .defaults = {.eps = 1e-7, .token_types = 0},
     .names = kDebertaNames,
     .classifier = Classifier::kFirstGelu,
     .settings = kDebertaSettings},
    // GTE and Snowflake's Arctic: type "new" is the name in their files.
    {.model_type = "new",
     .prefixes = kGtePrefix,
     .defaults = {.token_types = 1},
     .names = kGteNames,
     .rope = true,
     .up_first = true,
     .fixed_ntk = true,
     .mlp_bias = false,
     .down_bias = true,
     .classifier = Classifier::kPooler,
     .settings = kGteSettings},
    {.model_type = "esm",
     .prefixes = kEsmPrefix,
     .names = kEsmNames,
     .rope = true,
     .transform_gelu = true,
     .token_dropout = true,
     .classifier = Classifier::kFirstTanh,
     .settings = kEsmSettings},
    [] {
      // Llama that sees both directions.
      Family family = llama_like(
          "eurobert", kLlamaFields,
          {.positions = 8192, .eps = 1e-5, .activation = "silu", .tied = false}, kLlamaNames);
      family.names.classifier = nullptr;
      family.causal = false;
      return family;
    }(),
    {.model_type = "nomic_bert",
     .prefixes = kNomicBertPrefixes,
     .fields = {.head_dim = "head_dim"},
     .defaults = {.theta = 1000.0, .activation = "silu"},
     .names = kNomicBertNames,
     .rope = true,
     .qkv_bias = false,
     .output_bias = false,
     .mlp_bias = false,
     .classifier = Classifier::kPooler},
    {.model_type = "distilbert",
     .prefixes = kDistilBertPrefix,
     .fields = {.width = "dim",
                .layers = "n_layers",
                .heads = "n_heads",
                .mlp = "hidden_dim",
                .eps = nullptr,
                .activation = "activation"},
     .names = kDistilBertNames,
     .classifier = Classifier::kFirstRelu},
    {.model_type = "albert",
     .prefixes = kAlbertPrefix,
     .defaults = {.activation = "gelu_new"},
     .names = kAlbertNames,
     .shares_layers = true,
     .classifier = Classifier::kPooler,
     .settings = kAlbertSettings},
    {.model_type = "gpt2",
     .prefixes = kGpt2Prefix,
     .fields = {.width = "n_embd",
                .layers = "n_layer",
                .heads = "n_head",
                .mlp = "n_inner",
                .positions = "n_positions",
                .eps = "layer_norm_epsilon",
                .activation = "activation_function",
                .scales = "scale_attn_weights",
                .scale_by_layer = "scale_attn_by_inverse_layer_idx"},
     .defaults = {.positions = 1024, .eps = 1e-5, .activation = "gelu_new"},
     .names = kGpt2Names,
     .causal = true,
     .transposed = true,
     .settings = kGpt2Settings},
    {.model_type = "gpt_neox",
     .prefixes = kGptNeoxPrefix,
     .fields = {.theta = "rotary_emb_base",
                .partial_rotary = "rotary_pct",
                .attention_bias = "attention_bias"},
     .defaults = {.positions = 2048, .eps = 1e-5, .partial_rotary = 0.25, .tied = false},
     .names = kGptNeoxNames,
     .causal = true,
     .rope = true,
     .interleaved_qkv = true,
     .parallel = true,
     .parallel_field = "use_parallel_residual"},
    {.model_type = "gpt_neo",
     .prefixes = kGpt2Prefix,
     .fields = {.layers = "num_layers",
                .heads = "num_heads",
                .eps = "layer_norm_epsilon",
                .activation = "activation_function",
                .window = "window_size"},
     .defaults = {.positions = 2048, .window = 256, .eps = 1e-5, .activation = "gelu_new"},
     .names = kGptNeoNames,
     .causal = true,
     .windows = Windows::kListed,
     .qkv_bias = false,
     .unit_scale = true},
    {.model_type = "gpt_bigcode",
     .prefixes = kGpt2Prefix,
     .fields = {.width = "n_embd",
                .layers = "n_layer",
                .heads = "n_head",
                .mlp = "n_inner",
                .positions = "n_positions",
                .eps = "layer_norm_epsilon",
                .activation = "activation_function",
                .scales = "scale_attn_weights"},
     .defaults = {.kv_heads = 1, .positions = 1024, .eps = 1e-5, .activation = "gelu_pytorch_tanh"},
     .names = kGpt2Names,
     .causal = true,
     .settings = kBigCodeSettings},
    {.model_type = "bloom",
     .prefixes = kGpt2Prefix,
     .fields = {.width = "hidden_size|n_embed",
                .layers = "n_layer|num_hidden_layers",
                .heads = "n_head|num_attention_heads",
                .mlp = nullptr,
                .eps = "layer_norm_epsilon",
                .activation = nullptr},
     .defaults = {.eps = 1e-5, .activation = "gelu_pytorch_tanh"},
     .names = kBloomNames,
     .causal = true,
     .alibi = true,
     .interleaved_qkv = true,
     .settings = kBloomSettings},
    {.model_type = "gptj",
     .prefixes = kGpt2Prefix,
     .fields = {.width = "n_embd",
                .layers = "n_layer",
                .heads = "n_head",
                .mlp = "n_inner",
                .positions = "n_positions",
                .eps = "layer_norm_epsilon",
                .activation = "activation_function",
                .rotary_dim = "rotary_dim"},
     .defaults = {.positions = 2048, .eps = 1e-5, .activation = "gelu_new", .tied = false},
     .names = kGptJNames,
     .causal = true,
     .rope = true,
     .rope_neighbours = true,
     .qkv_bias = false,
     .output_bias = false,
     .parallel = true,
     .one_norm = true,
     .logit_bias = true},
    {.model_type = "opt",
     .prefixes = kOptPrefixes,
     .fields = {.mlp = "ffn_dim",
                .eps = nullptr,
                .activation = "activation_function",
                .attention_bias = "enable_bias",
                .mlp_bias = "enable_bias"},
     .defaults = {.positions = 2048, .eps = 1e-5, .activation = "relu"},
     .names = kOptNames,
     .causal = true,
     .first_position = 2,
     .settings = kOptSettings},
    {.model_type = "phi",
     .prefixes = kModelPrefix,
     .fields = {.kv_heads = "num_key_value_heads"},
     .defaults = {.positions = 2048,
                  .eps = 1e-5,
                  .partial_rotary = 0.5,
                  .activation = "gelu_new",
                  .tied = false},
     .names = kPhiNames,
     .causal = true,
     .rope = true,
     .parallel = true,
     .one_norm = true,
     .logit_bias = true,
     .settings = kQkNormSettings},
    llama_like("llama", kLlamaFields,
               {.vocabulary = 32000,
                .heads = 32,
                .width = 4096,
                .layers = 32,
                .mlp = 11008,
                .positions = 2048,
                .eps = 1e-6,
                .activation = "silu",
                .tied = false},
               kLlamaNames),
    llama_like("mistral", kWindowFields,
               {.vocabulary = 32000,
                .heads = 32,
                .width = 4096,
                .layers = 32,
                .mlp = 14336,
                .kv_heads = 8,
                .positions = 131072,
                .window = 4096,
                .eps = 1e-6,
                .activation = "silu",
                .tied = false},
               kLlamaNames),
    qwen2_like("qwen2", {.vocabulary = 151936,
                         .heads = 32,
                         .width = 4096,
                         .layers = 32,
                         .mlp = 22016,
                         .kv_heads = 32,
                         .positions = 32768,
                         .window = 4096,
                         .eps = 1e-6,
                         .window_pattern = 28,
                         .activation = "silu",
                         .tied = false}),
    qwen2_like("qwen2_vl_text", {.vocabulary = 152064,
                                 .heads = 64,
                                 .width = 8192,
                                 .layers = 80,
                                 .mlp = 29568,
                                 .kv_heads = 8,
                                 .positions = 32768,
                                 .window = 4096,
                                 .eps = 1e-5,
                                 .theta = 1000000.0,
                                 .window_pattern = 80,
                                 .activation = "silu",
                                 .tied = false}),
    qwen3_like("qwen3", 32768, 10000.0),
    qwen3_like("qwen3_vl_text", 128000, 500000.0),
    [] {
      Fields fields = kLlamaFields;
      fields.window = "sliding_window";
      Family family = llama_like("smollm3", fields,
                                 {.kv_heads = 4,
                                  .positions = 32768,
                                  .eps = 1e-6,
                                  .theta = 2000000.0,
                                  .activation = "silu"},
                                 kLlamaNames);
      family.windows = Windows::kWithoutRope;
      return family;
    }(),
    [] {
      Family family = llama_like(
          "olmo2", kLlamaFields,
          {.positions = 2048, .eps = 1e-5, .activation = "silu", .tied = false}, kOlmo2Names);
      family.fields.mlp_bias = nullptr;
      family.norm_whole_qk = true;
      return family;
    }(),
    [] {
      // Its norms have no parameters.
      Family family = llama_like(
          "olmo", kLlamaFields,
          {.positions = 2048, .eps = 1e-5, .activation = "silu", .tied = false}, kLlamaNames);
      family.fields.mlp_bias = family.fields.eps = nullptr;
      family.fields.qkv_cap = "clip_qkv";
      family.rms_norm = family.norm_parameters = false;
      return family;
    }(),
    [] {
      Family family = llama_like("olmo3", kQwen3Fields,
                                 {.positions = 2048,
                                  .window = 4096,
                                  .eps = 1e-5,
                                  .window_pattern = 4,
                                  .activation = "silu",
                                  .tied = false},
                                 kOlmo2Names);
      family.norm_whole_qk = true;
      family.windows = Windows::kPattern;
      // The models were trained so, and transformers 4.57 and llama.cpp compute it. transformers
      // 5.12 scales all layers, which its pull request 45945 reports as a mistake.
      family.unscaled_windows = true;
      return family;
    }(),
    [] {
      Family family = llama_like(
          "granite", kLlamaFields,
          {.positions = 2048, .eps = 1e-6, .activation = "silu", .tied = false}, kLlamaNames);
      family.fields.scale_factor = "attention_multiplier";
      family.fields.embedding_factor = "embedding_multiplier";
      family.fields.residual_factor = "residual_multiplier";
      family.fields.logit_divisor = "logits_scaling";
      return family;
    }(),
    [] {
      Family family = llama_like("stablelm", kStablelmFields,
                                 {.kv_heads = 32,
                                  .positions = 4096,
                                  .eps = 1e-5,
                                  .partial_rotary = 0.25,
                                  .activation = "silu",
                                  .tied = false},
                                 kLlamaNames);
      family.rms_norm = false;
      family.parallel_field = "use_parallel_residual";
      family.one_norm = true;
      family.settings = kQkNormSettings;
      return family;
    }(),
    glm_like("glm", kGlmNames),
    glm_like("glm4", kGlm4Names),
    cohere_like("cohere", 500000.0),
    [] {
      Family family = cohere_like("cohere2", 10000.0);
      family.fields.window = "sliding_window";
      family.defaults.window = 4096;
      family.defaults.window_pattern = 4;
      family.windows = Windows::kPattern;
      family.rope_in_windows = true;
      return family;
    }(),
    [] {
      Family family = llama_like("ernie4_5", kLlamaFields,
                                 {.kv_heads = 2,
                                  .head_dim = 128,
                                  .positions = 131072,
                                  .eps = 1e-5,
                                  .theta = 500000.0,
                                  .activation = "silu"},
                                 kLlamaNames);
      family.fields.attention_bias = family.fields.mlp_bias = "use_bias";
      family.rope_neighbours = true;
      return family;
    }(),
    [] {
      Family family = llama_like("helium", kLlamaFields,
                                 {.kv_heads = 20,
                                  .head_dim = 128,
                                  .positions = 4096,
                                  .eps = 1e-8,
                                  .theta = 100000.0,
                                  .activation = "silu",
                                  .tied = false},
                                 kLlamaNames);
      family.fields.attention_bias = nullptr;
      family.fields.qkv_bias = "attention_bias";
      family.rope_neighbours = true;
      return family;
    }(),
    [] {
      Family family = llama_like("seed_oss", kLlamaFields,
                                 {.kv_heads = 8,
                                  .head_dim = 128,
                                  .positions = 524288,
                                  .eps = 1e-6,
                                  .activation = "silu",
                                  .tied = false},
                                 kLlamaNames);
      family.fields.output_bias = "attention_out_bias";
      family.qkv_bias = true;
      return family;
    }(),
    [] {
      // Queries and keys are normalized before RoPE, which is in layers with windows only.
      Family family = llama_like("exaone4", kWindowFields,
                                 {.kv_heads = 32,
                                  .positions = 2048,
                                  .window = 4096,
                                  .eps = 1e-5,
                                  .window_pattern = 4,
                                  .activation = "silu",
                                  .tied = false},
                                 kOlmo2Names);
      family.windows = Windows::kPattern;
      family.rope_in_windows = true;
      return family;
    }(),
    [] {
      Family family = llama_like(
          "hunyuan_v1_dense", kQwen3Fields,
          {.positions = 2048, .eps = 1e-5, .activation = "silu", .tied = false}, kHunyuanNames);
      family.fields.window = nullptr;
      family.norm_after_rope = family.dynamic_alpha = true;
      return family;
    }(),
    [] {
      Family family = llama_like(
          "nanochat", kLlamaFields,
          {.positions = 2048, .eps = 1e-6, .logit_cap = 15.0, .activation = "relu2", .tied = false},
          kNanochatNames);
      family.fields.mlp_bias = nullptr;
      family.fields.logit_cap = "final_logit_softcapping";
      family.norm_parameters = false;
      family.norm_after_rope = family.dynamic_alpha = family.rope_reversed = true;
      return family;
    }(),
    llama_like("arcee", kLlamaFields,
               {.positions = 4096, .eps = 1e-5, .activation = "relu2", .tied = false}, kArceeNames),
    llama_like("phi3", kWindowFields,
               {.positions = 4096, .eps = 1e-5, .activation = "silu", .tied = false}, kPhi3Names),
    [] {
      Fields fields = kWindowFields;
      fields.eps = "norm_epsilon";
      fields.attention_bias = fields.mlp_bias = "use_bias";
      Family family = llama_like(
          "starcoder2", fields,
          {.kv_heads = 2, .positions = 4096, .eps = 1e-5, .activation = "gelu_pytorch_tanh"},
          kStarcoder2Names);
      family.rms_norm = false;
      family.qkv_bias = family.output_bias = family.mlp_bias = true;
      return family;
    }(),
    [] {
      Family family = gemma_like("gemma",
                                 {.kv_heads = 16,
                                  .head_dim = 256,
                                  .positions = 8192,
                                  .eps = 1e-6,
                                  .activation = "gelu_pytorch_tanh"},
                                 kLlamaNames);
      family.fields.window = nullptr;
      return family;
    }(),
    [] {
      Family family = scaled_gemma_like("gemma2",
                                        {.kv_heads = 4,
                                         .head_dim = 256,
                                         .positions = 8192,
                                         .window = 4096,
                                         .eps = 1e-6,
                                         .attention_cap = 50.0,
                                         .logit_cap = 30.0,
                                         .activation = "gelu_pytorch_tanh"},
                                        kGemma2Names);
      family.windows = Windows::kAlternating;
      return family;
    }(),
    [] {
      Family family = scaled_gemma_like("gemma3_text",
                                        {.vocabulary = 262208,
                                         .heads = 8,
                                         .width = 2304,
                                         .layers = 26,
                                         .mlp = 9216,
                                         .kv_heads = 4,
                                         .head_dim = 256,
                                         .positions = 131072,
                                         .window = 4096,
                                         .eps = 1e-6,
                                         .theta = 1000000.0,
                                         .activation = "gelu_pytorch_tanh"},
                                        kGemma3Names);
      // transformers reads Gemma 2's cap of scores here, but does not use it.
      family.fields.attention_cap = nullptr;
      family.both_sides_field = "use_bidirectional_attention";
      family.windows = Windows::kPattern;
      family.rope_of_windows = true;
      family.settings = {};
      return family;
    }(),
    kT5,
    kMt5,
    kUmt5,
    kBart,
    kMbart,
    kMarian,
    kM2m100,
    vit_like("vit", kVitPrefix, kVitNames),
    vit_like("deit", kDeitPrefix, kDeitNames),
    dinov2_like("dinov2", kDinov2Names, false),
    dinov2_like("dinov2_with_registers", kDinov2RegistersNames, true),
    {.model_type = "clip_text_model",
     .prefixes = kTextTowerPrefix,
     .defaults = {.vocabulary = 49408,
                  .heads = 8,
                  .width = 512,
                  .layers = 12,
                  .mlp = 2048,
                  .positions = 77,
                  .eps = 1e-5,
                  .activation = "quick_gelu"},
     .names = kClipTextNames,
     .causal = true,
     .pools_end = true,
     .pooling = Pooling::kLastToken},
    {.model_type = "clip_vision_model",
     .prefixes = kVisionTowerPrefix,
     .fields = {.positions = nullptr},
     .defaults = {.heads = 12,
                  .width = 768,
                  .layers = 12,
                  .mlp = 3072,
                  .eps = 1e-5,
                  .patch = 32,
                  .activation = "quick_gelu"},
     .names = kClipVisionNames,
     .states_before_norm = true,
     .patch_bias = false,
     .pooling = Pooling::kFirstToken},
    {.model_type = "siglip_text_model",
     .prefixes = kTextTowerPrefix,
     .defaults = {.vocabulary = 32000,
                  .heads = 12,
                  .width = 768,
                  .layers = 12,
                  .mlp = 3072,
                  .positions = 64,
                  .eps = 1e-6,
                  .activation = "gelu_pytorch_tanh"},
     .names = kSiglipTextNames,
     .pooling = Pooling::kLastToken},
    {.model_type = "siglip_vision_model",
     .prefixes = kVisionTowerPrefix,
     .fields = {.positions = nullptr},
     .defaults = {.heads = 12,
                  .width = 768,
                  .layers = 12,
                  .mlp = 3072,
                  .eps = 1e-6,
                  .activation = "gelu_pytorch_tanh"},
     .names = kSiglipVisionNames,
     .states_before_norm = true},
    kModernBert,
};

constexpr Family kNomicBertRemote{.model_type = "nomic_bert",
                                  .prefixes = kNomicBertPrefixes,
                                  .fields = {.width = "n_embd",
                                             .layers = "n_layer",
                                             .heads = "n_head",
                                             .mlp = "n_inner",
                                             .eps = "layer_norm_epsilon",
                                             .activation = "activation_function",
                                             .theta = "rotary_emb_base",
                                             .partial_rotary = "rotary_emb_fraction",
                                             .attention_bias = "qkv_proj_bias",
                                             .mlp_bias = "mlp_fc1_bias",
                                             .dynamic_factor = "rotary_scaling_factor"},
                                  .defaults = {.eps = 1e-5},
                                  .names = kNomicBertNames,
                                  .rope = true,
                                  .classifier = Classifier::kPooler,
                                  .settings = kNomicBertSettings};

constexpr Family kJinaBert = [] {
  Family family = bert_like("bert", kBertPrefix, kJinaBertNames);
  family.alibi = true;
  family.mlp_bias = false;
  family.down_bias = true;
  family.settings = kJinaBertSettings;
  return family;
}();

constexpr TextPart kTextParts[] = {{"gemma3", "gemma3_text"},
                                   {"qwen2_vl", "qwen2_vl_text"},
                                   {"qwen2_5_vl", "qwen2_vl_text"},
                                   {"qwen2_5_vl_text", "qwen2_vl_text"},
                                   {"qwen3_vl", "qwen3_vl_text"},
                                   {"mistral3", "mistral"},
                                   {"idefics3", "llama"},
                                   {"smolvlm", "llama"},
                                   {"llava", "llama"},
                                   {"llava_next", "llama"}};

constexpr Towers kTowers[] = {{"clip", "clip_text_model", "clip_vision_model"},
                              {"siglip", "siglip_text_model", "siglip_vision_model"}};

template <class Row>
const Row* find(std::span<const Row> rows, std::string_view model_type) {
  for (const Row& row : rows) {
    if (model_type == row.model_type) return &row;
  }
  return nullptr;
}

}  // namespace

const Family* find_family(std::string_view model_type) {
  return find<Family>(kFamilies, model_type);
}

const TextPart* find_text_part(std::string_view model_type) {
  return find<TextPart>(kTextParts, model_type);
}

const Towers* find_towers(std::string_view model_type) { return find<Towers>(kTowers, model_type); }

std::span<const Family> families() { return kFamilies; }
const Family& nomic_bert_of_remote_code() { return kNomicBertRemote; }
const Family& jina_bert() { return kJinaBert; }
std::span<const TextPart> text_parts() { return kTextParts; }
std::span<const Towers> towers() { return kTowers; }
std::span<const Prefix> text_part_prefixes() { return kTextPartPrefixes; }

}  // namespace multihead::models
