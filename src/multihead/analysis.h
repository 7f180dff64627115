/// \file
/// Questions to a language model about what its parts do: which token each layer would predict
/// (logit lens), what a part adds to a result (direct logit attribution), and what changes if a
/// part had another value (activation patching, attribution patching, ablation).
///
/// All calls are for causal language models (Output::kLanguageModel), and but for ablate() without
/// an encoder. Errors: those of
/// Model::forward(); kOption for another model, an option out of range, a metric that names no
/// token of the model, and results that are not finite; kShape. Nothing is written on an error.
///
/// Sources: logit lens: nostalgebraist, "interpreting GPT: the logit lens", 2020; patching:
/// Heimersheim and Nanda, arXiv:2404.15255; attribution patching: Nanda, 2023, and Syed et al.,
/// arXiv:2310.10348; direct logit attribution: Elhage et al., "A Mathematical Framework for
/// Transformer Circuits", 2021, with the final norm held at its scale as in TransformerLens.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "multihead/models.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead::models {

/// A number that tells how a model continues a sequence.
struct Metric {
  /// What is computed.
  enum class Kind : uint8_t {
    kLogitDifference,     ///< logit of `token` - logit of `against`, at `position`
    kLogProbability,      ///< natural log of the probability of `token` after `position`
    kMeanLogProbability,  ///< mean of the log-probabilities of all tokens from the second on, each
                          ///< given the tokens before it: minus the loss of a language model
    kFunction,            ///< `function` of the logits at `position`
  };
  Kind kind = Kind::kLogitDifference;  ///< what is computed
  int64_t position = -1;               ///< of a token; negative: from the end
  int32_t token = 0;                   ///< id
  int32_t against = 0;                 ///< id
  /// Returns the metric of logits (vocab_size), and writes its gradient with respect to them unless
  /// `gradient` is empty.
  std::function<double(std::span<const float> logits, std::span<float> gradient)> function = {};
};

/// What lens() reads.
struct LensOptions {
  /// Layers whose input is read; num_layers is the output of the last layer. Empty: all.
  std::vector<int64_t> layers = {};
  int64_t top = 5;                   ///< number of likeliest tokens; 0 or more
  std::vector<int32_t> tokens = {};  ///< ids whose ranks are wanted
};

/// Results of lens(), for L layers and N tokens in all sequences.
struct Lens {
  std::vector<int32_t> ids;          ///< (L, N, top): the likeliest tokens, the likeliest first
  std::vector<float> probabilities;  ///< (L, N, top): of them
  std::vector<int64_t> ranks;        ///< (L, N, tokens): number of likelier tokens
  std::vector<float> token_probabilities;  ///< (L, N, tokens)
};

/// The predictions of the residual stream before each layer: final norm, output matrix and softmax
/// of it. `logits`, optional: (L, B, N, vocab_size); without it only a few rows of logits are in
/// memory.
[[nodiscard]] Status lens(const Model& model, const ModelInputs& inputs, const LensOptions& options,
                          Lens& result, const Tensor& logits, Context& context);

/// Results of log_probabilities(), (B, N - 1): of tokens 1 to N - 1 of each sequence.
struct TokenProbabilities {
  std::vector<float> values;   ///< natural log of the probability, given the tokens before
  std::vector<int64_t> ranks;  ///< number of likelier tokens
};

/// How the model rates each token of the inputs.
[[nodiscard]] Status log_probabilities(const Model& model, const ModelInputs& inputs,
                                       TokenProbabilities& result, Context& context);

/// The metric of each sequence, (B).
[[nodiscard]] Status measure(const Model& model, const ModelInputs& inputs, const Metric& metric,
                             std::vector<double>& result, Context& context);

/// The gradient of the metric with respect to values of a pass of one sequence, without edits. Each
/// value is varied alone, as if later ones depended on it only.
[[nodiscard]] Status gradients(const Model& model, const ModelInputs& inputs, const Metric& metric,
                               std::span<const GradientOutput> outputs, Context& context);

