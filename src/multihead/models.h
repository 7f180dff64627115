/// \file
/// Opens folders of Hugging Face models (config.json and safetensors files) as they are, and runs
/// the models on token ids. In the library multihead::models.
///
/// The family is found by `model_type` of config.json. Decoders: gpt2, gpt_neo, gptj, gpt_neox,
/// gpt_bigcode, bloom, opt, llama, mistral, qwen2, qwen3, gemma, gemma2, gemma3_text, phi, phi3,
/// smollm3, starcoder2, stablelm, olmo, olmo2, olmo3, granite, glm, glm4, cohere, cohere2,
/// ernie4_5, helium, seed_oss, exaone4, hunyuan_v1_dense, arcee, nanochat; and as the text parts of
/// gemma3, qwen2_vl, qwen2_5_vl, qwen3_vl, mistral3, idefics3, smolvlm, llava, llava_next.
/// Encoders: bert, roberta, xlm-roberta, camembert, distilbert, albert, electra, mpnet, deberta-v2,
/// modernbert, nomic_bert, new, eurobert, esm, vit, deit, dinov2, dinov2_with_registers, and the
/// towers of clip and siglip. With an encoder and a decoder: t5, mt5, umt5, bart, mbart, marian,
/// m2m_100.
/// Definitions: the transformers library 5.12; configurations of its versions 4 and 5 are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "multihead/context.h"
#include "multihead/export.h"
#include "multihead/sites.h"
#include "multihead/status.h"
#include "multihead/tensor.h"
#include "multihead/weights.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead::models {

/// A value of config.json.
struct ConfigValue {
  /// Types of JSON without arrays and objects, which are flattened.
  enum class Kind : uint8_t {
    kNull,    ///< null
    kBool,    ///< `number` is 0 or 1
    kNumber,  ///< `number`
    kText,    ///< `text`
  };
  Kind kind = Kind::kNull;  ///< type
  double number = 0;        ///< of kBool and kNumber
  std::string text = {};    ///< of kText
};

/// config.json as a flat list. Members of objects and elements of arrays have their path as name:
/// "rope_parameters.rope_theta", "layer_types.0". Empty objects and arrays are left out. Members of
/// the folder's other files have the path of the file in front:
/// "generation_config.json/eos_token_id", "1_Pooling/config.json/pooling_mode".
using Config = std::map<std::string, ConfigValue, std::less<>>;

/// Options of open() and ModelLoader::create().
struct OpenOptions {
  /// Type of the matrices and the embedding in memory, f32 to int4. Without one they stay as the
  /// file has them.
  /// Norms and biases are f32, tables of positions as stored.
  std::optional<WeightType> weights = {};
  /// Type of the embedding and of the matrix of logits. Default: as `weights` says. int4 in
  /// these two matrices loses more than int4 in all others.
  std::optional<WeightType> embedding_weights = {};
  /// Called while weights are read, with the bytes so far and of all. Returning false ends open()
  /// with a kAborted error.
  std::function<bool(int64_t done, int64_t total)> progress = {};
  /// Leaves matrices that need no conversion in the mapped file, or where view() has them. open()
  /// then returns sooner, and processes share the memory, but decoding takes up to 1.6 times as
  /// long, because a mapped file has pages of 4 kB and a copy has pages of 2 MB (Linux), and
  /// because a copy has the matrices of q, k and v, or of gate and up, one below the other, so that
  /// one product computes them. Files that cannot be mapped (Windows) are kept in memory, whatever
  /// this says.
  bool keep_mapped = false;
  /// Chooses a tower of a model with two (clip, siglip): true the images, false the texts.
  bool images = false;
};

/// The output that is computed from the last hidden state.
enum class Output : uint8_t {
  kNone,                 ///< the model ends with the last hidden state
  kLanguageModel,        ///< logits of the next token
  kMaskedLanguageModel,  ///< logits of each token itself
  kClassification,       ///< logits of classes, one row for each sequence
  kTokenClassification,  ///< logits of classes, one row for each token
  /// logits of each token for being the start of the answer, and the end: classes 0 and 1
  kQuestionAnswering,
};

