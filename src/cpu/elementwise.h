// The door to the kernels of elementwise.cc: rows of floats, checked already.
#pragma once

#include <cstdint>

#include "multihead/elementwise.h"

namespace multihead::cpu {

// Strides in elements from row to row; y may be x.
struct NormParams {
  const float* x;
  float* y;
  int64_t x_stride, y_stride;
  int64_t width;
  const float* weight;  // may be null
  const float* bias;    // may be null
  float epsilon;
  bool centred;  // LayerNorm; RMSNorm otherwise
};

struct ActivationParams {
  const float* gate;  // what goes through the activation
  const float* x;     // what it is multiplied by; null for nothing
  float* y;
  int64_t gate_stride, x_stride, y_stride;
  int64_t width;
  Activation activation;
};

// Rows first .. end - 1.
void norm_rows(const NormParams& params, int64_t first, int64_t end);
void activation_rows(const ActivationParams& params, int64_t first, int64_t end);

}  // namespace multihead::cpu