/// The tensors of the files that the model uses, with their names and shapes there.
[[nodiscard]] std::vector<StoredTensor> parameters(const Model& model);

/// A gradient with respect to a tensor of the files: `out` has its shape, contiguous.
struct ParameterGradient {
  std::string name = {};  ///< name in the safetensors header
  Tensor out = {};        ///< where to
};

/// The gradient of the metric with respect to tensors of the files, of a pass of one sequence. With
/// weights of another type than f32, the gradient with respect to the numbers that they stand for.
/// Errors: kOption also for a name that is not in parameters().
[[nodiscard]] Status parameter_gradients(const Model& model, const ModelInputs& inputs,
                                         const Metric& metric,
                                         std::span<const ParameterGradient> outputs,
                                         Context& context);

/// How parts of a site are replaced: all of a layer at once, or each head, each position.
enum class By : uint8_t { kLayer, kHead, kPosition };

/// A result for each part of each layer, (layers, parts).
struct PartResults {
  double clean = 0;           ///< the metric of the clean run
  double corrupt = 0;         ///< the metric of the corrupt run
  int64_t parts = 0;          ///< 1, or the number of heads or positions
  std::vector<float> values;  ///< (layers, parts)
};

/// Called after each few runs of a sweep with the share that is done, 0 to 1; false ends the call
/// with a kOption error on "progress".
using Progress = std::function<bool(double done)>;

/// Activation patching: the metric of the clean run in which one part of a site has the value that
/// it has in the corrupt run. One sequence each, of equal length. Layers before the part are not
/// computed again. kHead needs a site with heads that is not scores or pattern.
[[nodiscard]] Status patch(const Model& model, const ModelInputs& clean, const ModelInputs& corrupt,
                           const Metric& metric, Site site, By by, PartResults& result,
                           Context& context, const Progress& progress = {});

/// The first-order estimate of (patched metric - clean metric) for all parts, of two passes and one
/// backward pass: the sum of gradient * (corrupt - clean) over a part. With `positions`, values are
/// (layers, parts, N): for each position by itself.
[[nodiscard]] Status attribution_patch(const Model& model, const ModelInputs& clean,
                                       const ModelInputs& corrupt, const Metric& metric, Site site,
                                       By by, bool positions, PartResults& result,
                                       Context& context);

/// What takes the place of a head's output in ablate().
enum class Ablation : uint8_t {
  kZero,  ///< zeros
  kMean,  ///< its mean over all tokens of all texts
};

/// The mean of the metric over the texts, one sequence each, in runs without each head in turn.
/// `site` is kZ, or kCrossZ for the heads of cross-attention. PartResults::corrupt is that of no
/// run and stays 0.
[[nodiscard]] Status ablate(const Model& model, std::span<const ModelInputs> texts,
                            const Metric& metric, Ablation ablation, PartResults& result,
                            Context& context, const Progress& progress = {}, Site site = Site::kZ);

/// Results of logit_attribution(). The sum of all parts is the metric.
struct LogitAttribution {
  /// (num_layers, num_heads): by the head's rows of the output projection
  std::vector<float> heads;
  std::vector<float> mlp;  ///< (num_layers): by the MLP, its bias included
  float embedding = 0;     ///< by the input of layer 0
  float rest = 0;          ///< by biases of output projections, of the final norm and the output
  float metric = 0;        ///< difference of the logits
};

/// Direct logit attribution: what each part adds to a difference of logits of one sequence, with
/// the final norm at the scale of this run. Errors: kOption also for another metric, and for models
/// whose branches are normalized or whose logits are capped, where the sum is not exact.
[[nodiscard]] Status logit_attribution(const Model& model, const ModelInputs& inputs,
                                       const Metric& metric, LogitAttribution& result,
                                       Context& context);

}  // namespace multihead::models
MULTIHEAD_PUBLIC_END
