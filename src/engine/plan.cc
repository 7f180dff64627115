#include "engine/plan.h"

#include <algorithm>
#include <cmath>

#include "engine/scratch.h"
#include "engine/threads.h"

namespace multihead::engine {
namespace {

cpu::Element element_of(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return cpu::Element::kF16;
    case DType::kBF16:
      return cpu::Element::kBF16;
    case DType::kF32:
      break;
  }
  return cpu::Element::kF32;
}

template <class TensorLike>
cpu::RowStrides row_strides(const TensorLike& tensor) {
  return {tensor.strides[0], tensor.strides[1], tensor.strides[2]};
}

cpu::ForwardParams shared_params(const ForwardInputs& inputs, const AttentionShape& shape,
                                 const AttentionOptions& options) {
  cpu::ForwardParams params{};
  params.q = inputs.q;
  params.k = inputs.k;
  params.v = inputs.v;
  params.batch = shape.batch;
  params.heads = shape.heads;
  params.kv_heads = shape.kv_heads;
  params.queries = shape.queries;
  params.keys = shape.keys;
  params.key_width = shape.key_width;
  params.value_width = shape.value_width;
  params.first_query = 0;
  params.end_query = shape.queries;
  params.scale = options.scale.value_or(
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.key_width))));
  params.visibility = rules::make_visibility(options, shape.queries, shape.keys);
  params.visibility.firsts = inputs.firsts;
  if (inputs.lengths != nullptr) params.visibility.lengths = inputs.lengths;
  params.mask = rules::broadcast_to_scores(options.mask);
  params.bias = rules::broadcast_to_scores(options.bias);
  params.alibi_slopes = options.alibi_slopes.empty() ? nullptr : options.alibi_slopes.data();
  params.softcap = options.softcap;
  params.sinks = options.sinks.empty() ? nullptr : options.sinks.data();
  params.dropout = options.dropout;
  return params;
}

// How many threads are worth waking. OpenMP's team costs 1 us where it waits for work and 5 to
// 50 where it sleeps; this many multiply-adds take one thread 3 to 5.
int team_for(const cpu::ForwardParams& p, int threads) {
  constexpr double kLeastWork = 1 << 17;
  const double products =
      static_cast<double>(p.batch * p.heads) * static_cast<double>(p.end_query - p.first_query) *
      static_cast<double>(p.keys) * static_cast<double>(p.key_width + p.value_width);
  return products < kLeastWork * threads ? std::max(1, static_cast<int>(products / kLeastWork))
                                         : threads;
}

void plan_jobs(ForwardPlan& plan) {
  const cpu::ForwardParams& params = plan.params;
  const int64_t rows = params.kv_heads == 0 ? 0 : params.end_row() - params.first_row();
  if (params.batch * rows == 0) return;
  plan.layout = cpu::forward_layout(params);
  plan.blocks = (rows + plan.layout.block_rows - 1) / plan.layout.block_rows;
  plan.jobs = params.batch * params.kv_heads * plan.blocks;
}

}  // namespace

cpu::StoredRows stored_rows(const ConstAnyTensor& tensor) {
  cpu::StoredRows rows;
  rows.data = tensor.data;
  rows.element = element_of(tensor.dtype);
  rows.stride = row_strides(tensor);
  return rows;
}

ForwardPlan plan_forward(const ForwardInputs& inputs, const AttentionShape& shape,
                         const AttentionOptions& options, const AttentionOutputs& outputs) {
  ForwardPlan plan{
      .params = shared_params(inputs, shape, options), .layout = {}, .blocks = 0, .jobs = 0};
  cpu::ForwardParams& params = plan.params;
  params.out = {.data = outputs.out.data,
                .element = element_of(outputs.out.dtype),
                .stride = row_strides(outputs.out)};
  if (outputs.lse.given()) params.lse = {outputs.lse.data, row_strides(outputs.lse)};
  if (outputs.dropout_mask.given()) {
    params.dropout_mask = {outputs.dropout_mask.data, row_strides(outputs.dropout_mask)};
  }
  params.weights.out = outputs.weights;
  params.captures = outputs.captures;
  plan_jobs(plan);
  return plan;
}

ForwardPlan plan_scores(const ForwardInputs& inputs, const AttentionShape& shape,
                        const AttentionOptions& options, const ScoreCapture& capture) {
  ForwardPlan plan{
      .params = shared_params(inputs, shape, options), .layout = {}, .blocks = 0, .jobs = 0};
  plan.params.captures = {&capture, 1};
  plan.params.first_query = capture.first_row;
  plan.params.end_query = capture.first_row + capture.out.shape[2];
  plan_jobs(plan);
  return plan;
}

ForwardJob ForwardPlan::job(int64_t index) const {
  // Within a head the last rows first: with causal they see the most keys, and long jobs
  // that start late would leave the other threads idle.
  const int64_t head = index / blocks;
  const int64_t block = blocks - 1 - index % blocks;
  return {.batch = head / params.kv_heads,
          .kv_head = head % params.kv_heads,
          .first_row = params.first_row() + block * layout.block_rows};
}

Status reserve_scratch(const ForwardPlan& plan, Context& context) {
  return context.scratch().reserve(context.threads(), plan.layout.scratch_bytes);
}

Status run_forward(const ForwardPlan& plan, Context& context) {
  if (Status status = reserve_scratch(plan, context); !status.ok()) return status;
  const Scratch& scratch = context.scratch();
  parallel_for(team_for(plan.params, context.threads()), plan.jobs, [&](int64_t index, int thread) {
    const ForwardJob job = plan.job(index);
    cpu::forward_block(plan.params, job.batch, job.kv_head, job.first_row,
                       scratch.of_thread(thread));
  });
  return {};
}

}  // namespace multihead::engine
