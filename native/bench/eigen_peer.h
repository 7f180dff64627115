// The peer of every machine: attention as it is usually written with Eigen, as products of whole
// matrices on one thread. The oracle does not use it.
#pragma once

#include <array>
#include <cstdint>

namespace multihead::bench {

struct EigenAttention {
  const float *q, *k, *v;
  float* out;
  int64_t batch, heads, kv_heads, queries, keys, width;
  std::array<int64_t, 3> q_strides, k_strides;  // over (B, H, N); out is as q, v as k
  bool causal;                                  // aligned bottom right
  const float* additive;  // (H or 1, N_q, N_k), added to the scores; may be null
  int64_t additive_head_stride;
};
void eigen_attention(const EigenAttention& problem);

// x (tokens, embed), each weight (embed, embed), y = x W^T.
struct EigenModule {
  const float* x;
  std::array<const float*, 4> weights;  // q, k, v, out
  float* out;
  int64_t tokens, embed, heads;
};
void eigen_module(const EigenModule& problem);

// x (rows, in), weight (outputs, in), out = x W^T + bias; the same for all peers.
struct PeerLinear {
  const float *x, *weight, *bias;
  float* out;
  int64_t rows, in, outputs;
};
void eigen_linear(const PeerLinear& problem);

}  // namespace multihead::bench