/// The vector of a sequence, for Model::embed(). Padding does not count.
enum class Pooling : uint8_t {
  kMean,            ///< mean over the tokens
  kFirstToken,      ///< the first token
  kLastToken,       ///< the last token
  kMax,             ///< the largest number of all tokens, in each place
  kMeanSqrtLength,  ///< sum over the tokens / square root of their number
  kWeightedMean,    ///< mean, weighted by the position from 1 on
  kPooler,          ///< pooler_output
};

/// Which tokens a generation may not choose, or must. "First" is the token after the prompt or the
/// decoder's start. Definitions: transformers, generation/logits_process.py.
struct TokenRules {
  std::optional<int32_t> forced_bos = {};    ///< the second token of the decoder is this one
  std::optional<int32_t> forced_eos = {};    ///< the last of max_new_tokens is this one
  std::vector<int32_t> suppress = {};        ///< never chosen
  std::vector<int32_t> begin_suppress = {};  ///< not the first one, after a forced_bos
  std::vector<std::vector<int32_t>> bad_words = {};  ///< sequences whose last token is not chosen
  /// No sequence of so many tokens occurs twice, those of the prompt included; 0: any may.
  int64_t no_repeat_ngram_size = 0;
  int64_t encoder_no_repeat_ngram_size = 0;  ///< nor one that `source` has
  /// The fewest tokens, those of the prompt or the decoder's start included: `ends` are not chosen
  /// before. min_new_tokens counts new ones only, and takes its place unless it is 0.
  int64_t min_length = 0, min_new_tokens = 0;
  /// generate() and BeamSearch take their stop ids and what they read as `ends` and `source`.
  std::vector<int32_t> ends = {}, source = {};
};

/// When a search with beams ends, after as many sequences have ended as there are beams.
enum class EarlyStopping : uint8_t {
  kEstimate,   ///< when no running beam would be better if it ended now
  kFirstFull,  ///< at once
  /// when no running beam can become better: with a length_penalty above 0, if it ended with
  /// max_new_tokens
  kNever,
};

/// What a generation does unless its options say otherwise: generation_config.json, or config.json
/// if there is none.
struct GenerationDefaults {
  /// 0: none. They end the text of an encoder–decoder model only; max_length counts its start.
  int64_t max_new_tokens = 0, max_length = 0;
  int64_t num_beams = 1;                                    ///< GenerateOptions::num_beams
  float length_penalty = 1.0F;                              ///< likewise
  EarlyStopping early_stopping = EarlyStopping::kEstimate;  ///< likewise
  float repetition_penalty = 1.0F;                          ///< of SamplingOptions
};

/// The properties of a model. An encoder–decoder model gives the properties of its decoder.
struct ModelInfo {
  std::string model_type = {};       ///< of config.json
  Output output = Output::kNone;     ///< what logits are
  bool causal = false;               ///< a token sees itself and the tokens before it; else all
  bool has_pooler = false;           ///< forward() has a pooler_output
  bool takes_pixels = false;         ///< the input is `pixels` and not `ids`
  bool has_images = false;           ///< OpenOptions::images opens another tower
  int64_t num_layers = 0;            ///< number of layers
  int64_t embed_dim = 0;             ///< width of the hidden state
  int64_t num_heads = 0;             ///< query heads of each layer
  int64_t num_kv_heads = 0;          ///< key and value heads of each layer
  int64_t head_dim = 0;              ///< width of a head
  int64_t mlp_dim = 0;               ///< width of the MLP's hidden layer
  int64_t vocab_size = 0;            ///< number of token ids; 0 for pixels
  int64_t num_labels = 0;            ///< number of classes; 2 for answers; 0 without classes
  int64_t max_tokens = 0;            ///< longest sequence; 0 if only memory limits it
  int64_t token_types = 0;           ///< number of token types; 0 if there are none
  int64_t image_size = 0;            ///< height and width of pixels
  int64_t channels = 0;              ///< channels of pixels
  int64_t patch_size = 0;            ///< height and width of a patch
  int64_t parameters = 0;            ///< number of parameters in use; shared ones count once
  int64_t weight_bytes = 0;          ///< bytes of all weights, in memory or mapped
  int64_t step_bytes = 0;            ///< bytes of the weights that one token reads
  Pooling pooling = Pooling::kMean;  ///< of embed(), by 1_Pooling/config.json of the folder
  bool pools_prompt = true;          ///< a prompt before the text is pooled, too
  int64_t vector_dim = 0;            ///< numbers of a vector of embed()
  /// Two towers: the similarity of a text and an image is logit_scale * (product of their vectors
  /// of embed()) + logit_bias; 0 without.
  float logit_scale = 0, logit_bias = 0;
  int64_t max_seq_length = 0;  ///< longest sequence that embed() reads; 0: as max_tokens
  /// eos_token_id of a decoder's config.json and generation_config.json
  std::vector<int32_t> end_ids = {};
  bool has_encoder = false;    ///< an encoder–decoder model: see Model::encoder()
  int32_t decoder_start = -1;  ///< the decoder's first token, decoder_start_token_id; -1: none
  TokenRules rules = {};       ///< of a causal model's generation_config.json
  GenerationDefaults generation = {};  ///< likewise
};

