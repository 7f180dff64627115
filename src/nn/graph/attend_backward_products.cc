// In WebAssembly: products of matrices, one head at a time. They have memory for the weights of a
// head where the kernel of attention_backward() has none, but that kernel would make the module of
// models 8 kB larger (Brotli), for questions about short texts. With P the weights of a head, S
// the scores before the softmax, g the gradient of its output:
//
//   d_v = P^T g, d_P = g v^T, d_S = P (d_P - sum of P d_P over the row), d_q = scale d_S k,
//   d_k = scale d_S^T q
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/error/error.h"
#include "engine/runtime/scratch.h"
#include "multihead/weights.h"
#include "nn/call_memory.h"
#include "nn/graph/attend_backward.h"

namespace multihead::nn {
namespace {

// Of one head: `scores` become weights, and the gradients `d` of the weights those of the product
// of queries and keys.
void softmax_back(const AttentionOptions& options, float* scores, float* d, float* row_scores,
                  int64_t tokens) {
  const double cap = options.softcap;
  const double scale = options.scale.value_or(1.0F);
  for (int64_t row = 0; row < tokens; ++row, scores += tokens, d += tokens) {
    std::copy_n(scores, tokens, row_scores);
    const float most = *std::max_element(scores, scores + tokens);
    const bool sees = std::isfinite(most);
    double sum = 0, mean = 0;
    for (int64_t key = 0; key < tokens; ++key) {
      const bool seen = sees && std::isfinite(row_scores[key]);
      if (!seen) d[key] = 0.0F;
      scores[key] =
          seen ? static_cast<float>(std::exp(static_cast<double>(row_scores[key] - most))) : 0.0F;
      sum += scores[key];
      mean += static_cast<double>(scores[key]) * d[key];
    }
    for (int64_t key = 0; key < tokens && sees; ++key) {
      scores[key] = static_cast<float>(scores[key] / sum);
      const double gradient = scores[key] * (d[key] - mean / sum);
      const double bent = cap == 0.0 || gradient == 0.0 ? 0.0 : row_scores[key] / cap;
      d[key] = static_cast<float>(gradient * scale * (1.0 - bent * bent));
    }
  }
}

}  // namespace

Status attend_backward(const AttendBackward& call, Context& context) {
  const auto& [q, k, v, options, z, lse, d_z, d_q, d_k, d_v] = call;
  const int64_t batch = q.shape[0], tokens = q.shape[2], group = q.shape[1] / k.shape[1];
  const int64_t width = std::max(k.shape[3], v.shape[3]), map = tokens * tokens;
  engine::Buffer memory;
  float *scores = nullptr, *d = nullptr, *turned = nullptr, *side = nullptr, *sum = nullptr;
  MULTIHEAD_TRY(reserve(memory, [&](rules::Arena& take) {
    take(scores, saturated_elements({batch, tokens, tokens}));
    take(d, saturated_elements({tokens, tokens}));
    take(turned, saturated_elements({tokens, tokens}));
    take(side, saturated_elements({tokens, width}));
    take(sum, saturated_elements({tokens, width}));
  }));
  // out = a b, or a b^T.
  const auto multiply = [&](const Tensor& a, const Tensor& b, bool turns, const Tensor& out) {
    const int64_t rows = b.shape[0], columns = b.shape[1];
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t c = 0; c < columns; ++c) {
        side[turns ? row * columns + c : c * rows + row] = b.data[row * b.strides[0] + c];
      }
    }
    return linear(a,
                  turns ? WeightMatrix{side, WeightType::kF32, rows, columns}
                        : WeightMatrix{side, WeightType::kF32, columns, rows},
                  {}, out, context);
  };
  // Adds a^T b to `to`.
  const auto add_turned = [&](const float* a, const Tensor& b, const Tensor& to) -> Status {
    for (int64_t i = 0; i < map; ++i) turned[i % tokens * tokens + i / tokens] = a[i];
    const Tensor product(sum, {tokens, b.shape[1]});
    MULTIHEAD_TRY(multiply({turned, {tokens, tokens}}, b, false, product));
    for (int64_t i = 0; i < product.shape.elements(); ++i) {
      to.data[i / b.shape[1] * to.strides[0] + i % b.shape[1]] += sum[i];
    }
    return {};
  };
  for (int64_t h = 0; h < q.shape[1]; ++h) {
    const auto head = static_cast<int32_t>(h);
    MULTIHEAD_TRY(attention_scores(q, k, options,
                                   {.stage = ScoreStage::kMasked,
                                    .out = {scores, {batch, 1, tokens, tokens}},
                                    .heads = {&head, 1}},
                                   context));
    for (int64_t b = 0; b < batch; ++b) {
      const auto one = [&](const Tensor& all, int64_t index) {
        return Tensor(all.data + b * all.strides[0] + index * all.strides[1],
                      {tokens, all.shape[3]}, {all.strides[2], 1});
      };
      const int64_t kv = h / group;
      const Tensor to_k = one(d_k, kv), to_v = one(d_v, kv);
      for (int64_t token = 0; h % group == 0 && token < tokens; ++token) {
        std::fill_n(to_k.data + token * to_k.strides[0], to_k.shape[1], 0.0F);
        std::fill_n(to_v.data + token * to_v.strides[0], to_v.shape[1], 0.0F);
      }
      float* const own = scores + b * map;
      MULTIHEAD_TRY(multiply(one(d_z, h), one(v, kv), true, {d, {tokens, tokens}}));
      softmax_back(options, own, d, turned, tokens);
      MULTIHEAD_TRY(add_turned(own, one(d_z, h), to_v));
      MULTIHEAD_TRY(multiply({d, {tokens, tokens}}, one(k, kv), false, one(d_q, h)));
      MULTIHEAD_TRY(add_turned(d, one(q, h), to_k));
    }
  }
  return {};
}

}  // namespace multihead::nn
