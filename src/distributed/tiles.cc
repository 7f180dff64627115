#include "distributed/tiles.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engine/attention/plan.h"
#include "engine/attention/run.h"
#include "engine/runtime/jobs.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/threads.h"
#include "engine/varlen/varlen.h"

namespace multihead::distributed {
namespace {

using engine::ForwardPlan;

// Restricts a mask or bias to some heads, rows and keys; axes of extent 1 are shared.
template <class View>
View part_of_scores(View view, int64_t axis_from_end, int64_t first, int64_t count) {
  const int axis = view.shape.rank() - static_cast<int>(axis_from_end);
  if (!view.given() || axis < 0 || view.shape[axis] == 1) return view;
  return part_of(view, axis, first, count);
}

PartialResult rows_of_result(const PartialResult& result, const Segment& segment) {
  return {rows_of(result.out, segment.local, segment.count),
          rows_of(result.lse, segment.local, segment.count)};
}

struct PlannedTile {
  Tile tile;
  ForwardPlan plan;
  int64_t first_job = 0;
};

// Runs all jobs of all tiles from one queue, so that many short sequences use all threads.
Status run(std::span<PlannedTile> tiles, Transport& transport, Context& context) {
  int64_t jobs = 0;
  uint64_t scratch_bytes = 0;
  double operations = 0;
  for (PlannedTile& planned : tiles) {
    planned.first_job = jobs;
    // Decoding has its own division of the keys among threads, so it runs separately.
    if (planned.plan.choice.kernel == engine::Kernel::kDecode) {
      MULTIHEAD_TRY(engine::run(planned.plan, context));
      transport.poll();
      continue;
    }
    jobs += planned.plan.jobs();
    operations += planned.plan.operations;
    scratch_bytes = std::max(scratch_bytes, planned.plan.scratch_bytes);
  }
  if (jobs == 0) return {};
  engine::Scratch& scratch = engine::scratch_of(context);
  MULTIHEAD_TRY(scratch.reserve(context.threads(), scratch_bytes));
  const int threads = engine::threads_for(operations, context.threads());
  engine::parallel_for(context, "attention", threads, jobs, [&](int64_t index, int thread) {
    const auto after = std::upper_bound(
        tiles.begin(), tiles.end(), index,
        [](int64_t job, const PlannedTile& planned) { return job < planned.first_job; });
    const PlannedTile& planned = *(after - 1);
    engine::run_block(planned.plan, index - planned.first_job, planned.plan.jobs(),
                      scratch.thread_memory(thread));
    // Thread 0 is the caller's thread. Only this thread may use the transport.
    if (thread == 0) transport.poll();
  });
  return {};
}

}  // namespace

std::vector<Tile> tiles_of(std::span<const Segment> queries, const Chunk& keys,
                           std::span<const int32_t> cu_k) {
  const std::vector<Segment> key_segments = segments_of(keys, cu_k);
  std::vector<Tile> tiles;
  for (const Segment& query : queries) {
    const auto key = std::lower_bound(
        key_segments.begin(), key_segments.end(), query.sequence,
        [](const Segment& segment, int64_t sequence) { return segment.sequence < sequence; });
    if (key == key_segments.end() || key->sequence != query.sequence) continue;
    tiles.push_back({query, *key});
  }
  return tiles;
}

AttentionOptions head_options(const Call& call, const Heads& heads) {
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

AttentionOptions tile_options(const Call& call, const AttentionOptions& head_options,
                              const Tile& tile) {
  const auto& [queries, keys] = tile;
  AttentionOptions options = head_options;
  if (call.varlen()) {
    options.dropout.seed =
        engine::seed_of_sequence(options.dropout.seed, static_cast<size_t>(queries.sequence));
  }
  options.mask = part_of_scores(options.mask, 2, queries.local, queries.count);
  options.bias = part_of_scores(options.bias, 2, queries.local, queries.count);
  options.mask = part_of_scores(options.mask, 1, keys.first, keys.count);
  options.bias = part_of_scores(options.bias, 1, keys.first, keys.count);
  return options;
}

Tensor tile_scores(const Tensor& scores, const Heads& heads, const Tile& tile) {
  const auto& [queries, keys] = tile;
  Tensor part = part_of_scores(scores, 3, heads.first, heads.count);
  part = part_of_scores(part, 2, queries.local, queries.count);
  return part_of_scores(part, 1, keys.first, keys.count);
}

engine::Shard tile_shard(const Call& call, const Heads& heads, const Tile& tile) {
  const auto s = static_cast<size_t>(tile.queries.sequence);
  return {.first = {.batch = 0,
                    .head = heads.first,
                    .query = tile.queries.first,
                    .key = tile.keys.first},
          .queries = call.cu_q[s + 1] - call.cu_q[s],
          .keys = call.cu_k[s + 1] - call.cu_k[s]};
}

engine::AttentionShape tile_shape(const Call& call, const Heads& heads, const Tile& tile) {
  return {.batch = call.shape.batch,
          .heads = heads.count,
          .kv_heads = heads.kv_count,
          .queries = tile.queries.count,
          .keys = tile.keys.count,
          .head_dim = call.shape.head_dim,
          .value_dim = call.shape.value_dim};
}

bool sees_anything(const rules::AttentionParams& params) {
  for (int64_t batch = 0; batch < params.batch; ++batch) {
    if (!params.seen_keys(batch).empty()) return true;
  }
  return false;
}

void clear(const PartialResult& result) {
  std::fill_n(result.out.data, result.out.shape.elements(), 0.0F);
  std::fill_n(result.lse.data, result.lse.shape.elements(),
              -std::numeric_limits<float>::infinity());
}

Status add_attention(const Task& task, const TileOperands& operands, const PartialResult& part,
                     const PartialResult& total) {
  const Call& call = task.call;
  const Heads& heads = operands.heads;
  const AttentionOptions options = head_options(call, heads);
  std::vector<PlannedTile> planned;
  for (const Tile& tile : tiles_of(operands.queries, operands.keys, call.cu_k)) {
    const auto& [queries, keys] = tile;
    const PartialResult to = rows_of_result(part, queries);
    const engine::Shard shard = tile_shard(call, heads, tile);
    ForwardPlan plan = engine::plan_forward(
        {.q = engine::stored_rows(rows_of(operands.q, queries.local, queries.count)),
         .k = engine::stored_rows(rows_of(operands.k, keys.local, keys.count)),
         .v = engine::stored_rows(rows_of(operands.v, keys.local, keys.count)),
         .varlen = call.varlen()},
        tile_shape(call, heads, tile), tile_options(call, options, tile),
        {.out = to.out, .lse = to.lse}, &shard);
    if (!plan.choice.has_work() || !sees_anything(plan.params)) continue;
    engine::finish_plan(plan, 1);
    planned.push_back({tile, plan});
  }
  // Run the longest tiles first: a long one that starts late would leave the other threads idle.
  std::sort(planned.begin(), planned.end(), [](const PlannedTile& a, const PlannedTile& b) {
    if (a.plan.operations != b.plan.operations) return a.plan.operations > b.plan.operations;
    return a.tile.queries.local < b.tile.queries.local;
  });
  MULTIHEAD_TRY(run(planned, task.transport(), task.context));
  for (const PlannedTile& done : planned) {
    const Segment& rows = done.tile.queries;
    const PartialResult from = rows_of_result(part, rows);
    const PartialResult to = rows_of_result(total, rows);
    engine::merge_rows(to.out, to.lse, from.out, from.lse, &task.context);
    task.transport().poll();
  }
  return {};
}

}  // namespace multihead::distributed
