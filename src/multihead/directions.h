/// \file
/// Sparse autoencoders as SAELens writes them: directions in a value of a model, each with a
/// feature. A folder has cfg.json, of any version, and sae_weights.safetensors. F is the number of
/// features, E the width of the value.
///
/// x is a row of the value, normalized as `normalize_activations` says: not at all; with layer_norm
/// (x - mean) / (standard deviation + 1e-5), the deviation with E - 1; with constant_norm_rescale
/// divided by its root mean square. With `apply_b_dec_to_input`, b_dec is then subtracted. p is
/// x W_enc, and the features are
///
/// - standard: max(p + b_enc, 0)
/// - jumprelu: the same where p + b_enc > threshold, else 0
/// - topk: the same for the k largest p + b_enc, the first of equal ones, else 0. With
///   `rescale_acts_by_decoder_norm`, b_enc and the columns of W_enc are multiplied by the norms of
///   W_dec's rows, which are divided by them
/// - gated: max(p exp(r_mag) + b_mag, 0) where p + b_gate > 0, else 0
///
/// They decode to features W_dec + b_dec, after which the normalization is undone.
///
/// Sources: Cunningham et al., arXiv:2309.08600; Rajamanoharan et al., arXiv:2404.16014 (gated) and
/// arXiv:2407.14435 (jumprelu); Gao et al., arXiv:2406.04093 (topk).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "multihead/context.h"
#include "multihead/export.h"
#include "multihead/models.h"
#include "multihead/safetensors.h"
#include "multihead/sites.h"
#include "multihead/status.h"
#include "multihead/tensor.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead::models {

/// The properties of a sparse autoencoder.
struct SparseAutoencoderInfo {
  /// The kinds of encoders, which the head of this file defines.
  enum class Architecture : uint8_t { kStandard, kJumpReLU, kTopK, kGated };
  Architecture architecture = Architecture::kStandard;  ///< kind of encoder
  Site site = Site::kResidPre;  ///< the value, by the name of TransformerLens's hook
  int64_t layer = 0;            ///< layer of the value, from 0
  int64_t width = 0;            ///< E; for kZ the width of all heads
  int64_t features = 0;         ///< F
};

/// A sparse autoencoder; f32. Copies share the weights.
class SparseAutoencoder {
 public:
  /// Opens a folder, with up to 1 GiB of weights. Errors: kFormat (a file or a tensor that is
  /// missing, of another shape or not finite), kOption, naming a setting that is not supported,
  /// kMemory; `result` is unchanged.
  [[nodiscard]] static Status open(const std::string& folder, SparseAutoencoder& result);
  /// Makes one of cfg.json, with "cfg.json/" before its names, and of the file of weights. Errors:
  /// as open().
  [[nodiscard]] static Status create(const Config& config, const Safetensors& weights,
                                     SparseAutoencoder& result);

  /// The properties; all zeros before open().
  SparseAutoencoderInfo info() const;

  /// The features (rows, F) of rows (rows, E), both contiguous. Errors: kOption (an autoencoder
  /// that was not opened, rows that are not finite), kShape, kMemory.
  [[nodiscard]] Status encode(const ConstTensor& rows, const Tensor& features,
                              Context& context) const;
  /// The rows (rows, E) of features (rows, F), both contiguous. Where rows are normalized,
  /// `encoded` are those that were encoded: they give the scale. `rows` may not overlap the inputs.
  /// Errors: as encode().
  [[nodiscard]] Status decode(const ConstTensor& features, const Tensor& rows, Context& context,
                              const ConstTensor& encoded = {}) const;

  /// The edit that adds `strength` times the feature's row of W_dec at all positions. `value` gets
  /// its numbers, and must live as long as the edit. kZ needs the model's number of heads. Errors:
  /// kOption; a layer and width that do not fit the model are found by the call that edits.
  [[nodiscard]] Status edit(int64_t feature, float strength, std::vector<float>& value,
                            Edit& result, int64_t num_heads = 0) const;

 private:
  struct Internals;
  [[nodiscard]] Status find(const Internals*& result) const;
  std::shared_ptr<const Internals> internals_;
};

}  // namespace multihead::models
MULTIHEAD_PUBLIC_END
