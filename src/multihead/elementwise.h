/// \file
/// Normalization and activations: the operations between the attention layers of a transformer.
#pragma once

#include <cstdint>

#include "multihead/context.h"
#include "multihead/export.h"
#include "multihead/status.h"
#include "multihead/tensor.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

/// y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias with the biased variance, as
/// torch.nn.LayerNorm. weight, bias (width), each optional.
///
/// x, y (rows, width), row strides free, last axes contiguous; y may be x, with the same strides,
/// but may not overlap the inputs otherwise. Means and squares are summed in float, lane by lane.
/// Errors: kShape; kOption (an eps that is negative or not finite). Nothing is written then.
[[nodiscard]] Status layer_norm(const ConstTensor& x, const ConstTensor& weight,
                                const ConstTensor& bias, float eps, const Tensor& y,
                                Context& context);

/// y = x / sqrt(mean(x^2) + eps) * weight (arXiv:1910.07467). weight (width), optional.
/// Otherwise as layer_norm().
[[nodiscard]] Status rms_norm(const ConstTensor& x, const ConstTensor& weight, float eps,
                              const Tensor& y, Context& context);

/// Elementwise functions; e is Euler's number, Phi the distribution function of a standard normal.
enum class Activation : uint8_t {
  kRelu,      ///< max(x, 0)
  kGelu,      ///< x Phi(x) (arXiv:1606.08415), within 2e-7 of the larger of 1 and |x|
  kGeluTanh,  ///< x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): GPT-2's
  kSilu,      ///< x / (1 + e^-x)
};

/// y = activation(x), element by element. x, y (rows, width), row strides free, last axes
/// contiguous; y may be x, as in layer_norm(). Errors: kShape, kOption. Nothing is written then.
[[nodiscard]] Status activate(const ConstTensor& x, Activation activation, const Tensor& y,
                              Context& context);

/// y = activation(gate) * x: SwiGLU if the activation is kSilu (arXiv:2002.05202). gate, x, y
/// (rows, width), row strides free, last axes contiguous; y may be gate or x, as in layer_norm().
/// Errors: kShape, kOption. Nothing is written then.
[[nodiscard]] Status activate_gated(const ConstTensor& gate, const ConstTensor& x,
                                    Activation activation, const Tensor& y, Context& context);

}  // namespace multihead
MULTIHEAD_PUBLIC_END
