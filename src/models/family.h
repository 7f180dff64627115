// A family of models is a row of a table. The row tells the names of its settings and parameters,
// and the options of its blocks. Definitions: the transformers library,
// models/NAME/modeling_NAME.py.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "multihead/elementwise.h"
#include "multihead/models.h"

namespace multihead::models {

// Names of fields of config.json; null if the family does not have the field. Width, layers and
// heads may have several names, separated by '|'.
struct Fields {
  const char* width = "hidden_size";
  const char* layers = "num_hidden_layers";
  const char* heads = "num_attention_heads";
  const char* kv_heads = nullptr;
  const char* head_dim = nullptr;
  const char* mlp = "intermediate_size";
  const char* vocabulary = "vocab_size";  // where it is not there, vocab_size
  const char* positions = "max_position_embeddings";
  const char* eps = "layer_norm_eps";
  const char* activation = "hidden_act";
  const char* window = nullptr;
  const char* theta = "rope_theta";
  const char* local_theta = "rope_local_base_freq";  // of layers with windows, if theirs differs
  const char* partial_rotary = "partial_rotary_factor";
  const char* attention_bias = nullptr;  // a flag: biases of q, k, v and of the output projection
  const char* qkv_bias = nullptr;        // likewise of q, k and v only
  const char* output_bias = nullptr;     // likewise of the output projection only
  const char* mlp_bias = nullptr;
  const char* norm_bias = nullptr;        // a flag, false by default: LayerNorms have biases
  const char* transform_bias = nullptr;   // likewise: Names::transform has one
  const char* scale = nullptr;            // the scale of scores is 1 / sqrt of this field
  const char* scale_factor = nullptr;     // the scale itself
  const char* scales = nullptr;           // a flag: false is a scale of 1
  const char* scale_embedding = nullptr;  // a flag, false by default: as Family::scales_embedding
  const char* scale_by_layer = nullptr;   // a flag: the scale of layer i is divided by i + 1
  const char* attention_cap = nullptr;
  const char* logit_cap = nullptr;
  const char* qkv_cap = nullptr;           // q, k and v are clamped to plus and minus this
  const char* embedding_factor = nullptr;  // of embeddings
  const char* residual_factor = nullptr;   // of what attention and MLP add
  const char* logit_factor = nullptr;
  const char* logit_divisor = nullptr;
  const char* rotary_dim = nullptr;  // number of rotated elements of a head
  // Factor of a dynamic scaling of RoPE beyond max_trained_positions; null or absent: none.
  const char* dynamic_factor = nullptr;
  const char* mlp_ratio = nullptr;  // the MLP's width / width
};

// Values of fields that a configuration leaves out.
struct Defaults {
  // 0: the configuration must say it. Only the text parts of models with images may leave out the
  // width, the number of layers and the MLP's width.
  int64_t vocabulary = 0, heads = 0, width = 0, layers = 0, mlp = 0;
  int64_t kv_heads = 0;  // 0: the number of heads
  int64_t head_dim = 0;  // 0: width / heads
  int64_t positions = 512;
  int64_t window = 0;  // 0: none
  double eps = 1e-12;
  double theta = 10000.0;
  double partial_rotary = 1.0;
  double scale = 256.0;
  double attention_cap = 0.0;  // 0: none
  double logit_cap = 0.0;
  double logit_factor = 1.0;
  int64_t token_types = 2;
  int64_t window_pattern = 6;  // of Windows::kPattern and kUpper
  int64_t patch = 16;          // height and width of a patch
  const char* activation = "gelu";
  bool tied = true;
};

// Names of modules below the prefix; null if the family does not have the module. `#` is the
// number of the layer. `|` separates alternatives: a file has one of the names.
struct Names {
  const char* embedding = nullptr;
  const char* own_embedding = nullptr;  // instead of a shared one, where tables are not tied
  const char* position = nullptr;
  const char* token_type = nullptr;
  const char* embedding_norm = nullptr;
  const char* embedding_projection = nullptr;  // embedding width to layer width
  const char* relative_bias = nullptr;         // (buckets, heads), shared by all layers
  const char* layer_relative_bias = nullptr;   // the same, of each layer
  // DeBERTa: a row for each distance, which queries and keys are multiplied with; and its norm.
  const char *relative_embedding = nullptr, *relative_norm = nullptr;
  const char* patch = nullptr;         // convolution of pixels
  const char* first_token = nullptr;   // (1, 1, width), before the patches
  const char* registers = nullptr;     // (1, n, width), between the two, without positions
  const char* distillation = nullptr;  // (1, 1, width), between the two, with a position

