#include "engine/attention/backward.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/attention/closed_form.h"
#include "rules/element.h"

namespace multihead::engine {
namespace {

using rules::AttentionParams;

// Keys whose products are summed side by side: a single sum would wait for each addition.
constexpr int64_t kKeysAtOnce = 8;

// Sets sums[i] to the product of the query and key first_key + i, for i < keys <= kKeysAtOnce. In
// f32, so that it overflows where the kernels' products do.
void multiply(const AttentionParams& p, int64_t query, int64_t first_key, int64_t keys,
              float* sums) {
  constexpr int64_t kColumns = 64;
  float q[kColumns], k[kKeysAtOnce][kColumns];
  std::fill_n(sums, keys, 0.0F);
  for (int64_t first = 0; first < p.head_dim; first += kColumns) {
    const int64_t columns = std::min(kColumns, p.head_dim - first);
    const int64_t q_row = rules::row_offset(p.q.stride, 0, 0, query);
    rules::read_floats(p.q.data, p.q.type, q_row + first, columns, q);
    for (int64_t c = 0; c < columns; ++c) q[c] *= p.scale.queries;
    for (int64_t i = 0; i < keys; ++i) {
      const int64_t k_row = rules::row_offset(p.k.stride, 0, 0, first_key + i);
      rules::read_floats(p.k.data, p.k.type, k_row + first, columns, k[i]);
    }
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t i = 0; i < keys; ++i) sums[i] += q[c] * k[i][c];
    }
  }
}

// The score of a product: steps 2 to 5 at the head of multihead/attention.h. -inf if it is hidden.
float score_of(const AttentionParams& p, float product, int64_t query, int64_t key) {
  if (p.mask.given() && p.mask.at(0, 0, query, key) == 0) return -HUGE_VALF;
  float score = product * p.scale.scores;
  if (p.softcap > 0.0F) score = p.softcap * std::tanh(score / p.softcap);
  if (p.bias.given()) {
    const float bias = p.bias.at(0, 0, query, key);
    // A bias of -inf hides the key, even if its score is NaN.
    if (bias == -HUGE_VALF) return bias;
    score += bias;
  }
  if (p.alibi_slopes != nullptr) {
    const int64_t distance = std::abs(query + p.visibility.alibi_shift(0) - key);
    score -= p.alibi_slopes[0] * static_cast<float>(distance);
  }
  return score * p.scale.softmax;
}

// The LSE of a row; NaN if a score is NaN.
double lse_of_row(const AttentionParams& p, int64_t query) {
  double largest = p.sinks == nullptr ? -HUGE_VAL : static_cast<double>(p.sinks[0]);
  double sum = p.sinks == nullptr ? 0.0 : 1.0;  // of exp(score - largest)
  const rules::KeyRange seen = p.visibility.seen_by(0, query);
  float products[kKeysAtOnce];
  for (int64_t first = seen.first; first < seen.last; first += kKeysAtOnce) {
    const int64_t keys = std::min(kKeysAtOnce, seen.last - first);
    multiply(p, query, first, keys, products);
    for (int64_t i = 0; i < keys; ++i) {
      const auto score = static_cast<double>(score_of(p, products[i], query, first + i));
      if (score == -HUGE_VAL) continue;
      const double rescale = score > largest ? std::exp(largest - score) : 1.0;
      largest = std::max(largest, score);
      sum = sum * rescale + std::exp(score - largest);
    }
  }
  return largest == -HUGE_VAL ? largest : largest + std::log(sum);
}

}  // namespace

Status check_lse(const rules::BackwardParams& params) {
  const AttentionParams& p = params.forward;
  if (p.batch == 0 || p.heads == 0 || p.queries == 0) return {};
  const int64_t query = p.queries - 1;
  const double expected = p.head_dim == 0 && keys_share_mask_and_bias(p)
                              ? static_cast<double>(closed_form_lse(p, 0, 0, query))
                              : lse_of_row(p, query);
  const auto given = static_cast<double>(*params.lse.row(0, 0, query));
  if (std::isnan(expected) || expected == HUGE_VAL || expected == given) return {};
  const double allowed = 0.05 + 0.01 * std::abs(expected);
  if (expected != -HUGE_VAL && std::abs(expected - given) <= allowed) return {};
  return real_error(Name::kLse, Message::kLseOfCall, given);
}

}  // namespace multihead::engine
