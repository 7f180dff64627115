#include "engine/plan.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

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

// Without elements there may be no address, to which nothing may be added either.
template <class TensorLike>
cpu::RowStrides row_strides(const TensorLike& tensor) {
  if (tensor.shape.elements() == 0) return {};
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
  params.bf16_products = options.bf16_products;
  return params;
}

// How many threads are worth waking: a second costs up to 6 us; two broke even between 2.6e5 and
// 5e5 operations.
int threads_for(double operations, const Context& context) {
  constexpr double kLeast = 2.5e5;  // for each
  return static_cast<int>(
      std::clamp(operations / kLeast, 1.0, static_cast<double>(context.threads())));
}

// Of one key/value head: the results of its pieces of keys, until they are merged.
uint64_t partials_of_head(const cpu::DecodeLayout& layout, int64_t pieces) {
  return static_cast<uint64_t>(pieces) * layout.partial_bytes;
}

int64_t rows_of(const cpu::ForwardParams& params) { return params.end_row() - params.first_row(); }

int64_t jobs_of_heads(const ForwardPlan& plan) {
  return (plan.params.kv_heads + plan.layout.heads - 1) / plan.layout.heads;
}

// Jobs of whole rows, which can do everything.
void plan_rows(ForwardPlan& plan) {
  const cpu::ForwardParams& params = plan.params;
  plan.decodes = false;
  plan.layout = cpu::forward_layout(params);
  plan.blocks = (rows_of(params) + plan.layout.block_rows - 1) / plan.layout.block_rows;
  plan.jobs = params.batch * jobs_of_heads(plan) * plan.blocks;
}

// Jobs of pieces of the keys that are seen, which follow the lengths.
void plan_pieces(ForwardPlan& plan) {
  const cpu::ForwardParams& params = plan.params;
  plan.decode = cpu::decode_layout(params);
  plan.blocks = (params.kv_heads + plan.decode.heads - 1) / plan.decode.heads;
  plan.jobs = params.batch * plan.blocks * plan.decode.pieces;
}

bool captures(const cpu::ForwardParams& params) {
  return !params.captures.empty() || params.weights.out.data != nullptr;
}

// What is captured beside a call that decodes: apart, so that it does not change a bit of the
// output.
ForwardPlan plan_captures(const ForwardPlan& plan) {
  ForwardPlan result = plan;
  result.params.out.data = nullptr;
  result.params.lse.data = nullptr;
  plan_rows(result);
  return result;
}

void plan_jobs(ForwardPlan& plan, bool may_decode) {
  const cpu::ForwardParams& params = plan.params;
  const int64_t rows = params.kv_heads == 0 ? 0 : rows_of(params);
  if (params.batch * rows == 0) return;
  plan.operations = 2.0 * static_cast<double>(params.batch * params.kv_heads * rows) *
                    static_cast<double>(params.keys) *
                    static_cast<double>(params.key_width + params.value_width);
  cpu::ForwardParams bare = params;
  bare.captures = {};
  bare.weights = {};
  plan.decodes = may_decode && params.out.data != nullptr && cpu::decode_fits(bare);
  if (!plan.decodes) return plan_rows(plan);
  plan_pieces(plan);
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
                         const AttentionOptions& options, const AttentionOutputs& outputs,
                         bool may_decode) {
  ForwardPlan plan{};
  plan.params = shared_params(inputs, shape, options);
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
  plan_jobs(plan, may_decode);
  return plan;
}

ForwardPlan plan_scores(const ForwardInputs& inputs, const AttentionShape& shape,
                        const AttentionOptions& options, const ScoreCapture& capture) {
  ForwardPlan plan{};
  plan.params = shared_params(inputs, shape, options);
  plan.params.captures = {&capture, 1};
  plan.params.first_query = capture.first_row;
  plan.params.end_query = capture.first_row + capture.out.shape[2];
  plan_jobs(plan, false);
  return plan;
}