/// Inputs of a call: a batch of sequences of equal length N, row-major.
struct ModelInputs {
  std::span<const int32_t> ids = {};          ///< (B, N) token ids
  int64_t batch = 1;                          ///< number of sequences, B
  std::span<const uint8_t> mask = {};         ///< (B, N): 0 is padding; empty: none
  std::span<const int32_t> token_types = {};  ///< (B, N); empty: all 0
  std::span<const float> pixels = {};         ///< (B, channels, image_size, image_size)
  /// (num_layers, num_heads): factor on the output of each head; 0 mutes it. Or (2, num_layers,
  /// num_heads) of an encoder–decoder model: then those of cross-attention. Empty: all 1.
  std::span<const float> head_scales = {};
  std::span<const Edit> edits = {};  ///< changes of values inside the model
  /// (B, S) token ids of the encoder. Encoder–decoder models need them; all others are then of the
  /// decoder. Other models take none.
  std::span<const int32_t> source = {};
  std::span<const uint8_t> source_mask = {};  ///< (B, S): 0 is padding; empty: none
  std::span<const Edit> source_edits = {};    ///< changes of values inside the encoder
};

/// The weights of one head: which, and where to.
struct HeadMap {
  int64_t layer = 0;  ///< from 0
  int64_t head = 0;   ///< query head, from 0
  /// (B, N, N): a row for each query; hidden keys are 0. Rows are contiguous, and there may be gaps
  /// between rows and between entries of the batch.
  Tensor out = {};
  bool cross = false;  ///< of cross-attention, (B, N, S): keys are tokens of the encoder
};

/// Outputs of Model::forward(), all optional. N is the number of tokens, for pixels of patches and
/// the first token.
struct ModelOutputs {
  /// (num_layers + 1, B, N, embed_dim): the input of each layer, then last_hidden_state, which in
  /// vit is here before the final norm.
  Tensor hidden_states = {};
  /// (B, N, embed_dim), after the final norm where the model has one.
  Tensor last_hidden_state = {};
  /// Language models (B, N, vocab_size), or (B, 1, vocab_size) for the last token alone; token
  /// classification and question answering (B, N, num_labels); classification (B, num_labels).
  /// BertForPreTraining: the logits of its masked language model.
  Tensor logits = {};
  Tensor pooler_output = {};               ///< (B, embed_dim)
  Tensor source_state = {};                ///< (B, S, embed_dim): last hidden state of the encoder
  std::span<const HeadMap> maps = {};      ///< weights of single heads
  std::span<const Capture> captures = {};  ///< values inside the model
};

/// Options of Model::embed().
struct EmbedOptions {
  /// Default: ModelInfo::pooling.
  std::optional<Pooling> pooling = {};
  /// Vectors of Euclidean length 1. If false, they have it only if the folder has a Normalize.
  bool normalize = true;
  /// Longer sequences than ModelInfo::max_seq_length are cut there. True cuts them at max_tokens
  /// where the folder has no max_seq_length, false cuts none.
  std::optional<bool> truncate = {};
};