  const char* attention_norm = nullptr;      // of the input of attention
  const char* attention_out_norm = nullptr;  // of its output, before the sum
  const char* attention_sum_norm = nullptr;  // of the sum
  const char *q = nullptr, *k = nullptr, *v = nullptr;
  const char* qkv = nullptr;  // all three as one matrix
  const char* o = nullptr;
  const char *q_norm = nullptr, *k_norm = nullptr;
  // Cross-attention, between attention and MLP.
  const char* cross_norm = nullptr;      // as attention_norm
  const char* cross_sum_norm = nullptr;  // as attention_sum_norm
  const char *cross_q = nullptr, *cross_k = nullptr, *cross_v = nullptr, *cross_o = nullptr;
  // Factors of each element of what attention and MLP add.
  const char *attention_scale = nullptr, *mlp_scale = nullptr;
  const char* mlp_norm = nullptr;  // as attention_norm
  const char* mlp_out_norm = nullptr;
  const char* mlp_sum_norm = nullptr;
  const char *gate = nullptr, *up = nullptr;
  const char* gate_up = nullptr;  // gate, then up, as one matrix
  const char* down = nullptr;
  const char* final_norm = nullptr;
  const char* pooler = nullptr;

  // Heads, with or without the prefix.
  const char* output = nullptr;  // logits of tokens; the embedding where they are tied
  // A vector of its own. Where the output matrix is not tied, its `.bias` is used instead.
  const char* output_bias = nullptr;
  const char* logits_bias = nullptr;  // (1, vocabulary), added to logits, if the files have it
  const char* transform = nullptr;    // masked language models: dense, activation, norm
  const char* transform_norm = nullptr;
  const char* classifier_dense = nullptr;
  const char* classifier = nullptr;
  const char* distilled = nullptr;      // DeiT: one of the distillation token; the mean counts
  const char* next_sentence = nullptr;  // two classes, of the pooler's output
  const char* question = "qa_outputs";  // start and end of an answer, of each token
  const char* projection = nullptr;     // of embed()'s pooling
  // SigLIP's pooler: what a learned query attends to, and an MLP. A prefix of names.
  const char* attention_pooler = nullptr;
};

// Which layers see only a window.
enum class Windows : uint8_t {
  kEvery,        // all, if a window is given
  kAlternating,  // layers 0, 2, 4, ...
  kPattern,      // all but each sliding_window_pattern-th
  kBetweenFull,  // all but layers 0, n, 2 n, ... with n = global_attn_every_n_layers
  kUpper,        // from max_window_layers on, if use_sliding_window is true
  kWithoutRope,  // those without RoPE, if use_sliding_window is true
  kListed,       // those that attention_layers or attention_types call "local"
};

// Tables of positions that the files need not have: sines, then cosines, of position / 10000^x.
enum class Sinusoids : uint8_t {
  kNone,
  kOfWidth,  // x = 2 i / width for each i below width / 2, as in arXiv:1706.03762
  kToOne,    // x = i / (width / 2 - 1), as in fairseq; the row of padding is 0
};

// The input of a classifier.
enum class Classifier : uint8_t {
  kPooler,     // the pooler's output
  kFirst,      // the first token's last hidden state
  kFirstTanh,  // tanh(dense(...)) of it
  kFirstRelu,  // relu(dense(...)) of it
  kFirstGelu,  // gelu(dense(...)) of it
  // ModernBERT: norm(act(dense(...))), as Names::transform, of the first token's last hidden state
  // or, if classifier_pooling says so, of the mean; of each token for classes of tokens
  kTransform,
  kLastToken,     // the last token that is not padding
  kFirstAndMean,  // the first token's last hidden state, then the mean of the patches' states
};

// A setting that has one supported value.
struct Setting {
  const char* field;
  const char* value;  // as text; "false" for flags; "=name" for the value of another field
};

struct Family {
  const char* model_type;
  const Family* encoder = nullptr;  // of a decoder with cross-attention: the other stack
  std::span<const std::string_view> prefixes = {};  // of the names of parameters
  Fields fields = {};
  Defaults defaults = {};
  Names names = {};

