#include "multihead/attention.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/attention/overlap.h"
#include "engine/attention/plan.h"
#include "engine/attention/run.h"
#include "engine/attention/validate.h"
#include "engine/error/error.h"

namespace multihead {
Status attention(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                 const AttentionOptions& options, const AttentionOutputs& outputs,
                 Context& context) {
  return engine::memory_guard([&]() -> Status {
    const engine::ForwardCall call{q, k, v, options, outputs};
    engine::AttentionShape shape;
    MULTIHEAD_TRY(engine::validate_call(call, shape));
    MULTIHEAD_TRY(engine::validate_apart(call));
    engine::ForwardPlan plan = engine::plan_forward(call, shape, !engine::attention_decodes);
    return engine::run(plan, context);
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
    MULTIHEAD_TRY(engine::validate_inputs(q, k, v, shape));
    MULTIHEAD_TRY(engine::validate_options(options, shape));
    MULTIHEAD_TRY(engine::validate_capture(capture, shape));
    MULTIHEAD_TRY(engine::validate_apart({q, k, {}, options, {.captures = {&capture, 1}}}));
    engine::ForwardPlan plan = engine::plan_scores(q, k, shape, options, capture);
    return engine::run(plan, context);
  });
}

Status merge_attention(const Tensor& out_a, const Tensor& lse_a, const ConstTensor& out_b,
                       const ConstTensor& lse_b, Context* context) {
  return engine::memory_guard([&]() -> Status {
    MULTIHEAD_TRY(engine::validate_merge(out_a, lse_a, out_b, lse_b));
    MULTIHEAD_TRY(engine::validate_apart({{Name::kOutB, out_b}, {Name::kLseB, lse_b}},
                                         {{Name::kOutA, out_a}, {Name::kLseA, lse_a}}));
    engine::merge_rows(out_a, lse_a, out_b, lse_b, context);
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
