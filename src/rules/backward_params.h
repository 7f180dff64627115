// Parameters of one attention_backward() call, shared by all backends.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "rules/attention_params.h"

namespace multihead::rules {

// Sum over scores (B, H_q, N_q, N_k): an axis of stride 0 is summed over.
struct SharedScores {
  float* data = nullptr;
  std::array<int64_t, 4> stride{};

  constexpr float* at(int64_t batch, int64_t head, int64_t query, int64_t key) const {
    return data + batch * stride[0] + head * stride[1] + query * stride[2] + key * stride[3];
  }
};

// Inputs and outputs of a backward call, in addition to the operands of its forward call.
struct GradientParams {
  StoredRows out, d_out;  // (B, H_q, N_q, d_v)
  Rows<const float> lse;  // (B, H_q, N_q)
  float scale;            // of the scores

  Rows<float> d_q, d_k, d_v;  // data may be null
  SharedScores d_bias;        // data may be null
};

struct BackwardParams : GradientParams {
  AttentionParams forward;  // without outputs; d_bias is zeros before the first job

  // (B, H_q, N_q) contiguous, written by backward_rows(). `delta`: sum over d_v of out * d_out (D
  // in FlashAttention-2, arXiv:2307.08691). `reference`: the row's LSE / scale.softmax.
  float* delta;
  float* reference;
  // Semaphores [B][H_kv][block of rows] for d_q, zeros before the first job: number of chunks of
  // keys that have added their part of d_q. Used with more than one chunk.
  std::atomic<int32_t>* query_semaphores;
  // Semaphores [B][H_kv][chunk] for d_k and d_v, zeros before the first job. Low bits: number of
  // finished row jobs. Bit kPartStored: set once d_k and d_v hold data, so that later jobs add
  // instead of store. Used with more than one row job.
  std::atomic<int32_t>* key_semaphores;
  static constexpr int32_t kPartStored = 1 << 30;

  constexpr int64_t row_index(int64_t batch, int64_t head, int64_t query) const {
    return (batch * forward.heads + head) * forward.queries + query;
  }
};

}  // namespace multihead::rules
