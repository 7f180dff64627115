// Interface of the kernels in elementwise.cc and convert_rows.cc. Rows of floats; arguments are
// already checked.
#pragma once

#include <cstdint>

#include "multihead/elementwise.h"

namespace multihead::cpu {

// Strides in elements from row to row. `y` may be `x`.
struct NormParams {
  const float* x;
  float* y;
  int64_t x_stride, y_stride;
  int64_t width;
  const float* weight;  // may be null
  const float* bias;    // may be null
  float eps;
  bool centered;  // LayerNorm; RMSNorm otherwise
};

struct ActivationParams {
  const float* gate;  // input of the activation
  const float* x;     // factor of the activation; null for none
  float* y;
  int64_t gate_stride, x_stride, y_stride;
  int64_t width;
  Activation activation;
};

// Row r is token r, at position first_position + r % sequence.
struct EmbedParams {
  const int32_t* tokens;
  const float* embeddings;  // (vocabulary, width)
  const float* positions;   // (positions, width); may be null
  int64_t first_position, sequence;
  int64_t width;
  float* y;  // (rows, width)
};

// (B, H, N, width): row r consists of all heads of token r % tokens in batch entry r / tokens.
// Strides of batch, head and token.
struct ScaleHeadsParams {
  float* x;
  int64_t stride[3];
  int64_t heads, tokens, width;
  const float* factors;  // (heads)
};

// Rows as in ScaleHeadsParams; y (B, N, width) with strides of batch and token.
struct MeanHeadsParams {
  const float* x;
  float* y;
  int64_t x_stride[3], y_stride[2];
  int64_t heads, tokens, width;
};

// Rows first .. end - 1.
void norm_rows(const NormParams& params, int64_t first, int64_t end);
void activation_rows(const ActivationParams& params, int64_t first, int64_t end);
void embed_rows(const EmbedParams& params, int64_t first, int64_t end);
void scale_heads_rows(const ScaleHeadsParams& params, int64_t first, int64_t end);
void mean_heads_rows(const MeanHeadsParams& params, int64_t first, int64_t end);

// y = a + b; y may be a or b.
void add(const float* a, const float* b, float* y, int64_t count);

// Rows of numbers, written in another type. Strides from row to row, in elements. The target does
// not overlap the source.
struct ConvertRows {
  const void* from;
  DType from_type;  // not int8
  int64_t from_stride;
  void* to;
  DType to_type;
  int64_t to_stride;
  float* scales;  // to_type kInt8: one per row
  int64_t scale_stride;
  int64_t rows, width;
};

// Rounds to nearest, ties to even, with the bits of rules::from_float(). An int8 is the number
// divided by the row's scale, which is the row's largest magnitude / 127. If a row contains a NaN
// or an infinity, so does its scale, and its integers are 1.
void convert_rows(const ConvertRows& call);

}  // namespace multihead::cpu
