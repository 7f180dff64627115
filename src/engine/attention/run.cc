#include "engine/attention/run.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/attention/closed_form.h"
#include "engine/attention/transform.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/team.h"
#include "engine/runtime/threads.h"

namespace multihead::engine {
namespace {

using rules::AttentionParams;
using rules::BlockGeometry;
using rules::SplitGeometry;

// The last rows of a head come first: with causal order they see the most keys, and long jobs that
// start late would leave the other threads idle.
cpu::BlockJob block_job(const AttentionParams& p, const BlockGeometry& g, int64_t index) {
  const int64_t heads = index / g.row_parts;
  const int64_t block = g.row_parts - 1 - index % g.row_parts;
  const int64_t kv_head = heads % g.head_parts * g.heads;
  return {.batch = heads / g.head_parts,
          .kv_head = kv_head,
          .end_head = std::min(kv_head + g.heads, p.kv_heads),
          .first_row = p.first_row() + block * g.rows};
}

// How many splits of an entry have keys; at least one.
int64_t splits_of_entry(const AttentionPlan& plan, int64_t batch) {
  const rules::KeyRange seen = plan.params.seen_keys(batch);
  if (seen.empty()) return 1;
  const int64_t keys = plan.splits.split_keys;
  return std::min(plan.splits.splits, (seen.last - seen.first + keys - 1) / keys);
}

void merge_splits(const AttentionPlan& plan, int64_t batch, int64_t kv_head, void* partials) {
  SplitGeometry of_entry = plan.splits;
  of_entry.splits = splits_of_entry(plan, batch);
  cpu::decode_merge(plan.params, of_entry, batch, kv_head, partials);
}

void run_decode(const AttentionPlan& plan, Context& context) {
  const AttentionParams& p = plan.params;
  const SplitGeometry& g = plan.splits;
  Scratch& scratch = scratch_of(context);
  const int64_t heads = p.batch * p.kv_heads;
  const uint64_t head_bytes = static_cast<uint64_t>(g.splits) * plan.partial_bytes;
  const auto partials = [&](int64_t head) {
    return static_cast<char*>(scratch.partials().data()) + static_cast<uint64_t>(head) * head_bytes;
  };
  parallel_for(threads_for(plan.operations, context.threads()), g.jobs,
               [&](int64_t index, int thread) {
                 const int64_t part = index / g.splits;
                 const cpu::DecodeJob job{.batch = part / g.head_parts,
                                          .kv_head = part % g.head_parts * g.heads,
                                          .split = index % g.splits};
                 if (job.split >= splits_of_entry(plan, job.batch)) return;
                 cpu::decode_split(p, g, job,
                                   partials(job.batch * p.kv_heads + job.kv_head) +
                                       static_cast<uint64_t>(job.split) * plan.partial_bytes,
                                   scratch.of_thread(thread));
               });
  const auto merged = static_cast<double>(static_cast<uint64_t>(heads) * head_bytes);
  parallel_for(threads_for(merged, context.threads()), heads, [&](int64_t head, int) {
    merge_splits(plan, head / p.kv_heads, head % p.kv_heads, partials(head));
  });
}

void run_captures(const AttentionPlan& plan, Context& context) {
  const AttentionParams captures = plan.params.without_results();
  const Scratch& scratch = scratch_of(context);
  parallel_for(threads_for(plan.operations, context.threads()), plan.blocks.jobs,
               [&](int64_t index, int thread) {
                 cpu::forward_block(captures, plan.blocks, block_job(captures, plan.blocks, index),
                                    nullptr, scratch.of_thread(thread));
               });
}

void run_block_job(const AttentionPlan& plan, const cpu::BlockJob& job, const cpu::BlockJob* next,
                   void* scratch) {
  const AttentionParams& p = plan.params;
  switch (plan.path) {
    case Path::kShortHeads:
      return cpu::forward_short_heads(p, plan.blocks, job, scratch);
    case Path::kAmxBlocks:
      return cpu::forward_tile_block(p, plan.blocks, job, next, scratch);
    case Path::kBf16Blocks:
      return cpu::forward_bf16_block(p, plan.blocks, job, next, scratch);
    case Path::kClosedForm:
      return closed_form_block(p, plan.blocks, job);
    case Path::kBlocks:
    case Path::kDecode:
      return cpu::forward_block(p, plan.blocks, job, next, scratch);
  }
}

// All splits of one key/value head, and their merging.
void run_decode_head(const AttentionPlan& plan, int64_t batch, int64_t kv_head, void* partials,
                     void* scratch) {
  for (int64_t split = 0; split < splits_of_entry(plan, batch); ++split) {
    auto* const result =
        static_cast<char*>(partials) + static_cast<uint64_t>(split) * plan.partial_bytes;
    cpu::decode_split(plan.params, plan.splits,
                      {.batch = batch, .kv_head = kv_head, .split = split}, result, scratch);
  }
  merge_splits(plan, batch, kv_head, partials);
}

// One head a job, which changes no bit: the heads of a job are computed one after the other.
void run_heads(AttentionPlan plan, const AttentionPart& part, Context& context) {
  plan.blocks.heads = plan.splits.heads = 1;
  Scratch& scratch = scratch_of(context);
  const int64_t kv_heads = plan.params.kv_heads;
  const int64_t heads = part.end_head - part.first_head;
  int64_t first_block = part.first_block, blocks = part.end_block - part.first_block;
  if (plan.path == Path::kDecode) {
    const uint64_t head_bytes = static_cast<uint64_t>(plan.splits.splits) * plan.partial_bytes;
    auto* const partials = static_cast<char*>(scratch.partials().data());
    parallel_for(context.threads(), heads, [&](int64_t index, int thread) {
      const int64_t head = part.first_head + index;
      run_decode_head(plan, head / kv_heads, head % kv_heads,
                      partials + static_cast<uint64_t>(index) * head_bytes,
                      scratch.of_thread(thread));
    });
    if (!plan.captures_beside_decode()) return;
    plan.params = plan.params.without_results();
    first_block = 0;
    blocks = plan.blocks.row_parts;
  }
  parallel_for(context.threads(), heads * blocks, [&](int64_t index, int thread) {
    const int64_t head = part.first_head + index / blocks;
    const int64_t block = first_block + blocks - 1 - index % blocks;
    const cpu::BlockJob job{.batch = head / kv_heads,
                            .kv_head = head % kv_heads,
                            .end_head = head % kv_heads + 1,
                            .first_row = plan.params.first_row() + block * plan.blocks.rows};
    run_block_job(plan, job, nullptr, scratch.of_thread(thread));
  });
}

// Whether the members of a team divide the heads of a call. Calls with captures, weights or a
// dropout mask, and calls of some rows alone, are not divided.
bool divides(const AttentionPlan& plan, const Team& team) {
  const AttentionParams& p = plan.params;
  return team.is_worth(plan.operations) && p.kv_heads > 1 && !p.captures_anything() &&
         p.dropout_mask.data == nullptr && p.out.data != nullptr && p.first_query == 0 &&
         p.end_query == p.queries;
}

// Exchanges `rows` rows of each head of one batch entry. Before, each member has the rows of its
// query heads.
Status exchange_heads(Team& team, const AttentionParams& p, void* data,
                      const rules::RowStrides& stride, int64_t rows, int64_t width,
                      int64_t element_bytes) {
  if (data == nullptr) return {};
  const bool side_by_side = stride[1] < stride[2];
  const int64_t last = side_by_side ? width : (rows - 1) * stride[2] + width;
  std::vector<uint32_t> bounds;
  for (int member = 0; member <= team.members(); ++member) {
    const int64_t head = team.first_of(p.kv_heads, member) * p.group();
    const int64_t at = head < p.heads ? head * stride[1] : (p.heads - 1) * stride[1] + last;
    bounds.push_back(static_cast<uint32_t>(at * element_bytes));
  }
  return team.exchange(data, side_by_side ? rows : 1, side_by_side ? stride[2] * element_bytes : 0,
                       bounds);
}

// Exchanges what was captured of one batch entry.
Status exchange_capture(Team& team, const AttentionParams& p, const ScoreCapture& capture,
                        int64_t batch) {
  const Tensor& out = capture.out;
  if (out.data == nullptr || out.shape.elements() == 0) return {};
  float* const data = out.data + batch * out.strides[0];
  const rules::RowStrides stride{out.strides[0], out.strides[1], out.strides[2]};
  const int64_t rows = out.shape[2], width = out.shape[3];
  if (capture.heads.empty()) {
    return exchange_heads(team, p, data, stride, rows, width, sizeof(float));
  }
  // One by one, because they may have any order.
  int64_t place = 0;
  for (const int32_t head : capture.heads) {
    Status status = team.exchange_rows(
        data + place++ * stride[1],
        ((rows - 1) * stride[2] + width) * static_cast<int64_t>(sizeof(float)),
        [&](int member) { return team.first_of(p.kv_heads, member) > head / p.group() ? 1 : 0; });
    if (!status.ok()) return status;
  }
  return {};
}

Status exchange_captures(Team& team, const AttentionParams& p, int64_t batch) {
  const rules::RowStrides& stride = p.dropout_mask.stride;
  uint8_t* const mask = p.dropout_mask.data == nullptr ? nullptr : p.dropout_mask.row(batch, 0, 0);
  Status status = exchange_heads(team, p, mask, stride, p.queries, p.keys, 1);
  if (status.ok()) status = exchange_capture(team, p, p.weights, batch);
  for (const ScoreCapture& capture : p.captures) {
    if (status.ok()) status = exchange_capture(team, p, capture, batch);
  }
  return status;
}

// Computes this member's heads and receives those of the others. Scratch memory is reserved.
Status run_share(const AttentionPlan& plan, Team& team, Context& context) {
  const AttentionParams& p = plan.params;
  const int64_t bytes = bytes_of(p.out.type);
  for (int64_t batch = 0; batch < p.batch; ++batch) {
    const int64_t before = batch * p.kv_heads;
    run_heads(plan,
              {.first_in_memory = 0,
               .first_head = before + team.first_of(p.kv_heads),
               .end_head = before + team.end_of(p.kv_heads),
               .first_block = 0,
               .end_block = plan.blocks.row_parts},
              context);
    void* const out = p.out.data == nullptr
                          ? nullptr
                          : static_cast<char*>(p.out.data) + batch * p.out.stride[0] * bytes;
    Status status = exchange_heads(team, p, out, p.out.stride, p.queries, p.value_dim, bytes);
    if (status.ok() && p.lse.data != nullptr) {
      status = exchange_heads(team, p, p.lse.row(batch, 0, 0), p.lse.stride, p.queries, 1,
                              sizeof(float));
    }
    if (status.ok()) status = exchange_captures(team, p, batch);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace

Status reserve_scratch(const AttentionPlan& plan, Context& context) {
  Scratch& scratch = scratch_of(context);
  if (plan.path == Path::kDecode) {
    const auto results =
        static_cast<uint64_t>(plan.params.batch * plan.params.kv_heads * plan.splits.most_splits);
    const uint64_t bytes = results * plan.partial_bytes;
    if (!scratch.partials().reserve(bytes)) return Status::out_of_memory(bytes);
  }
  return scratch.reserve(context.threads(), plan.scratch_bytes);
}

Status reserve_scratch(const PlannedCall& call, Context& context) {
  if (call.transforms) {
    if (Status status = reserve_for_transform(*call.transforms, context); !status.ok()) {
      return status;
    }
  }
  return reserve_scratch(call.plan, context);
}

void run_block(const AttentionPlan& plan, int64_t index, int64_t next, void* scratch) {
  const AttentionParams& p = plan.params;
  const cpu::BlockJob job = block_job(p, plan.blocks, index);
  const bool has_next = next < plan.blocks.jobs;
  const cpu::BlockJob next_job = has_next ? block_job(p, plan.blocks, next) : job;
  run_block_job(plan, job, has_next ? &next_job : nullptr, scratch);
}

Status run(const AttentionPlan& plan, Context& context) {
  if (!plan.scores_alone) last_call_of(context) = plan;
  if (plan.jobs() == 0) return {};
  if (Status status = reserve_scratch(plan, context); !status.ok()) return status;
  if (Team* const team = team_of(context); team != nullptr && divides(plan, *team)) {
    return run_share(plan, *team, context);
  }
  if (plan.path == Path::kDecode) {
    run_decode(plan, context);
    if (plan.captures_beside_decode()) run_captures(plan, context);
    return {};
  }
  const Scratch& scratch = scratch_of(context);
  const int threads = threads_for(plan.operations, context.threads());
  const auto run_all = [&](const AttentionPlan& of) {
    parallel_for(threads, of.jobs(), [&](int64_t index, int thread) {
      // Jobs begin in order, so the thread's next one is probably this.
      run_block(of, index, index + threads, scratch.of_thread(thread));
    });
  };
  const BlockGeometry blocks = blocks_for_threads(plan, threads);
  if (blocks.jobs == plan.blocks.jobs) {
    run_all(plan);
  } else {
    AttentionPlan divided = plan;
    divided.blocks = blocks;
    run_all(divided);
  }
  return {};
}

Status run_stored_heads(const AttentionPlan& plan, int64_t first_head, int64_t end_head,
                        Context& context) {
  Team* const team = team_of(context);
  const int64_t heads = plan.params.kv_heads;
  if (team == nullptr || team->first_of(heads) != first_head || team->end_of(heads) != end_head) {
    return Team::member_left();
  }
  last_call_of(context) = plan;
  if (plan.jobs() == 0) return {};
  if (Status status = reserve_scratch(plan, context); !status.ok()) return status;
  return run_share(plan, *team, context);
}

Status run(PlannedCall& call, Context& context) {
  if (call.transforms) {
    if (Status status = transform_inputs(*call.transforms, call.plan.params, context);
        !status.ok()) {
      return status;
    }
  }
  return run(call.plan, context);
}

Status run_part(PlannedCall& call, const AttentionPart& part, Context& context) {
  AttentionPlan& plan = call.plan;
  if (plan.jobs() == 0 || part.first_head >= part.end_head) return {};
  if (call.transforms) {
    if (Status status =
            transform_part(*call.transforms, part.first_head, part.end_head, plan.params, context);
        !status.ok()) {
      return status;
    }
  }
  if (Status status = reserve_scratch(plan, context); !status.ok()) return status;
  run_heads(plan, part, context);
  return {};
}

void merge_rows(const cpu::MergeParams& params, int threads) {
  const int64_t rows = params.batch * params.heads * params.rows;
  // The exponential and the logarithm of a row take as long as 64 columns. The second thread joins
  // where one takes 40 to 60 us, which is longer than it takes to wake up.
  const double operations = 2.0 * static_cast<double>(params.width + 64);
  over_ranges(operations * static_cast<double>(rows), rows, threads,
              [&](int64_t first, int64_t end) { cpu::merge_rows(params, first, end); });
}

}  // namespace multihead::engine
