/// \file
/// The named values inside a model ("sites"): to read them, and to change them while the model
/// computes. Names and definitions are those of TransformerLens (components/transformer_block.py),
/// except that q and k are taken after the norm of heads and the rotary embedding.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "multihead/export.h"
#include "multihead/tensor.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead::models {

/// A value of a layer. The order is that of the computation, except for the values of
/// cross-attention, which stand at the end: the decoder of an encoder–decoder model computes them
/// between resid_mid and mlp_hidden. B sequences, N tokens, S tokens of the encoder, H query heads,
/// K key/value heads, D width of a head, E width of the residual stream, M width of the MLP.
enum class Site : uint8_t {
  kResidPre,  ///< (B, N, E): input of the layer
  kQ,         ///< (B, N, H, D): queries as they enter the dot product
  kK,         ///< (B, N, K, D): keys, likewise
  kV,         ///< (B, N, K, D): values
  kScores,    ///< (B, H, N, N): input of the softmax; -inf for keys that a query does not see
  kPattern,   ///< (B, H, N, N): attention weights; 0 for keys that a query does not see
  kZ,         ///< (B, N, H, D): output of each head, before the output projection
  kAttnOut,   ///< (B, N, E): added to the residual stream by attention
  /// (B, N, E): between attention and MLP, or cross-attention; not in models whose MLP reads
  /// resid_pre
  kResidMid,
  kMlpHidden,      ///< (B, N, M): input of the MLP's last matrix
  kMlpOut,         ///< (B, N, E): added to the residual stream by the MLP
  kResidPost,      ///< (B, N, E): output of the layer, which is resid_pre of the next one
  kCrossQ,         ///< (B, N, H, D): queries of cross-attention
  kCrossK,         ///< (B, S, K, D): keys of cross-attention, of the encoder's tokens
  kCrossV,         ///< (B, S, K, D): values of cross-attention, likewise
  kCrossScores,    ///< (B, H, N, S): input of its softmax; -inf for padding of the encoder
  kCrossPattern,   ///< (B, H, N, S): its weights
  kCrossZ,         ///< (B, N, H, D): output of each head
  kCrossAttnOut,   ///< (B, N, E): added to the residual stream by it
  kResidMidCross,  ///< (B, N, E): between cross-attention and MLP
};

/// The number of sites.
inline constexpr int kSites = 20;
/// "resid_pre", "q", ..., "resid_mid_cross".
const char* name_of(Site site);
/// The site of a name, if there is one.
std::optional<Site> site_of(std::string_view name);

/// A value to read.
struct Capture {
  Site site = Site::kResidPre;      ///< which value
  int64_t layer = 0;                ///< from 0
  std::vector<int64_t> heads = {};  ///< of sites with heads; empty: all
  /// The site's shape, with the listed heads only, in their order; contiguous.
  Tensor out = {};
};

/// A change of a value. Everything that is computed later uses the changed value; captures of the
/// same place are taken after it. Edits of one place act in the order of their list.
struct Edit {
  /// What happens to the chosen part of the value.
  enum class Action : uint8_t {
    kSet,      ///< becomes `value`, broadcast to the part's shape
    kAdd,      ///< part + `value`, broadcast likewise
    kScale,    ///< part * `factor`
    kReplace,  ///< becomes the same part of `value`, which has the site's whole shape, or that of
               ///< one sequence
  };
  Site site = Site::kResidPre;          ///< which value
  int64_t layer = 0;                    ///< from 0
  std::vector<int64_t> sequences = {};  ///< of the batch, each once; empty: all
  std::vector<int64_t> heads = {};      ///< of sites with heads, each once; empty: all
  /// Positions, each once, in scores and pattern those of queries; empty: all.
  std::vector<int64_t> tokens = {};
  Action action = Action::kSet;  ///< what happens
  /// The part's shape is the site's, with the axes of sequences, tokens and heads cut to the lists.
  /// Broadcasting is NumPy's, from the last axis. Finite.
  ConstTensor value = {};
  float factor = 1.0F;  ///< finite
};

/// A gradient to compute: `out` has the site's shape, contiguous.
struct GradientOutput {
  Site site = Site::kResidPre;  ///< which value
  int64_t layer = 0;            ///< from 0
  Tensor out = {};              ///< where to
};

}  // namespace multihead::models
MULTIHEAD_PUBLIC_END