void follow_lengths(ForwardPlan& plan) {
  if (plan.decodes && plan.params.visibility.lengths != nullptr) plan_pieces(plan);
}

cpu::ForwardJob ForwardPlan::job(int64_t index) const {
  // Within a head the last rows first: with causal they see the most keys, and long jobs
  // that start late would leave the other threads idle.
  const int64_t heads = index / blocks;
  const int64_t block = blocks - 1 - index % blocks;
  const int64_t of_batch = jobs_of_heads(*this);
  const int64_t kv_head = heads % of_batch * layout.heads;
  return {.batch = heads / of_batch,
          .kv_head = kv_head,
          .end_head = std::min(kv_head + layout.heads, params.kv_heads),
          .first_row = params.first_row() + block * layout.block_rows};
}

Status reserve_scratch(const ForwardPlan& plan, Context& context) {
  Scratch& scratch = context.scratch();
  if (!plan.decodes) return scratch.reserve(context.threads(), plan.layout.scratch_bytes);
  const auto heads = static_cast<uint64_t>(plan.params.batch * plan.params.kv_heads);
  const uint64_t bytes = heads * partials_of_head(plan.decode, plan.decode.most_pieces);
  if (!scratch.partials().reserve(bytes)) return Status::out_of_memory(bytes);
  uint64_t of_thread = plan.decode.scratch_bytes;
  if (captures(plan.params)) {
    of_thread = std::max(of_thread, plan_captures(plan).layout.scratch_bytes);
  }
  return scratch.reserve(context.threads(), of_thread);
}

namespace {

void run_decode(const ForwardPlan& plan, Context& context) {
  const cpu::ForwardParams& params = plan.params;
  const cpu::DecodeLayout& layout = plan.decode;
  Scratch& scratch = context.scratch();
  const int64_t heads = params.batch * params.kv_heads;
  const uint64_t head_bytes = partials_of_head(layout, layout.pieces);
  const auto partials = [&](int64_t head) {
    return static_cast<char*>(scratch.partials().data()) + static_cast<uint64_t>(head) * head_bytes;
  };
  parallel_for(threads_for(plan.operations, context), plan.jobs, [&](int64_t index, int thread) {
    const int64_t block = index / layout.pieces;
    const cpu::DecodeJob job{.batch = block / plan.blocks,
                             .kv_head = block % plan.blocks * layout.heads,
                             .piece = index % layout.pieces};
    cpu::decode_piece(params, layout, job,
                      partials(job.batch * params.kv_heads + job.kv_head) +
                          static_cast<uint64_t>(job.piece) * layout.partial_bytes,
                      scratch.of_thread(thread));
  });
  const auto merged = static_cast<double>(static_cast<uint64_t>(heads) * head_bytes);
  parallel_for(threads_for(merged, context), heads, [&](int64_t head, int) {
    cpu::decode_merge(params, layout, head / params.kv_heads, head % params.kv_heads,
                      partials(head));
  });
}

}  // namespace

Status run_forward(const ForwardPlan& plan, Context& context) {
  if (Status status = reserve_scratch(plan, context); !status.ok()) return status;
  if (plan.decodes) {
    run_decode(plan, context);
    return captures(plan.params) ? run_forward(plan_captures(plan), context) : Status();
  }
  const Scratch& scratch = context.scratch();
  const int threads = threads_for(plan.operations, context);
  parallel_for(threads, plan.jobs, [&](int64_t index, int thread) {
    const cpu::ForwardJob job = plan.job(index);
    // Jobs are handed out in order: the others are at those between.
    const int64_t then = index + threads;
    const cpu::ForwardJob next = then < plan.jobs ? plan.job(then) : job;
    cpu::forward_block(plan.params, job, then < plan.jobs ? &next : nullptr,
                       scratch.of_thread(thread));
  });
  return {};
}

}  // namespace multihead::engine
