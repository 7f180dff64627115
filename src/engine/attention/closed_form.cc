#include "engine/attention/closed_form.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace multihead::engine {
namespace {

using rules::AttentionParams;
using rules::KeyRange;

constexpr double kInf = std::numeric_limits<double>::infinity();

// log(exp(a) + exp(b))
double log_of_sum(double a, double b) {
  if (a == -kInf) return b;
  if (b == -kInf) return a;
  return std::max(a, b) + std::log(1.0 + std::exp(-std::abs(a - b)));
}

// log(sum of exp(-slope * t) for t = first .. last). The sum of n terms of the series is doubled to
// that of 2n terms, bit by bit of their number, so that no difference of numbers near 1 is needed.
double log_of_series(double slope, int64_t first, int64_t last) {
  if (first > last) return -kInf;
  const double ratio = std::exp(-std::abs(slope));
  const auto count = static_cast<uint64_t>(last - first + 1);
  double sum = 0, power = 1;  // of the terms so far, and the ratio to the power of their number
  for (int bit = 63; bit >= 0; --bit) {
    sum *= 1.0 + power;
    power *= power;
    if ((count >> bit) % 2 == 0) continue;
    sum = 1.0 + ratio * sum;
    power *= ratio;
  }
  return std::log(sum) - slope * static_cast<double>(slope > 0 ? first : last);
}

double slope_of(const AttentionParams& p, int64_t head) {
  return p.alibi_slopes == nullptr ? 0.0 : static_cast<double>(p.alibi_slopes[head]);
}

// Bias and mask at one key.
double shared_score(const AttentionParams& p, int64_t batch, int64_t head, int64_t query,
                    int64_t key) {
  if (p.mask.given() && p.mask.at(batch, head, query, key) == 0) return -kInf;
  return p.bias.given() ? static_cast<double>(p.bias.at(batch, head, query, key)) : 0.0;
}

// The scores of a captured row, or its weights.
void capture_row(const AttentionParams& p, ScoreStage stage, int64_t batch, int64_t head,
                 int64_t query, float* to) {
  const bool masked = stage >= ScoreStage::kMasked;
  const KeyRange seen = masked ? p.visibility.seen_by(batch, query) : p.visibility.present(batch);
  const double slope = slope_of(p, head);
  const int64_t position = query + p.visibility.alibi_shift(batch);
  const auto score = [&](int64_t key) {
    if (!seen.contains(key)) return -kInf;
    if (!masked) return 0.0;
    const double distance = static_cast<double>(std::abs(position - key));
    return shared_score(p, batch, head, query, key) - slope * distance;
  };
  double lse = 0;
  if (stage == ScoreStage::kWeights) {
    lse = p.sinks == nullptr ? -kInf : static_cast<double>(p.sinks[head]);
    for (int64_t key = 0; key < p.keys; ++key) lse = log_of_sum(lse, score(key));
  }
  for (int64_t key = 0; key < p.keys; ++key) {
    const double value = score(key);
    const bool hidden = value == -kInf;
    to[key] = static_cast<float>(stage != ScoreStage::kWeights ? value
                                 : hidden                      ? 0.0
                                                               : std::exp(value - lse));
  }
}

void capture_rows(const AttentionParams& p, const ScoreCapture& capture, const cpu::BlockJob& job,
                  int64_t first_query, int64_t end_query) {
  const Dims &shape = capture.out.shape, &stride = capture.out.strides;
  if (capture.out.data == nullptr || shape.elements() == 0) return;
  const int64_t begin = std::max(first_query, capture.first_row);
  const int64_t end = std::min(end_query, capture.first_row + shape[2]);
  for (int64_t place = 0; place < shape[1]; ++place) {
    const int64_t head =
        capture.heads.empty() ? place : int64_t{capture.heads[static_cast<size_t>(place)]};
    if (head / p.group() < job.kv_head || head / p.group() >= job.end_head) continue;
    for (int64_t query = begin; query < end; ++query) {
      capture_row(p, capture.stage, job.batch, head, query,
                  capture.out.data + job.batch * stride[0] + place * stride[1] +
                      (query - capture.first_row) * stride[2]);
    }
  }
}

}  // namespace

bool keys_share_mask_and_bias(const AttentionParams& p) {
  return (!p.mask.given() || p.mask.stride[3] == 0) && (!p.bias.given() || p.bias.stride[3] == 0);
}

bool has_closed_form(const AttentionParams& p) {
  if (p.head_dim != 0 || p.out.data != nullptr || p.weights.out.data != nullptr ||
      p.dropout_mask.data != nullptr) {
    return false;
  }
  return p.captures.empty() ? keys_share_mask_and_bias(p) : p.lse.data == nullptr;
}

float closed_form_lse(const AttentionParams& p, int64_t batch, int64_t head, int64_t query) {
  double lse = -kInf;
  const KeyRange seen = p.visibility.seen_by(batch, query);
  if (!seen.empty()) {
    // Keys before the query's own position, and from there on, where distances rise.
    const double slope = slope_of(p, head);
    const int64_t position = query + p.visibility.alibi_shift(batch);
    const int64_t from = std::clamp(position + 1, seen.first, seen.last);
    const double distances =
        log_of_sum(log_of_series(slope, position - from + 1, position - seen.first),
                   log_of_series(slope, from - position, seen.last - 1 - position));
    lse = shared_score(p, batch, head, query, seen.first);
    // An infinite score has no softmax.
    lse = lse == kInf ? std::numeric_limits<double>::quiet_NaN() : lse + distances;
  }
  if (p.sinks != nullptr) lse = log_of_sum(static_cast<double>(p.sinks[head]), lse);
  return static_cast<float>(lse);
}

void closed_form_block(const AttentionParams& p, const rules::BlockTiling& tiling,
                       const cpu::BlockJob& job) {
  const int64_t end_row = std::min(job.first_row + tiling.rows, p.end_row());
  if (p.lse.data != nullptr) {
    for (int64_t kv_head = job.kv_head; kv_head < job.end_head; ++kv_head) {
      for (int64_t row = job.first_row; row < end_row; ++row) {
        const int64_t head = kv_head * p.group() + row % p.group(), query = row / p.group();
        *p.lse.row(job.batch, head, query) = closed_form_lse(p, job.batch, head, query);
      }
    }
  }
  // Only jobs of all rows have captures.
  for (const ScoreCapture& capture : p.captures) {
    capture_rows(p, capture, job, job.first_row / p.group(), end_row / p.group());
  }
}

}  // namespace multihead::engine