  bool causal = false;  // unless `is_causal` says otherwise
  // A flag: not causal, and windows as with window_both_sides.
  const char* both_sides_field = nullptr;
  bool rms_norm = false;
  bool norm_plus_one = false;         // norms multiply by 1 + weight
  bool norm_bias = true;              // of LayerNorms; false if fields.norm_bias says so
  bool norm_parameters = true;        // false: norms have no parameters
  bool norm_whole_qk = false;         // q_norm and k_norm are over all heads, not over each one
  bool norm_after_rope = false;       // of q and k
  bool norms_first_attention = true;  // false: layer 0 has no attention_norm
  bool rope = false;
  bool alibi = false;
  bool rope_neighbours = false;  // pairs are elements 0 and 1, 2 and 3, ...; else half a head apart
  bool rope_reversed = false;    // by the negative angles
  bool rope_of_windows = false;  // layers with windows have a base of their own, and no scaling
  bool unscaled_windows = false;  // they have the same base, and no scaling
  bool rope_in_windows = false;   // only layers with windows have RoPE, if there are any
  Windows windows = Windows::kEvery;
  bool window_both_sides =
      false;                     // a window is the distance to both sides, twice; else to the left
  bool transposed = false;       // matrices of layers are stored (in, out)
  bool up_first = false;         // rows of gate_up: up, then gate
  bool fixed_ntk = false;        // see RopeFrequencies::Fallback::ntk
  bool dynamic_alpha = false;    // see RopeFrequencies::Fallback::alpha
  bool interleaved_qkv = false;  // rows of qkv: q, k and v of head 0, then of head 1
  bool qkv_bias = true;          // unless fields.attention_bias says otherwise
  bool output_bias = true;       // of attention, likewise
  bool mlp_bias = true;          // unless fields.mlp_bias says otherwise
  bool down_bias = false;  // the last matrix of the MLP has a bias, even if the others have none
  bool parallel = false;   // attention and MLP have the same input
  const char* parallel_field = nullptr;  // a flag that says so
  bool one_norm = false;                 // if parallel, attention_norm is the MLP's, too
  bool scales_embedding = false;         // by sqrt(width)
  bool unit_scale = false;               // the scale of scores is 1
  Sinusoids sinusoids = Sinusoids::kNone;
  bool tied_by_files = false;            // the output has a matrix of its own if the files have it
  bool scales_tied_logits = false;       // by 1 / sqrt(width), if the configuration says "tied"
  bool positions_after_padding = false;  // positions count real tokens, from the id of padding + 1
  int64_t first_position = 0;            // row of the position embedding for the first token
  bool logit_bias = false;               // the output matrix of a language model has a bias
  bool shares_layers = false;            // layers of a group have the same parameters
  bool transform_gelu = false;  // Names::transform has GELU, whatever fields.activation says
  // Embeddings are scaled by the share of tokens that are no masks, and masks are 0, if
  // token_dropout says so.
  bool token_dropout = false;
  bool states_before_norm = false;  // the last of hidden_states is before the final norm
  bool patch_bias = true;
  // The positions are interpolated for the size of preprocessor_config.json.
  bool resizes_positions = false, resizes_with_antialias = false;
  // The vector of a text is the state of the first token with the id eos_token_id, or if that id is
  // 2, with the largest id.
  bool pools_end = false;
  Pooling pooling = Pooling::kMean;  // of embed(), unless the folder says otherwise
  Classifier classifier = Classifier::kLastToken;
  std::span<const Setting> settings = {};
};

// A type that is read as another one: most have images, too, and are read without them. Their
// text's settings are below text_config, which may name another type for `text`.
struct TextPart {
  const char *model_type, *text;
};

// A model with two towers, whose settings are below text_config and vision_config.
struct Towers {
  const char *model_type, *text, *images;
};

// Null if there is no such family.
const Family* find_family(std::string_view model_type);
const TextPart* find_text_part(std::string_view model_type);
const Towers* find_towers(std::string_view model_type);
std::span<const Family> families();
// Families whose files have another family's model_type and bring their own code along: NomicBERT
// with GPT-2's names of settings, and Jina's BERT with ALiBi.
const Family& nomic_bert_of_remote_code();
const Family& jina_bert();
std::span<const TextPart> text_parts();
std::span<const Towers> towers();
// Before the names of parameters of a text part.
std::span<const std::string_view> text_part_prefixes();

}  // namespace multihead::models
