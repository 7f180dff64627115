#include "engine/plan.h"

#include <cmath>

namespace multihead::engine {
namespace {

template <class T>
cpu::Rows<T> rows_of(const TensorView<T>& tensor) {
  cpu::Rows<T> rows{.data = tensor.data};
  for (int axis = 0; axis < 3; ++axis) {
    rows.stride[static_cast<size_t>(axis)] = tensor.strides[axis];
  }
  return rows;
}

}  // namespace

ForwardPlan plan_forward(const AttentionShape& shape, const ConstTensor& q, const ConstTensor& k,
                         const ConstTensor& v, const AttentionOptions& options,
                         const AttentionOutputs& outputs) {
  const float default_scale =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.key_width)));
  ForwardPlan plan{
      .params = {.q = rows_of(q),
                 .k = rows_of(k),
                 .v = rows_of(v),
                 .out = rows_of(outputs.out),
                 .lse = rows_of(outputs.lse),
                 .weights = rows_of(outputs.weights),
                 .batch = shape.batch,
                 .heads = shape.heads,
                 .kv_heads = shape.kv_heads,
                 .queries = shape.queries,
                 .keys = shape.keys,
                 .key_width = shape.key_width,
                 .value_width = shape.value_width,
                 .scale = options.scale.value_or(default_scale),
                 .visibility = rules::make_visibility(options.causal, shape.queries, shape.keys),
                 .mask = rules::broadcast_to_scores(options.mask),
                 .bias = rules::broadcast_to_scores(options.bias)},
      .layout = {},
      .blocks = 0,
      .jobs = 0};
  if (shape.batch * shape.heads * shape.queries == 0) return plan;
  plan.layout = cpu::forward_layout(plan.params);
  plan.blocks = (plan.params.rows() + plan.layout.block_rows - 1) / plan.layout.block_rows;
  plan.jobs = shape.batch * shape.kv_heads * plan.blocks;
  return plan;
}

ForwardJob ForwardPlan::job(int64_t index) const {
  // Within a head the last rows first: with causal they see the most keys, and long jobs
  // that start late would leave the other threads idle.
  const int64_t head = index / blocks;
  const int64_t block = blocks - 1 - index % blocks;
  return {.batch = head / params.kv_heads,
          .kv_head = head % params.kv_heads,
          .first_row = block * layout.block_rows};
}

}  // namespace multihead::engine
