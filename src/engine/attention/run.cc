#include "engine/attention/run.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cpu/kernels.h"
#include "engine/attention/closed_form.h"
#include "engine/attention/transform.h"
#include "engine/runtime/jobs.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/team.h"
#include "rules/integers.h"

namespace multihead::engine {
namespace {

using rules::AttentionParams;
using rules::BlockTiling;
using rules::SplitTiling;

// The last rows of a head come first: with causal order they see the most keys, and long jobs that
// start late would leave the other threads idle.
cpu::BlockJob block_job(const ForwardPlan& plan, int64_t index) {
  const AttentionParams& p = plan.params;
  const BlockTiling& g = plan.blocks;
  const int64_t blocks = plan.work.end_block - plan.work.first_block;
  // A part of a call has one head per group, so its first group has the number of its first head.
  const int64_t group = plan.work.first_head + index / blocks;
  const int64_t block = plan.work.end_block - 1 - index % blocks;
  const int64_t kv_head = group % g.head_parts * g.heads;
  return {.batch = group / g.head_parts,
          .kv_head = kv_head,
          .end_head = std::min(kv_head + g.heads, p.kv_heads),
          .first_row = p.first_row() + block * g.rows};
}

// Number of splits of an entry that have keys; at least one.
int64_t splits_of_entry(const ForwardPlan& plan, int64_t batch) {
  const rules::KeyRange seen = plan.params.seen_keys(batch);
  if (seen.empty()) return 1;
  const int64_t keys = plan.splits.split_keys;
  return std::min(plan.splits.splits, rules::ceil_div(seen.last - seen.first, keys));
}

// Computes all KV splits, then merges the splits of each head.
Status run_decode(const ForwardPlan& plan, Context& context) {
  const AttentionParams& p = plan.params;
  const SplitTiling& g = plan.splits;
  const WorkRange& work = plan.work;
  Scratch& scratch = scratch_of(context);
  const uint64_t head_bytes = static_cast<uint64_t>(g.splits) * plan.partial_bytes;
  const auto partials = [&](int64_t head) {
    return static_cast<char*>(scratch.partials().data()) +
           static_cast<uint64_t>(head - work.first_head) * head_bytes;
  };
  MULTIHEAD_TRY(parallel_for_or_abort(
      context, "decode", plan.threads, g.jobs, [&](int64_t index, int thread) {
        const int64_t group = work.first_head + index / g.splits;
        const cpu::DecodeJob job{.batch = group / g.head_parts,
                                 .kv_head = group % g.head_parts * g.heads,
                                 .split = index % g.splits};
        if (job.split >= splits_of_entry(plan, job.batch)) return;
        cpu::decode_split(p, g, job,
                          partials(job.batch * p.kv_heads + job.kv_head) +
                              static_cast<uint64_t>(job.split) * plan.partial_bytes,
                          scratch.thread_memory(thread));
      }));
  parallel_for(context, "merge splits", plan.merge_threads, work.end_head - work.first_head,
               [&](int64_t index, int) {
                 const int64_t head = work.first_head + index, batch = head / p.kv_heads;
                 SplitTiling entry = g;
                 entry.splits = splits_of_entry(plan, batch);
                 cpu::decode_merge(p, entry, batch, head % p.kv_heads, partials(head));
               });
  return {};
}

Status run_blocks(const ForwardPlan& plan, Context& context) {
  const Scratch& scratch = scratch_of(context);
  return parallel_for_or_abort(
      context, "attention", plan.threads, plan.blocks.jobs, [&](int64_t index, int thread) {
        // Jobs begin in order, so the thread's next one is probably this.
        run_block(plan, index, index + plan.threads, scratch.thread_memory(thread));
      });
}

Status reserve_for_jobs(const ForwardPlan& plan, Context& context) {
  Scratch& scratch = scratch_of(context);
  if (plan.choice.kernel == Kernel::kDecode) {
    const auto results = static_cast<uint64_t>(plan.params.batch * plan.params.kv_heads *
                                               plan.choice.splits.most_splits);
    const uint64_t bytes = results * plan.partial_bytes;
    if (!scratch.partials().reserve(bytes)) return Status::out_of_memory(bytes);
  }
  return scratch.reserve(context.threads(), plan.scratch_bytes);
}

}  // namespace

Status reserve_scratch(const ForwardPlan& plan, Context& context) {
  if (plan.transforms) {
    MULTIHEAD_TRY(reserve_for_transform(*plan.transforms, context));
  }
  return reserve_for_jobs(plan, context);
}

void run_block(const ForwardPlan& plan, int64_t index, int64_t next, void* scratch) {
  const AttentionParams& p = plan.params;
  const BlockTiling& blocks = plan.blocks;
  const cpu::BlockJob job = block_job(plan, index);
  const bool has_next = next < blocks.jobs;
  const cpu::BlockJob next_job = has_next ? block_job(plan, next) : job;
  const cpu::BlockJob* const after = has_next ? &next_job : nullptr;
  switch (plan.choice.kernel) {
    case Kernel::kShortHeads:
      return cpu::forward_short_heads(p, blocks, job, scratch);
    case Kernel::kAmxBlocks:
      return cpu::forward_tile_block(p, blocks, job, after, scratch);
    case Kernel::kBf16Blocks:
      return cpu::forward_bf16_block(p, blocks, job, after, scratch);
    case Kernel::kClosedForm:
      return closed_form_block(p, blocks, job);
    case Kernel::kBlocks:
    case Kernel::kDecode:
      return cpu::forward_block(p, blocks, job, after, scratch);
  }
}

Status execute(const ForwardPlan& plan, Context& context) {
  if (plan.choice.kernel != Kernel::kDecode) return run_blocks(plan, context);
  MULTIHEAD_TRY(run_decode(plan, context));
  if (!plan.captures_beside_decode()) return {};
  ForwardPlan captures = plan;
  captures.params = plan.params.without_results();
  return run_blocks(captures, context);
}

Status run(ForwardPlan& plan, Context& context) {
  Team* const team = team_of(context);
  finish_plan(plan, context.threads(), team);
  if (!plan.scores_alone) last_call_of(context) = plan.choice;
  if (!plan.choice.has_work()) return {};
  MULTIHEAD_TRY(reserve_scratch(plan, context));
  if (plan.transforms) {
    MULTIHEAD_TRY(transform_inputs(*plan.transforms, plan.params, context));
  }
  if (plan.divides_heads) {
    return team == nullptr ? Team::member_left() : team->run_attention(plan, context);
  }
  return execute(plan, context);
}

Status run_part(ForwardPlan& plan, const AttentionPart& part, Context& context) {
  if (!plan.choice.has_work() || part.first_head >= part.end_head) return {};
  const WorkRange work{part.first_head, part.end_head, part.first_block, part.end_block};
  finish_plan(plan, context.threads(), nullptr, &work);
  if (plan.transforms) {
    MULTIHEAD_TRY(
        transform_part(*plan.transforms, part.first_head, part.end_head, plan.params, context));
  }
  MULTIHEAD_TRY(reserve_for_jobs(plan, context));
  return execute(plan, context);
}

void merge_rows(const Tensor& out_a, const Tensor& lse_a, const ConstTensor& out_b,
                const ConstTensor& lse_b, const Context* context) {
  const auto rows_of = [](const auto& tensor) {
    using T = std::remove_pointer_t<decltype(tensor.data)>;
    return rules::Rows<T>{tensor.data, {tensor.strides[0], tensor.strides[1], tensor.strides[2]}};
  };
  const Dims& shape = out_a.shape;
  const cpu::MergeParams params{.out_a = rows_of(out_a),
                                .lse_a = rows_of(lse_a),
                                .out_b = rows_of(out_b),
                                .lse_b = rows_of(lse_b),
                                .batch = shape[0],
                                .heads = shape[1],
                                .rows = shape[2],
                                .width = shape[3]};
  const int64_t rows = params.batch * params.heads * params.rows;
  // The exponential and the logarithm of a row take as long as 64 columns. The second thread joins
  // where one takes 35 to 60 us on Zen 4. Two take 0.53 of the time of one for 12 heads of 1024
  // rows.
  const double operations = 2.0 * static_cast<double>(params.width + 64);
  over_ranges(context, "merge", operations * static_cast<double>(rows), rows,
              [&](int64_t first, int64_t end) { cpu::merge_rows(params, first, end); });
}

}  // namespace multihead::engine
