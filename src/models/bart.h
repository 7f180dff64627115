// BART (arXiv:1910.13461) and its relatives: mBART (arXiv:2001.08210), Marian (arXiv:1804.00344)
// and M2M100 (arXiv:2010.11125). They differ in where the norms are and in the table of positions.
#pragma once

#include <string_view>

#include "models/family.h"

namespace multihead::models {

inline constexpr std::string_view kBartPrefixes[] = {"model.", ""};

inline constexpr Fields kBartEncoderFields{.width = "d_model",
                                           .layers = "encoder_layers",
                                           .heads = "encoder_attention_heads",
                                           .mlp = "encoder_ffn_dim",
                                           .eps = nullptr,
                                           .activation = "activation_function",
                                           .scale_embedding = "scale_embedding"};

inline constexpr Fields kBartDecoderFields = [] {
  Fields fields = kBartEncoderFields;
  fields.layers = "decoder_layers";
  fields.heads = "decoder_attention_heads";
  fields.mlp = "decoder_ffn_dim";
  fields.vocabulary = "decoder_vocab_size";  // of Marian
  return fields;
}();

inline constexpr Names kBartEncoderNames{
    .embedding = "shared|encoder.embed_tokens",
    .own_embedding = "encoder.embed_tokens",
    .position = "encoder.embed_positions",
    .embedding_norm = "encoder.layernorm_embedding",
    .attention_sum_norm = "encoder.layers.#.self_attn_layer_norm",
    .q = "encoder.layers.#.self_attn.q_proj",
    .k = "encoder.layers.#.self_attn.k_proj",
    .v = "encoder.layers.#.self_attn.v_proj",
    .o = "encoder.layers.#.self_attn.out_proj",
    .mlp_sum_norm = "encoder.layers.#.final_layer_norm",
    .up = "encoder.layers.#.fc1",
    .down = "encoder.layers.#.fc2"};

inline constexpr Names kBartDecoderNames{
    .embedding = "shared|decoder.embed_tokens",
    .own_embedding = "decoder.embed_tokens",
    .position = "decoder.embed_positions",
    .embedding_norm = "decoder.layernorm_embedding",
    .attention_sum_norm = "decoder.layers.#.self_attn_layer_norm",
    .q = "decoder.layers.#.self_attn.q_proj",
    .k = "decoder.layers.#.self_attn.k_proj",
    .v = "decoder.layers.#.self_attn.v_proj",
    .o = "decoder.layers.#.self_attn.out_proj",
    .cross_sum_norm = "decoder.layers.#.encoder_attn_layer_norm",
    .cross_q = "decoder.layers.#.encoder_attn.q_proj",
    .cross_k = "decoder.layers.#.encoder_attn.k_proj",
    .cross_v = "decoder.layers.#.encoder_attn.v_proj",
    .cross_o = "decoder.layers.#.encoder_attn.out_proj",
    .mlp_sum_norm = "decoder.layers.#.final_layer_norm",
    .up = "decoder.layers.#.fc1",
    .down = "decoder.layers.#.fc2",
    .output = "lm_head",
    .logits_bias = "final_logits_bias"};

// The norms before attention and MLP, and one after all layers.
constexpr Names norms_first(Names names, const char* final_norm) {
  names.attention_norm = names.attention_sum_norm;
  names.cross_norm = names.cross_sum_norm;
  names.mlp_norm = names.mlp_sum_norm;
  names.attention_sum_norm = names.cross_sum_norm = names.mlp_sum_norm = nullptr;
  names.final_norm = final_norm;
  return names;
}

// Positions that the files need not have, and no norm of the embeddings.
constexpr Names without_embedding_norm(Names names) {
  names.embedding_norm = nullptr;
  return names;
}

constexpr Family bart_stack(const char* model_type, const Names& names) {
  return {.model_type = model_type,
          .prefixes = kBartPrefixes,
          .fields = kBartEncoderFields,
          .defaults = {.positions = 1024, .eps = 1e-5, .activation = "gelu"},
          .names = names,
          .first_position = 2};
}

constexpr Family marian_stack(const Names& names) {
  Family family = bart_stack("marian", without_embedding_norm(names));
  family.first_position = 0;
  family.sinusoids = Sinusoids::kOfWidth;
  return family;
}

constexpr Family m2m100_stack(const Names& names) {
  Family family = bart_stack("m2m_100", without_embedding_norm(names));
  family.defaults.activation = "relu";
  family.sinusoids = Sinusoids::kToOne;
  family.positions_after_padding = true;
  return family;
}

// The decoder of a family whose encoder is like it.
constexpr Family with_encoder(Family family, const Family& encoder) {
  family.encoder = &encoder;
  family.fields = kBartDecoderFields;
  family.causal = true;
  return family;
}

inline constexpr Family kBartEncoder = bart_stack("bart", kBartEncoderNames);
inline constexpr Family kBart = with_encoder(bart_stack("bart", kBartDecoderNames), kBartEncoder);
inline constexpr Family kMbartEncoder =
    bart_stack("mbart", norms_first(kBartEncoderNames, "encoder.layer_norm"));
inline constexpr Family kMbart = with_encoder(
    bart_stack("mbart", norms_first(kBartDecoderNames, "decoder.layer_norm")), kMbartEncoder);
inline constexpr Family kMarianEncoder = marian_stack(kBartEncoderNames);
inline constexpr Family kMarian = with_encoder(marian_stack(kBartDecoderNames), kMarianEncoder);
inline constexpr Family kM2m100Encoder =
    m2m100_stack(norms_first(kBartEncoderNames, "encoder.layer_norm"));
inline constexpr Family kM2m100 = with_encoder(
    m2m100_stack(norms_first(kBartDecoderNames, "decoder.layer_norm")), kM2m100Encoder);

}  // namespace multihead::models