class ModelLoader;
class Session;

/// A model: a family's definition with the weights of a folder. Copies share the weights. Calls
/// with different contexts may run at the same time.
class Model {
 public:
  Model() = default;  ///< a model that refuses every call

  /// The properties of the model. All zeros before open().
  const ModelInfo& info() const;

  /// One pass over whole sequences. If only maps and captures are wanted, it ends with their last
  /// layer. Errors: kShape, kOption (an id, token type, layer, head or token out of range, more
  /// than max_tokens, a site that the model does not have, an edit that makes numbers infinite),
  /// kMemory. Nothing is written on an error of the arguments. logits and pooler_output that are
  /// not finite are a kOption error, which names the first layer whose output is not; hidden states
  /// and maps are given as they are.
  [[nodiscard]] Status forward(const ModelInputs& inputs, const ModelOutputs& outputs,
                               Context& context) const;

  /// The weights of one head, out (B, N, N). Computes layers 0 to `layer` only. Errors: as
  /// forward().
  [[nodiscard]] Status attentions(const ModelInputs& inputs, int64_t layer, int64_t head,
                                  const Tensor& out, Context& context) const;

  /// The weights of one head of the decoder's cross-attention, out (B, N, S). Errors: as forward().
  [[nodiscard]] Status cross_attentions(const ModelInputs& inputs, int64_t layer, int64_t head,
                                        const Tensor& out, Context& context) const;

  /// The encoder of an encoder–decoder model as a model by itself, which shares the weights: its
  /// attentions(), embed(), captures and edits. Else a model that refuses every call.
  Model encoder() const;

  /// One vector for each sequence, out (B, vector_dim): the pooling of the last hidden states, then
  /// the Dense and Normalize modules of the folder, or the projection of clip and siglip, whose
  /// texts end with their last token, and in siglip are padded to max_tokens. Errors: as forward(),
  /// also for vectors that are not finite; kOption for a sequence of padding alone, and for a
  /// folder with a module of another kind, and for an encoder–decoder model, whose encoder()
  /// embeds. Nothing is written on an error.
  [[nodiscard]] Status embed(const ModelInputs& inputs, const EmbedOptions& options,
                             const Tensor& out, Context& context) const;

  struct Internals;  ///< for the library's own use

 private:
  friend class ModelLoader;
  friend class Session;
  std::shared_ptr<const Internals> internals_;
};

/// A tensor of the files of a folder.
struct StoredTensor {
  std::string name = {};  ///< name in the safetensors header
  std::string type = {};  ///< its dtype there: "F32", "BF16", ...
  Dims shape = {};        ///< its shape
};

/// Makes a Model from the tensors of files, which may come in pieces and need not be in memory at
/// the same time. open() is this class with files that are mapped.
class ModelLoader {
 public:
  ModelLoader();  ///< a loader that refuses every call
  ~ModelLoader();
  ModelLoader(ModelLoader&&) noexcept;             ///< Movable, not copyable.
  ModelLoader& operator=(ModelLoader&&) noexcept;  ///< Movable, not copyable.

  /// Finds the family and the tensors that it needs. Tensors of a Dense module have the path of its
  /// folder in front: "2_Dense/linear.weight". Errors: kOption, naming the setting that is
  /// missing or not supported; kFormat, naming every tensor that is missing or has another shape
  /// or type than the configuration says; kMemory.
  [[nodiscard]] static Status create(const Config& config, std::span<const StoredTensor> tensors,
                                     const OpenOptions& options, ModelLoader& loader);

  /// Indices into `tensors` of create(): those to give, each once, in any order.
  std::span<const size_t> needed() const;
  /// Bytes of memory that the weights need if every tensor is given by give(), or if view() is used
  /// where it needs no memory.
  int64_t bytes(bool viewed) const;
  /// Bytes so far that view() uses where they are.
  int64_t viewed_bytes() const;

