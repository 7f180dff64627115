// The parameters of a layer, in memory.
#pragma once

#include <cstdint>

#include "multihead/context.h"
#include "multihead/status.h"
#include "multihead/tensor.h"
#include "multihead/weights.h"

namespace multihead::nn {

// Numbers in memory that another object owns.
struct Vector {
  float* data = nullptr;
  int64_t size = 0;

  bool given() const { return size > 0; }
  ConstTensor view() const { return given() ? ConstTensor(data, {size}) : ConstTensor(); }
};

// A matrix with a bias, which may be empty.
struct Projection {
  WeightMatrix weight;
  Vector bias;
  // True if `weight` has only the rows for the outputs of this member of a team, perhaps none. The
  // bias is whole.
  bool is_share = false;

  bool given() const { return weight.rows > 0 || is_share; }
};

// A norm without weight is none.
struct NormParameters {
  Vector weight, bias;

  bool given() const { return weight.given(); }
};

struct LayerParameters {
  NormParameters attention_norm, attention_out_norm, attention_sum_norm, q_norm, k_norm;
  NormParameters mlp_norm, mlp_out_norm, mlp_sum_norm;
  Vector relative_bias;               // (buckets, heads), if each layer has its own
  Vector attention_scale, mlp_scale;  // of what attention and MLP add
  Projection qkv;                     // q, k and v as one, or each by itself
  Projection q, k, v;
  Projection o;
  // Cross-attention of decoders: cross_kv or each by itself.
  NormParameters cross_norm, cross_sum_norm;
  Projection cross_q, cross_kv, cross_k, cross_v, cross_o;
  Projection gate_up;  // gate and up as one, or each by itself
  Projection gate, up;
  Projection down;
};

// The formula of a norm.
struct NormKind {
  bool rms = false;  // rms_norm(), else layer_norm()
  float eps = 0.0F;
};

// y = x W^T + bias.
Status project(const ConstTensor& x, const Projection& projection, const Tensor& y,
               Context& context);
// The gradient of project() with respect to x: d_x = d_y W, or += that.
Status project_backward(const WeightMatrix& weight, const Tensor& d_y, const Tensor& d_x,
                        bool adds_to_d_x, Context& context);
// Adds the gradients of project() to `gradient`, whose matrix is f32: d_y^T x to the matrix, the
// sums of the columns of d_y to the bias. A matrix or bias without memory gets none.
Status add_gradients(const ConstTensor& x, const ConstTensor& d_y, const Projection& gradient,
                     Context& context);
// y = norm(x); y may be x. Without a norm, a copy.
Status normalize(NormKind kind, const ConstTensor& x, const NormParameters& norm, const Tensor& y,
                 Context& context);

}  // namespace multihead::nn
