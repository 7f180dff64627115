#include "multihead/attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/forward_call.h"
#include "engine/guard.h"
#include "engine/validate.h"

namespace multihead {
Status attention(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                 const AttentionOptions& options, const AttentionOutputs& outputs,
                 Context& context) {
  return engine::memory_guard([&]() -> Status {
    engine::AttentionShape shape;
    if (Status status = engine::validate_call(q, k, v, options, outputs, shape); !status.ok()) {
      return status;
    }
    engine::ForwardCall call = engine::plan_call(q, k, v, shape, options, outputs);
    return engine::run(call, context);
  });
}

Status attention_scores(const ConstAnyTensor& q, const ConstAnyTensor& k,
                        const AttentionOptions& options, const ScoreCapture& capture,
                        Context& context) {
  return engine::memory_guard([&]() -> Status {
    // Keys without values.
    ConstAnyTensor v = k;
    v.data = nullptr;
    if (k.shape.rank() == 4) v.shape[3] = 0;
    engine::AttentionShape shape;
    if (Status status = engine::validate_inputs(q, k, v, shape); !status.ok()) return status;
    for (const Status& status :
         {engine::validate_options(options, shape), engine::validate_capture(capture, shape)}) {
      if (!status.ok()) return status;
    }
    engine::ForwardCall call = engine::plan_scores_call(q, k, shape, options, capture);
    return engine::run(call, context);
  });
}

Status merge_attention(const Tensor& out_a, const Tensor& lse_a, const ConstTensor& out_b,
                       const ConstTensor& lse_b) {
  return engine::memory_guard([&]() -> Status {
    using engine::validate_exact;
    constexpr const char* kOut = "(B, H_q, N_q, d_v)";
    constexpr const char* kLse = "(B, H_q, N_q)";
    if (Status status = engine::validate_rank("out_a", kOut, out_a, 4); !status.ok()) return status;
    const Dims& shape = out_a.shape;
    const Dims rows{shape[0], shape[1], shape[2]};
    for (const Status& status :
         {validate_exact("out_a", kOut, out_a, shape), validate_exact("lse_a", kLse, lse_a, rows),
          validate_exact("out_b", kOut, out_b, shape),
          validate_exact("lse_b", kLse, lse_b, rows)}) {
      if (!status.ok()) return status;
    }
    for (int64_t b = 0; b < shape[0]; ++b) {
      for (int64_t h = 0; h < shape[1]; ++h) {
        for (int64_t i = 0; i < shape[2]; ++i) {
          const auto at = [&](const auto& tensor) {
            return tensor.data + b * tensor.strides[0] + h * tensor.strides[1] +
                   i * tensor.strides[2];
          };
          const auto a_lse = static_cast<double>(*at(lse_a));
          const auto b_lse = static_cast<double>(*at(lse_b));
          // Neither part sees a key.
          const double larger = std::max(a_lse, b_lse);
          if (std::isinf(larger) && larger < 0 && !std::isnan(b_lse)) continue;
          const double lse = larger + std::log(std::exp(a_lse - larger) + std::exp(b_lse - larger));
          const auto a_share = static_cast<float>(std::exp(a_lse - lse));
          const auto b_share = static_cast<float>(std::exp(b_lse - lse));
          *at(lse_a) = static_cast<float>(lse);
          if (shape[3] == 0) continue;  // perhaps no data to point into
          float* const to = at(out_a);
          const float* const from = at(out_b);
          for (int64_t c = 0; c < shape[3]; ++c) to[c] = to[c] * a_share + from[c] * b_share;
        }
      }
    }
    return {};
  });
}

void alibi_slopes(std::span<float> slopes) {
  const auto heads = static_cast<int64_t>(slopes.size());
  int64_t power = 1;
  while (power * 2 <= heads) power *= 2;
  for (int64_t h = 0; h < heads; ++h) {
    const double exponent =
        h < power ? -8.0 * static_cast<double>(h + 1) / static_cast<double>(power)
                  : -4.0 * static_cast<double>(2 * (h - power) + 1) / static_cast<double>(power);
    slopes[static_cast<size_t>(h)] = static_cast<float>(std::exp2(exponent));
  }
}

}  // namespace multihead
