// A call of attention(), checked and planned, that only has to run: once, or again and again.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "engine/plan.h"
#include "engine/validate.h"

namespace multihead::engine {

// QK-norm and RoPE: what becomes of q and k before they are multiplied.
struct InputTransforms {
  ConstAnyTensor q, k;
  QkNorm norm;
  Rope rope;
  rules::Visibility positions;  // of queries, where rope gives none
  std::span<const int32_t> lengths;
};

struct ForwardCall {
  ForwardPlan plan;
  std::optional<InputTransforms> transforms;  // given where the options ask for any

  void set_queries(const void* data) {
    (transforms ? transforms->q.data : plan.params.q.data) = data;
  }
  void set_keys(const void* data) { (transforms ? transforms->k.data : plan.params.k.data) = data; }
};

// The checks of attention(), which give the shape.
Status validate_call(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                     const AttentionOptions& options, const AttentionOutputs& outputs,
                     AttentionShape& shape);

// Of a call that has been checked. Plans are a kilobyte: they are made where they stay.
ForwardCall plan_call(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                      const AttentionShape& shape, const AttentionOptions& options,
                      const AttentionOutputs& outputs);
ForwardCall plan_scores_call(const ConstAnyTensor& q, const ConstAnyTensor& k,
                             const AttentionShape& shape, const AttentionOptions& options,
                             const ScoreCapture& capture);

// All memory that run() would ask for.
Status reserve_scratch(const ForwardCall& call, Context& context);

Status run(ForwardCall& call, Context& context);

}  // namespace multihead::engine
