// T5 (arXiv:1910.10683), mT5 and UMT5 (arXiv:2304.09151): RMS norms, no biases, scores without a
// scale, and relative positions in buckets, of one table for each stack, in UMT5 for each layer.
#pragma once

#include <string_view>

#include "models/family.h"

namespace multihead::models {

inline constexpr std::string_view kT5Prefixes[] = {""};

inline constexpr Names kT5EncoderNames{
    .embedding = "shared|encoder.embed_tokens",
    .relative_bias = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
    .attention_norm = "encoder.block.#.layer.0.layer_norm",
    .q = "encoder.block.#.layer.0.SelfAttention.q",
    .k = "encoder.block.#.layer.0.SelfAttention.k",
    .v = "encoder.block.#.layer.0.SelfAttention.v",
    .o = "encoder.block.#.layer.0.SelfAttention.o",
    .mlp_norm = "encoder.block.#.layer.1.layer_norm",
    // A gate only if feed_forward_proj says so.
    .gate = "encoder.block.#.layer.1.DenseReluDense.wi_0",
    .up = "encoder.block.#.layer.1.DenseReluDense.wi_1|encoder.block.#.layer.1.DenseReluDense.wi",
    .down = "encoder.block.#.layer.1.DenseReluDense.wo",
    .final_norm = "encoder.final_layer_norm"};

inline constexpr Names kT5DecoderNames{
    .embedding = "shared|decoder.embed_tokens",
    .relative_bias = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias",
    .attention_norm = "decoder.block.#.layer.0.layer_norm",
    .q = "decoder.block.#.layer.0.SelfAttention.q",
    .k = "decoder.block.#.layer.0.SelfAttention.k",
    .v = "decoder.block.#.layer.0.SelfAttention.v",
    .o = "decoder.block.#.layer.0.SelfAttention.o",
    .cross_norm = "decoder.block.#.layer.1.layer_norm",
    .cross_q = "decoder.block.#.layer.1.EncDecAttention.q",
    .cross_k = "decoder.block.#.layer.1.EncDecAttention.k",
    .cross_v = "decoder.block.#.layer.1.EncDecAttention.v",
    .cross_o = "decoder.block.#.layer.1.EncDecAttention.o",
    .mlp_norm = "decoder.block.#.layer.2.layer_norm",
    .gate = "decoder.block.#.layer.2.DenseReluDense.wi_0",
    .up = "decoder.block.#.layer.2.DenseReluDense.wi_1|decoder.block.#.layer.2.DenseReluDense.wi",
    .down = "decoder.block.#.layer.2.DenseReluDense.wo",
    .final_norm = "decoder.final_layer_norm",
    .output = "lm_head"};

constexpr Names with_bias_of_layers(Names names, const char* bias) {
  names.relative_bias = nullptr;
  names.layer_relative_bias = bias;
  return names;
}

constexpr Family t5_stack(const char* model_type, const char* activation, const Names& names) {
  return {.model_type = model_type,
          .prefixes = kT5Prefixes,
          .fields = {.width = "d_model",
                     .layers = "num_layers",
                     .heads = "num_heads",
                     .head_dim = "d_kv",
                     .mlp = "d_ff",
                     .positions = nullptr,
                     .eps = "layer_norm_epsilon",
                     .activation = "feed_forward_proj"},
          .defaults = {.head_dim = 64, .eps = 1e-6, .activation = activation},
          .names = names,
          .rms_norm = true,
          .qkv_bias = false,
          .output_bias = false,
          .mlp_bias = false,
          .unit_scale = true};
}

constexpr Family t5_like(const char* model_type, const char* activation, const Family& encoder,
                         bool scales, const Names& names = kT5DecoderNames) {
  Family family = t5_stack(model_type, activation, names);
  family.encoder = &encoder;
  family.fields.layers = "num_decoder_layers";
  family.causal = true;
  family.tied_by_files = true;
  family.scales_tied_logits = scales;
  return family;
}

inline constexpr Family kT5Encoder = t5_stack("t5", "relu", kT5EncoderNames);
inline constexpr Family kMt5Encoder = t5_stack("mt5", "gated-gelu", kT5EncoderNames);
inline constexpr Family kT5 = t5_like("t5", "relu", kT5Encoder, true);
inline constexpr Family kMt5 = t5_like("mt5", "gated-gelu", kMt5Encoder, false);
inline constexpr Family kUmt5Encoder =
    t5_stack("umt5", "gated-gelu",
             with_bias_of_layers(kT5EncoderNames,
                                 "encoder.block.#.layer.0.SelfAttention.relative_attention_bias"));
// transformers 5.12 scales the logits of every UMT5. Its files say tie_word_embeddings: false, by
// which earlier versions do not, and as the models were trained.
inline constexpr Family kUmt5 =
    t5_like("umt5", "gated-gelu", kUmt5Encoder, true,
            with_bias_of_layers(kT5DecoderNames,
                                "decoder.block.#.layer.0.SelfAttention.relative_attention_bias"));

}  // namespace multihead::models
