// The numbers of a model that the loader and the runner need: its configuration, with the rules of
// its family applied.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/family.h"
#include "models/rope_frequencies.h"
#include "multihead/elementwise.h"
#include "multihead/models.h"

namespace multihead::models {

struct LayerPlan {
  int64_t weights = 0;  // index of the layer's parameters, which layers may share
  int64_t window = 0;   // number of tokens that a token sees with itself, to one side; 0: all
  int rope = -1;        // index of the frequencies; -1: none
  float scale = 0.0F;   // of the scores
};

struct Architecture {
  const Family* family = nullptr;
  std::string model_type;  // as config.json has it
  bool text_part = false;
  int64_t width = 0, embedding_width = 0, mlp = 0, vocabulary = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t positions = 0;       // rows of the position embedding; 0: none
  int64_t first_position = 0;  // of the first token
  int64_t token_types = 0;
  int64_t buckets = 0, bucket_distance = 0;  // of relative positions; 0: none
  int64_t relative_span = 0;                 // largest bucket of DeBERTa's distances; 0: none
  bool relative_norm = false;
  int64_t padding_id = -1;     // pad_token_id
  int64_t mask_id = -1;        // with token_dropout
  int64_t parameter_sets = 0;  // different LayerPlan::weights
  int64_t image_size = 0, patch_size = 0, channels = 0;
  int64_t first_tokens = 0;  // before the patches
  int64_t trained_size = 0;  // of images; image_size unless positions are interpolated
  bool has_towers = false;   // this is one of them
  int64_t labels = 0;        // named by the configuration; 0: the matrix decides
  bool causal = false;
  bool window_both_sides = false;
  bool norm_bias = true, transform_bias = true;
  bool classifies_mean = false;  // of Classifier::kTransform
  float eps = 0.0F;
  float embedding_scale = 1.0F;
  float residual_factor = 1.0F;                                  // of what attention and MLP add
  float logit_factor = 1.0F;                                     // before the cap
  float attention_cap = 0.0F, logit_cap = 0.0F, qkv_cap = 0.0F;  // 0: none
  Activation activation = Activation::kGelu;
  bool gated = false;
  bool squares = false;            // the MLP's activation is relu(x)^2
  float activation_factor = 1.0F;  // the MLP's activation is f(factor * x) / factor
  bool from_gguf = false, neighbour_pairs = false;   // see models/gguf_settings.h
  bool transposed = false, interleaved_qkv = false;  // the family's, but not in GGUF files
  bool parallel = false, one_norm = false;
  bool tied = true;
  bool scales_logits = false;  // see Family::scales_tied_logits
  bool qkv_bias = false, output_bias = false, mlp_bias = false, output_head_bias = false;
  std::vector<float> alibi_slopes;  // of each head; empty: none
  std::string architecture;         // class that the file was written for, or empty
  std::vector<LayerPlan> layers;
  std::vector<RopeFrequencies> ropes;
  std::vector<int32_t> end_ids;
  // Of decoders with an encoder.
  int32_t decoder_start = -1;
  TokenRules rules;  // of causal models, as the next one
  GenerationDefaults generation;

  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
  // Number of tokens of an image.
  int64_t image_tokens() const {
    const int64_t side = patch_size == 0 ? 0 : image_size / patch_size;
    return side * side + first_tokens;
  }
};

// Reads the numbers of a model, and of the encoder of an encoder–decoder model, which has no family
// else. `images`: reads the tower of images of a model with two. Errors: kOption, naming the
// setting.
Status read_architecture(const Config& config, bool images, Architecture& architecture,
                         Architecture& encoder);

}  // namespace multihead::models