  /// The next bytes of a tensor, from its first to its last in any pieces. Errors: kFormat (more
  /// bytes than the tensor has, or a tensor that is not needed), kMemory.
  [[nodiscard]] Status give(size_t tensor, std::span<const std::byte> bytes);
  /// All bytes of a tensor at once, which `owner` keeps alive. They are not copied if they have the
  /// type and order of the weights in memory, which the tensors of q, k, v, gate and up have with
  /// OpenOptions::keep_mapped only. Errors: as give().
  [[nodiscard]] Status view(size_t tensor, std::span<const std::byte> bytes,
                            std::shared_ptr<const void> owner);
  /// The model. Errors: kFormat, naming the tensors that were not given; `model` is unchanged.
  [[nodiscard]] Status finish(Model& model);

  struct Internals;  ///< for the library's own use

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Options of Session::create().
struct SessionOptions {
  int64_t capacity = 0;            ///< most tokens; 0 takes 1024, or max_tokens if that is less
  DType cache_type = DType::kF32;  ///< type of the cached keys and values
  /// (num_layers, num_heads): as ModelInputs::head_scales, for every token
  std::vector<float> head_scales = {};
  /// As ModelInputs::edits, but for the tokens of all calls: Edit::tokens are positions in the
  /// session, values have one row for each of them, or one row for all tokens. kReplace is not
  /// possible, and values of scores and pattern have one number for all keys. Values must live as
  /// long as the session. With edits of scores or pattern, each call computes all tokens.
  std::vector<Edit> edits = {};
};

/// A causal model with the keys and values of the tokens so far. Their memory grows with the
/// tokens. A layer with a sliding window keeps the last 2 * window - 1 tokens, or window + 127 if
/// that is less. In an encoder–decoder model, these are the tokens of the decoder, and the keys
/// and values of the encoder's output are kept, too.
class Session {
 public:
  Session();  ///< a session that refuses every call
  ~Session();
  Session(Session&&) noexcept;             ///< Movable, not copyable.
  Session& operator=(Session&&) noexcept;  ///< Movable, not copyable.

  /// Errors: kOption (a model that is not causal or has no logits), kMemory.
  [[nodiscard]] static Status create(const Model& model, const SessionOptions& options,
                                     Session& session);
  /// Runs the encoder on the `source` (S) of an encoder–decoder model, and forgets all tokens.
  /// Comes before append(). The values of `edits` are not used after the call. Errors: kOption (a
  /// model without an encoder, an id out of range), kMemory; the session is then without a source.
  [[nodiscard]] Status encode(std::span<const int32_t> source, std::span<const Edit> edits,
                              Context& context);
  /// The next tokens, one or more. logits (vocab_size): of the token after the last one, or (number
  /// of ids, vocab_size): of the token after each of them; optional.
  /// A call with one token allocates nothing after the first call of its kind, but where the memory
  /// of keys and values grows: it doubles. Errors: kOption (an id out of range, more tokens than
  /// the capacity; logits that are not finite, naming the first layer whose output is not), kShape,
  /// kMemory; ids() are unchanged, and later calls go on from them.
  [[nodiscard]] Status append(std::span<const int32_t> ids, const Tensor& logits, Context& context);
  /// One more token for each of several sessions, logits (sessions, vocab_size), as append() gives
  /// them up to rounding. Sessions of one model with equal head_scales, without edits and without
  /// an encoder are computed in one pass, which reads the weights once. Errors: as append(); all
  /// sessions are unchanged then.
  [[nodiscard]] static Status step(std::span<Session* const> sessions, std::span<const int32_t> ids,
                                   const Tensor& logits, Context& context);
  /// The tokens so far, until the next call that changes them.
  std::span<const int32_t> ids() const;
  /// Number of tokens so far.
  int64_t length() const;
  /// Most tokens.
  int64_t capacity() const;
  /// Bytes of memory for keys and values.
  int64_t bytes() const;
  /// Copies the first `length` tokens to another session, with a capacity of its own; 0: the same.
  /// Shares the encoder's output. Lost keys are as after truncate(). Errors: kOption, kMemory.
  [[nodiscard]] Status fork(int64_t length, int64_t capacity, Session& other) const;
  /// Forgets all but the first `length` tokens. Errors: kOption. The next append() computes the
  /// keys and values of all tokens once more if the session no longer has them: in a layer with a
  /// sliding window after more than min(window, 128) tokens were forgotten, and with LongRoPE if
  /// the length falls below the original one; of a fork also where dynamic RoPE has other angles.
  [[nodiscard]] Status truncate(int64_t length);

