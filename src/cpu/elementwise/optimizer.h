// Interface of the kernels in optimizer.cc.
#pragma once

#include <cstdint>

namespace multihead::cpu {

// AdamW with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101), as
// torch.optim.AdamW.
//   g = gradient * gradient_scale
//   mean     = beta1 mean + (1 - beta1) g
//   variance = beta2 variance + (1 - beta2) g^2
//   parameter -= learning_rate * weight_decay * parameter
//   parameter -= learning_rate * (mean / mean_correction)
//                / (sqrt(variance / variance_correction) + eps)
struct AdamWStep {
  float* parameter;
  const float* gradient;
  float* mean;
  float* variance;
  int64_t count;
  float gradient_scale;  // includes clipping and the mean over targets
  float learning_rate, beta1, beta2, eps, weight_decay;
  float mean_correction;      // 1 - beta1^t in step t = 1, 2, ...
  float variance_correction;  // 1 - beta2^t
};

// Gradient descent with momentum, as torch.optim.SGD. Weight decay is added to the gradient.
//   g = gradient * gradient_scale + weight_decay * parameter
//   buffer = first ? g : momentum * buffer + g
//   parameter -= learning_rate * (nesterov ? g + momentum * buffer : buffer)
struct SgdStep {
  float* parameter;
  const float* gradient;
  float* momentum_buffer;  // null for no momentum
  int64_t count;
  float gradient_scale;
  float learning_rate, momentum, weight_decay;
  bool first;  // true if the buffer holds nothing yet
  bool nesterov;
};

void adamw_range(const AdamWStep& step, int64_t first, int64_t end);
void sgd_range(const SgdStep& step, int64_t first, int64_t end);

// Accumulates in double.
double sum_of_squares(const float* x, int64_t count);

}  // namespace multihead::cpu
