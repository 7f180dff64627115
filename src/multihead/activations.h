/// \file
/// Results of a module's forward() that its backward() needs.
#pragma once

#include <cstdint>
#include <memory>

#include "multihead/export.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

namespace nn {
struct ActivationsAccess;
struct KeptAttention;
struct KeptBlock;
struct KeptTransformer;
}  // namespace nn

/// Results of a module's forward() that its backward() needs. The memory grows to the largest call
/// and is kept for the next call. `Kept` holds the results and is known inside the library only.
template <class Kept>
class Activations {
 public:
  /// Holds no call and no memory.
  Activations();
  ~Activations();
  /// Movable, not copyable.
  Activations(Activations&&) noexcept;
  /// Movable, not copyable.
  Activations& operator=(Activations&&) noexcept;

  /// Bytes of memory held now.
  int64_t bytes() const;

 protected:
  friend nn::ActivationsAccess;  ///< for the library's own use
  std::unique_ptr<Kept> kept_;   ///< null before the first call and after a move
};

extern template class Activations<nn::KeptAttention>;
extern template class Activations<nn::KeptBlock>;
extern template class Activations<nn::KeptTransformer>;

/// Queries, keys and values after QK-norm and RoPE, the merged heads, the log-sum-exp, and the
/// inputs of QK-norm and of latent attention's norms.
using MultiHeadAttentionActivations = Activations<nn::KeptAttention>;

/// The activations of a block's attention, norms and MLP.
using TransformerBlockActivations = Activations<nn::KeptBlock>;

/// The activations of all layers.
class TransformerActivations : public Activations<nn::KeptTransformer> {
 public:
  /// Keeps all activations of each layer, or only each layer's input if `recompute` is true.
  /// backward() then computes the other activations again, layer by layer: this takes the time of
  /// one more forward(), and memory for one layer instead of all. The gradients are bit-identical.
  explicit TransformerActivations(bool recompute = false) : recompute_(recompute) {}

 private:
  friend nn::ActivationsAccess;
  bool recompute_;
};

}  // namespace multihead
MULTIHEAD_PUBLIC_END