  struct Internals;  ///< for the library's own use

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Rules for the choice of the next token, applied in this order, after
/// GenerateOptions::logits_processor and TokenRules: repetition_penalty, temperature, top_k, top_p.
struct SamplingOptions {
  /// 0: always the likeliest token, of equal ones the first. Else logits are divided by it.
  float temperature = 0.0F;
  int64_t top_k = 0;   ///< only the k likeliest tokens, and those equal to the last; 0: all
  float top_p = 1.0F;  ///< only the likeliest tokens whose probabilities first sum to p or more
  /// Logits of tokens that occurred are divided by it if positive, else multiplied
  /// (arXiv:1909.05858); 1: none. Default: GenerationDefaults of generate(), 1 of a Sampler.
  std::optional<float> repetition_penalty = {};
  uint64_t seed = 0;  ///< of the random numbers; the same seed gives the same tokens
};

/// Chooses tokens. Number n of a seed's random numbers is the same on every machine.
class Sampler {
 public:
  /// Errors of the options are reported by choose(). A generation that begins after `begin` tokens
  /// and has at most `end` tokens obeys the rules; 0: no end.
  explicit Sampler(const SamplingOptions& options = {}, TokenRules rules = {}, int64_t begin = 0,
                   int64_t end = 0)
      : options_(options), rules_(std::move(rules)), begin_(begin), end_(end) {}
  /// The next token after `before`, of logits (vocab_size), which are changed. A token whose logit
  /// is -inf is never chosen. Errors: kOption (also for a NaN, +inf, or no logit above -inf),
  /// kShape, kMemory.
  [[nodiscard]] Status choose(const Tensor& logits, std::span<const int32_t> before,
                              int32_t& token);

 private:
  SamplingOptions options_;
  TokenRules rules_;
  int64_t begin_ = 0, end_ = 0;
  uint64_t drawn_ = 0;
  std::vector<int32_t> order_;  // memory for the next call, as the next one
  std::vector<bool> seen_;
};

/// Options of generate().
struct GenerateOptions {
  /// Most tokens. Default: what GenerationDefaults say of an encoder–decoder model; else 128.
  std::optional<int64_t> max_new_tokens = {};
  SamplingOptions sampling = {};                      ///< how tokens are chosen
  std::optional<std::vector<int32_t>> stop_ids = {};  ///< default: ModelInfo::end_ids
  DType cache_type = DType::kF32;                     ///< type of the cached keys and values
  /// (num_layers, num_heads): as ModelInputs::head_scales, for every token
  std::vector<float> head_scales = {};
  std::vector<Edit> edits = {};          ///< as SessionOptions::edits
  std::optional<TokenRules> rules = {};  ///< default: ModelInfo::rules
  /// Changes the logits (vocab_size) of the token after `ids`, all so far, before other rules: -inf
  /// forbids a token. An error ends the generation. Not with beams.
  std::function<Status(std::span<const int32_t> ids, std::span<float> logits)> logits_processor =
      {};
  /// Tries at most this many tokens, 0 to 64, in one pass: the tokens after the first occurrence
  /// of the longest end of the text that occurred, of at most max_matching_ngram_size tokens. The
  /// text is the same as with 0, unless two logits are as near as rounding. Not with beams.
  int64_t prompt_lookup_num_tokens = 0;
  int64_t max_matching_ngram_size = 2;  ///< see prompt_lookup_num_tokens
  int64_t* accepted = nullptr;          ///< number of tokens that were so chosen; optional
  /// Sequences that are searched side by side for the likeliest one; at most 64. With more than
  /// one, sampling.temperature must be 0, and the tokens are given out when the search has ended.
  /// Default: GenerationDefaults, but 1 beside options that are not for beams.
  std::optional<int64_t> num_beams = {};
  /// The log-probability of a sequence that has ended is divided by (its new
  /// tokens)^length_penalty. Default: GenerationDefaults.
  std::optional<float> length_penalty = {};
  std::optional<EarlyStopping> early_stopping = {};  ///< default: GenerationDefaults
  // The rest is for encoder–decoder models.
  std::vector<Edit> source_edits = {};  ///< as ModelInputs::source_edits
  /// Tokens that the decoder begins with; none: ModelInfo::decoder_start.
  std::vector<int32_t> decoder_prompt = {};
};

/// Continues `prompt`; an encoder–decoder model encodes it and continues decoder_prompt. Calls
/// on_token with each token, a stop id included, which is the last one; returning false ends the
/// generation. It also ends at max_tokens: the token after the last position is given out. Errors:
/// as Session::append() and Sampler::choose(), and kOption for a prompt that is empty or longer
/// than max_tokens.
[[nodiscard]] Status generate(const Model& model, std::span<const int32_t> prompt,
                              const GenerateOptions& options,
                              const std::function<bool(int32_t token)>& on_token, Context& context);

/// A search for the likeliest sequence, step by step; generate() runs it to its end. Definition:
/// transformers, generation/utils.py, _beam_search.
class BeamSearch {
 public:
  BeamSearch();  ///< a search that refuses every call
  ~BeamSearch();
  BeamSearch(BeamSearch&&) noexcept;             ///< Movable, not copyable.
  BeamSearch& operator=(BeamSearch&&) noexcept;  ///< Movable, not copyable.

