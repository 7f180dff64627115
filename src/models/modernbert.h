// ModernBERT (arXiv:2412.13663): an encoder with rotary positions, GeGLU, LayerNorms without bias,
// none of them before the first attention, and two of three layers with windows to both sides and a
// rotary base of their own.
#pragma once

#include <string_view>

#include "models/family.h"

namespace multihead::models {

inline constexpr std::string_view kModernBertPrefixes[] = {"model.", ""};

inline constexpr Setting kModernBertSettings[] = {{"classifier_activation", "gelu"}};

inline constexpr Family kModernBert{.model_type = "modernbert",
                                    .prefixes = kModernBertPrefixes,
                                    .fields = {.eps = "norm_eps",
                                               .activation = "hidden_activation",
                                               .window = "local_attention",
                                               .theta = "global_rope_theta",
                                               .local_theta = "local_rope_theta",
                                               .attention_bias = "attention_bias",
                                               .mlp_bias = "mlp_bias",
                                               .norm_bias = "norm_bias",
                                               .transform_bias = "classifier_bias"},
                                    .defaults = {.positions = 8192,
                                                 .window = 128,
                                                 .eps = 1e-5,
                                                 .theta = 160000.0,
                                                 .activation = "gelu"},
                                    .names = {.embedding = "embeddings.tok_embeddings",
                                              .embedding_norm = "embeddings.norm",
                                              .attention_norm = "layers.#.attn_norm",
                                              .qkv = "layers.#.attn.Wqkv",
                                              .o = "layers.#.attn.Wo",
                                              .mlp_norm = "layers.#.mlp_norm",
                                              .gate_up = "layers.#.mlp.Wi",
                                              .down = "layers.#.mlp.Wo",
                                              .final_norm = "final_norm",
                                              .output = "decoder",
                                              .output_bias = "decoder.bias",
                                              .transform = "head.dense",
                                              .transform_norm = "head.norm",
                                              .classifier = "classifier"},
                                    .norms_first_attention = false,
                                    .rope = true,
                                    .rope_of_windows = true,
                                    .windows = Windows::kBetweenFull,
                                    .window_both_sides = true,
                                    .qkv_bias = false,
                                    .output_bias = false,
                                    .mlp_bias = false,
                                    .transform_gelu = true,
                                    .classifier = Classifier::kTransform,
                                    .settings = kModernBertSettings};

}  // namespace multihead::models
