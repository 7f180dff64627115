// Captures of scores and weights, and the dropout mask. They serve inspection, not speed. One warp
// per row, one key per lane.
#include "cuda/kernels.h"
#include "cuda/rows.h"
#include "cuda/rows/scores_params.h"
#include "cuda/warp_rows.h"

namespace multihead::cuda {
namespace {

// A query row of a capture, scored against all keys.
struct ScoredRow {
  const ScoresParams& p;
  const Entry& entry;
  int64_t head, kv_head, query, q_row;
  QueryRow row;

  __device__ float product(int64_t key) const {
    const rules::AttentionParams& call = p.forward.call;
    int64_t slot = 0;
    if (!find_row(call.k, p.pool_pages, entry.batch, key, slot)) return -INFINITY;
    const int64_t k_row = rules::row_offset(call.k.stride, entry.batch, kv_head, slot);
    float sum = 0.0F;
    for (int64_t c = 0; c < call.head_dim; ++c) {
      sum += element(call.q.data, call.q.type, q_row + c) * call.scale.queries *
             element(call.k.data, call.k.type, k_row + c);
    }
    if (call.k.scales == nullptr) return sum;
    return sum * call.k.scales[rules::row_offset(call.k.scale_stride, entry.batch, kv_head, slot)];
  }

  // The score after step 4 at the head of multihead/attention.h, without the factor scale.softmax.
  __device__ float score(int64_t key) const {
    const rules::AttentionParams& call = p.forward.call;
    return biased_score(call, row, key, capped_score(call, product(key)));
  }
};

// The largest score of a row, and the sum of exp(scale.softmax * (score - largest)).
struct RowSum {
  float largest, sum;
};

__device__ RowSum sum_of(const ScoredRow& row) {
  const rules::AttentionParams& call = row.p.forward.call;
  const float factor = call.scale.softmax * kLog2E;
  float largest = call.sinks == nullptr ? -INFINITY : call.sinks[row.head] / call.scale.softmax;
  float sum = call.sinks != nullptr && lane() == 0 ? 1.0F : 0.0F;
  for (int64_t first = 0; first < row.entry.keys; first += kWarpSize) {
    const int64_t key = first + lane();
    const bool visible = key < row.entry.keys && sees(call, row.row, key);
    const float score = visible ? row.score(key) : -INFINITY;
    const float most = warp_max(score);
    const float reference = most > largest || most != most ? most : largest;
    if (largest != -INFINITY) sum *= exp2f((largest - reference) * factor);
    if (score != -INFINITY) sum += exp2f((score - reference) * factor);
    largest = reference;
  }
  return {largest, warp_sum(sum)};
}

__global__ void __launch_bounds__(kWarpRowThreads) capture_rows(const ScoresParams p) {
  const rules::AttentionParams& call = p.forward.call;
  const int64_t index = row_of_warp();
  if (index >= call.batch * p.heads * p.rows) return;
  const int64_t row = index % p.rows;
  const int64_t place = index / p.rows % p.heads;
  const Entry entry = entry_of(p.forward, index / p.rows / p.heads);
  const int64_t head = p.first_head + place, query = p.first_row + row;
  const ScoredRow scored{p,
                         entry,
                         head,
                         head / call.group(),
                         query,
                         rules::row_offset(call.q.stride, entry.batch, head, query),
                         query_row(call, entry, head, query)};
  RowSum total{};
  if (p.stage == ScoreStage::kWeights) total = sum_of(scored);
  float* const out = p.out.row(entry.batch, place, row);
  for (int64_t key = lane(); key < call.keys; key += kWarpSize) {
    const bool by_position = p.stage == ScoreStage::kRaw || p.stage == ScoreStage::kCapped;
    const bool visible =
        by_position ? entry.visibility.present.contains(key) : sees(call, scored.row, key);
    float value = -INFINITY;
    if (visible && p.stage == ScoreStage::kRaw) {
      value = scored.product(key) * call.scale.scores * call.scale.softmax;
    } else if (visible && p.stage == ScoreStage::kCapped) {
      value = capped_score(call, scored.product(key)) * call.scale.softmax;
    } else if (visible) {
      value = scored.score(key);
      if (p.stage == ScoreStage::kMasked) value *= call.scale.softmax;
    }
    if (p.stage == ScoreStage::kWeights) {
      value = value == -INFINITY
                  ? 0.0F
                  : exp2f((value - total.largest) * call.scale.softmax * kLog2E) / total.sum;
    }
    out[key] = value;
  }
}

__global__ void __launch_bounds__(kWarpRowThreads) write_dropout_mask(const ForwardParams p) {
  const rules::AttentionParams& call = p.call;
  const int64_t index = row_of_warp();
  if (index >= call.batch * call.heads * call.queries) return;
  const int64_t query = index % call.queries;
  const int64_t head = index / call.queries % call.heads;
  const Entry entry = entry_of(p, index / call.queries / call.heads);
  uint8_t* const row = call.dropout_mask.row(entry.batch, head, query);
  for (int64_t key = lane(); key < call.keys; key += kWarpSize) {
    row[key] = !call.dropout.given() || keeps(call, entry, head, query, key) ? 1 : 0;
  }
}

}  // namespace

int launch_scores(const ScoresParams& params, StreamHandle stream) {
  const int64_t rows = params.forward.call.batch * params.heads * params.rows;
  return launch_warp_rows(rows, stream, capture_rows, params);
}

int launch_dropout_mask(const ForwardParams& params, StreamHandle stream) {
  const rules::AttentionParams& call = params.call;
  return launch_warp_rows(call.batch * call.heads * call.queries, stream, write_dropout_mask,
                          params);
}

}  // namespace multihead::cuda
