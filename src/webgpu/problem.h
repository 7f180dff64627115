// A checked call of attention on its way to plan_problem().
#pragma once

#include <cstdint>
#include <span>

#include "engine/attention/validate.h"
#include "multihead/attention.h"
#include "rules/attention_params.h"
#include "webgpu/plan.h"
#include "webgpu/planner.h"

namespace multihead::webgpu {

struct Problem {
  rules::AttentionParams params;
  const AttentionOptions& options;
  Extents q, k;                                   // of rows in memory, with width d_k
  std::span<const int32_t> cu_q = {}, cu_k = {};  // packed sequences
};

// Plans out, LSE and captures. Errors: what only the CPU computes, and limits of the GPU.
Status plan_problem(const Problem& of, const Device& device, Plan& plan);

constexpr Extents extents_of(const engine::AttentionShape& shape, bool of_queries) {
  if (of_queries) return {shape.batch, shape.heads, shape.queries, shape.head_dim};
  return {shape.batch, shape.kv_heads, shape.keys, shape.head_dim};
}

}  // namespace multihead::webgpu
