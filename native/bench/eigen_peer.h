// The comparison program on every machine: attention as usually written with Eigen, with products
// of whole matrices on one thread. The oracle does not use it.
#pragma once

#include <array>
#include <cstdint>

namespace multihead::bench {

struct EigenAttention {
  const float *q, *k, *v;
  float* out;
  int64_t batch, heads, kv_heads, queries, keys, width;
  std::array<int64_t, 3> q_strides, k_strides;  // axes (B, H, N); also for out and v
  bool causal;                                  // aligned bottom right
  const float* additive;  // (H or 1, N_q, N_k), added to the scores; may be null
  int64_t additive_head_stride;
};
void eigen_attention(const EigenAttention& problem);

// x is (tokens, embed), each weight (embed, embed); y = x W^T.
struct EigenModule {
  const float* x;
  std::array<const float*, 4> weights;  // q, k, v, out
  float* out;
  int64_t tokens, embed, heads;
};
void eigen_module(const EigenModule& problem);

// out = x W^T + bias, with x (rows, in) and weight W (outputs, in). Eigen and OpenBLAS both use it.
struct PeerLinear {
  const float *x, *weight, *bias;
  float* out;
  int64_t rows, in, outputs;
};
void eigen_linear(const PeerLinear& problem);

}  // namespace multihead::bench