  /// Begins a search, and runs the encoder if there is one. The values of options.edits must live
  /// as long as the search. Errors: as generate(), and kOption for num_beams, length_penalty and
  /// temperature.
  [[nodiscard]] static Status create(const Model& model, std::span<const int32_t> prompt,
                                     const GenerateOptions& options, BeamSearch& search,
                                     Context& context);
  /// One more token for each beam. `done`: the search has ended. Errors: as generate().
  [[nodiscard]] Status step(bool& done, Context& context);
  /// The new tokens of the best sequence so far, until the next step.
  std::span<const int32_t> ids() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Opens a model. `folder` is a GGUF file of one of llama.cpp's architectures llama, mistral3,
/// qwen2, qwen2vl, qwen3, qwen3vl, smollm3, gemma, gemma2, gemma3, phi2, phi3, granite, olmo, olmo2
/// (also OLMo 3), command-r, cohere2, glm4, chatglm, ernie4_5, arcee, exaone4, seed_oss,
/// hunyuan-dense, stablelm, starcoder, starcoder2, gpt2, gptneox and bloom; of encoders bert (also
/// RoBERTa and DistilBERT), jina-bert-v2, nomic-bert, modern-bert, eurobert and gemma-embedding,
/// with pooling and Dense modules; with weights of F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0,
/// Q4_K, Q5_K and Q6_K, which without OpenOptions::weights are used with their numbers (in
/// WebAssembly Q5 and Q6_K become int8). Or it is a folder: config.json, and
/// model.safetensors, or the files that model.safetensors.index.json lists, or the only file with
/// safetensors; integers with scales of groups, of MLX (affine, 4 and 8 bits), GPTQ (4 and 8) and
/// AWQ (gemm, 4), are read as the numbers they stand for, and become int8 without
/// OpenOptions::weights; for end_ids and embed() also generation_config.json and the modules of
/// sentence-transformers. Files are mapped into memory, and tensors are used there if they need no
/// conversion; the files must stay as they are while the model lives. Errors: kFormat (a file that
/// is missing, truncated, of another format or contradicts another), and as ModelLoader; `model` is
/// unchanged.
[[nodiscard]] Status open(const std::string& folder, const OpenOptions& options, Model& model);
/// open() with the configuration in another file of the folder.
[[nodiscard]] Status open(const std::string& folder, const std::string& config_file,
                          const OpenOptions& options, Model& model);

/// Reads config.json as a flat list, as Python's json reads it: Infinity and NaN are numbers.
/// Errors: kFormat, also for more than 16 MiB, 131072 values, 64 levels or a path of 1000 bytes.
[[nodiscard]] Status read_config(const std::string& path, Config& config);

}  // namespace multihead::models
MULTIHEAD_PUBLIC_END
