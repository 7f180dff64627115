#include "distributed/rectangles.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "cpu/kernels.h"
#include "engine/attention/plan.h"
#include "engine/attention/run.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/threads.h"
#include "engine/varlen/varlen.h"

namespace multihead::distributed {
namespace {

using engine::AttentionPlan;

// Restricts a mask or bias to some heads, rows and keys; axes of extent 1 are shared.
template <class View>
View part_of_scores(View view, int64_t axis_from_end, int64_t first, int64_t count) {
  const int axis = view.shape.rank() - static_cast<int>(axis_from_end);
  if (!view.given() || axis < 0 || view.shape[axis] == 1) return view;
  return part_of(view, axis, first, count);
}

// True if any query sees a key.
bool sees_anything(const AttentionPlan& plan) {
  for (int64_t batch = 0; batch < plan.params.batch; ++batch) {
    if (!plan.params.seen_keys(batch).empty()) return true;
  }
  return false;
}

rules::Rows<float> rows_of_heads(const Tensor& tensor) {
  return {tensor.data, {tensor.strides[0], tensor.strides[1], tensor.strides[2]}};
}
rules::Rows<const float> rows_of_heads(const ConstTensor& tensor) {
  return {tensor.data, {tensor.strides[0], tensor.strides[1], tensor.strides[2]}};
}

PartialResult rows_of_result(const PartialResult& result, const Segment& segment) {
  return {rows_of(result.out, segment.local, segment.count),
          rows_of(result.lse, segment.local, segment.count)};
}

struct Planned {
  Rectangle rectangle;
  AttentionPlan plan;
  int64_t first_job = 0;
};

// Runs all jobs of all rectangles from one queue, so that many short sequences use all threads.
Status run(std::span<Planned> rectangles, Transport& transport, Context& context) {
  int64_t jobs = 0;
  uint64_t scratch_bytes = 0;
  double operations = 0;
  for (Planned& planned : rectangles) {
    planned.first_job = jobs;
    // Decoding has its own division of the keys among threads, so it runs separately.
    if (planned.plan.path == engine::Path::kDecode) {
      if (Status status = engine::run(planned.plan, context); !status.ok()) return status;
      transport.poll();
      continue;
    }
    jobs += planned.plan.jobs();
    operations += planned.plan.operations;
    scratch_bytes = std::max(scratch_bytes, planned.plan.scratch_bytes);
  }
  if (jobs == 0) return {};
  engine::Scratch& scratch = engine::scratch_of(context);
  if (Status status = scratch.reserve(context.threads(), scratch_bytes); !status.ok()) {
    return status;
  }
  const int threads = engine::threads_for(operations, context.threads());
  engine::parallel_for(threads, jobs, [&](int64_t index, int thread) {
    const auto after = std::upper_bound(
        rectangles.begin(), rectangles.end(), index,
        [](int64_t job, const Planned& planned) { return job < planned.first_job; });
    const Planned& planned = *(after - 1);
    engine::run_block(planned.plan, index - planned.first_job, planned.plan.jobs(),
                      scratch.of_thread(thread));
    // Thread 0 is the caller's thread. Only this thread may use the transport.
    if (thread == 0) transport.poll();
  });
  return {};
}

}  // namespace

std::vector<Rectangle> rectangles_of(std::span<const Segment> queries, const Chunk& keys,
                                     std::span<const int32_t> cu_k) {
  const std::vector<Segment> of_keys = segments_of(keys, cu_k);
  std::vector<Rectangle> rectangles;
  for (const Segment& query : queries) {
    const auto key = std::lower_bound(
        of_keys.begin(), of_keys.end(), query.sequence,
        [](const Segment& segment, int64_t sequence) { return segment.sequence < sequence; });
    if (key == of_keys.end() || key->sequence != query.sequence) continue;
    rectangles.push_back({query, *key});
  }
  return rectangles;
}

AttentionOptions options_of_heads(const Call& call, const Heads& heads) {
  AttentionOptions options = call.options;
  options.sinks = {};
  options.qk_norm = {};
  options.rope = {};
  options.mask = part_of_scores(options.mask, 3, heads.first, heads.count);
  options.bias = part_of_scores(options.bias, 3, heads.first, heads.count);
  if (!options.alibi_slopes.empty()) {
    options.alibi_slopes = options.alibi_slopes.subspan(static_cast<size_t>(heads.first),
                                                        static_cast<size_t>(heads.count));
  }
  return options;
}

AttentionOptions options_of(const Call& call, const AttentionOptions& of_heads,
                            const Rectangle& rectangle) {
  const auto& [queries, keys] = rectangle;
  AttentionOptions options =
      call.packed() ? engine::options_of_sequence(of_heads, static_cast<size_t>(queries.sequence))
                    : of_heads;
  options.mask = part_of_scores(options.mask, 2, queries.local, queries.count);
  options.bias = part_of_scores(options.bias, 2, queries.local, queries.count);
  options.mask = part_of_scores(options.mask, 1, keys.first, keys.count);
  options.bias = part_of_scores(options.bias, 1, keys.first, keys.count);
  return options;
}

Tensor scores_of(const Tensor& scores, const Heads& heads, const Rectangle& rectangle) {
  const auto& [queries, keys] = rectangle;
  const Tensor of_heads = part_of_scores(scores, 3, heads.first, heads.count);
  const Tensor of_queries = part_of_scores(of_heads, 2, queries.local, queries.count);
  return part_of_scores(of_queries, 1, keys.first, keys.count);
}

engine::Shard shard_of(const Call& call, const Heads& heads, const Rectangle& rectangle) {
  const auto s = static_cast<size_t>(rectangle.queries.sequence);
  return {.first = {.batch = 0,
                    .head = heads.first,
                    .query = rectangle.queries.first,
                    .key = rectangle.keys.first},
          .queries = call.cu_q[s + 1] - call.cu_q[s],
          .keys = call.cu_k[s + 1] - call.cu_k[s]};
}

engine::AttentionShape shape_of(const Call& call, const Heads& heads, const Rectangle& rectangle) {
  return {.batch = call.shape.batch,
          .heads = heads.count,
          .kv_heads = heads.kv_count,
          .queries = rectangle.queries.count,
          .keys = rectangle.keys.count,
          .head_dim = call.shape.head_dim,
          .value_dim = call.shape.value_dim};
}

void clear(const PartialResult& result) {
  std::fill_n(result.out.data, result.out.shape.elements(), 0.0F);
  std::fill_n(result.lse.data, result.lse.shape.elements(),
              -std::numeric_limits<float>::infinity());
}

void merge(const PartialResult& a, const ConstTensor& b_out, const ConstTensor& b_lse,
           Context& context) {
  const Dims& shape = a.out.shape;
  const cpu::MergeParams params{.out_a = rows_of_heads(a.out),
                                .lse_a = rows_of_heads(a.lse),
                                .out_b = rows_of_heads(b_out),
                                .lse_b = rows_of_heads(b_lse),
                                .batch = shape[0],
                                .heads = shape[1],
                                .rows = shape[2],
                                .width = shape[3]};
  engine::merge_rows(params, context.threads());
}

Status add_attention(const Call& call, const Heads& heads, const AttentionOptions& of_heads,
                     const ForwardOperands& operands, const PartialResult& part,
                     const PartialResult& total, Transport& transport, Context& context) {
  std::vector<Planned> planned;
  for (const Rectangle& rectangle : rectangles_of(operands.queries, operands.keys, call.cu_k)) {
    const auto& [queries, keys] = rectangle;
    const PartialResult to = rows_of_result(part, queries);
    const engine::Shard shard = shard_of(call, heads, rectangle);
    const AttentionPlan plan = engine::plan_attention(
        {.q = engine::stored_rows(rows_of(operands.q, queries.local, queries.count)),
         .k = engine::stored_rows(rows_of(operands.k, keys.local, keys.count)),
         .v = engine::stored_rows(rows_of(operands.v, keys.local, keys.count)),
         .packed = call.packed()},
        shape_of(call, heads, rectangle), options_of(call, of_heads, rectangle),
        {.out = to.out, .lse = to.lse}, &shard);
    if (plan.jobs() == 0 || !sees_anything(plan)) continue;
    planned.push_back({rectangle, plan});
  }
  // Run the longest rectangles first: a long one that starts late would leave the other threads
  // idle.
  std::sort(planned.begin(), planned.end(), [](const Planned& a, const Planned& b) {
    if (a.plan.operations != b.plan.operations) return a.plan.operations > b.plan.operations;
    return a.rectangle.queries.local < b.rectangle.queries.local;
  });
  if (Status status = run(planned, transport, context); !status.ok()) return status;
  for (const Planned& of : planned) {
    const Segment& rows = of.rectangle.queries;
    const PartialResult from = rows_of_result(part, rows);
    merge(rows_of_result(total, rows), from.out, from.lse, context);
    transport.poll();
  }
  return {};
}

}  // namespace multihead::distributed
