// One call of attention_backward(), as every backend gets it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "rules/attention_params.h"

namespace multihead::rules {

// A sum over scores (B, H_q, N_q, N_k): along axes of stride 0, scores are added.
struct SharedScores {
  float* data = nullptr;
  std::array<int64_t, 4> stride{};

  constexpr float* at(int64_t batch, int64_t head, int64_t query, int64_t key) const {
    return data + batch * stride[0] + head * stride[1] + query * stride[2] + key * stride[3];
  }
};

// What a backward call reads and writes beside the operands of its forward call.
struct GradientParams {
  StoredRows out, d_out;  // (B, H_q, N_q, d_v)
  Rows<const float> lse;  // (B, H_q, N_q)
  float scale;            // of the scores

  Rows<float> d_q, d_k, d_v;  // data may be null
  SharedScores d_bias;        // data may be null
};

struct BackwardParams : GradientParams {
  AttentionParams forward;  // without outputs; d_bias is zeros before the first job

  // (B, H_q, N_q) contiguous, written by backward_rows(): the sum of out * d_out over a row, and
  // the row's LSE / scale.of_softmax.
  float* delta;
  float* reference;
  // [B][H_kv][block of rows], zeros before the first job: how many of the chunks of keys that the
  // rows see have added their part of d_q. Used with more than one chunk.
  std::atomic<int32_t>* query_turns;
  // [B][H_kv][chunk], zeros before the first job: how many jobs have added their part of d_k and
  // d_v, and kPartStored once one of them had a part. Used with more than one job for the rows.
  std::atomic<int32_t>* key_turns;
  static constexpr int32_t kPartStored = 1 << 30;

  constexpr int64_t row_index(int64_t batch, int64_t head, int64_t query) const {
    return (batch * forward.heads + head) * forward.queries + query;
  }
};

}  // namespace multihead::rules
