#include "distributed/methods.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "distributed/seen_keys.h"
#include "distributed/shard_memory.h"
#include "distributed/tiles.h"
#include "engine/attention/backward.h"
#include "engine/attention/plan.h"
#include "engine/runtime/jobs.h"
#include "engine/runtime/scratch.h"
#include "rules/arena.h"

namespace multihead::distributed {
namespace {

// Sends the gradients of keys and values to the next rank.
void send(Transport& transport, int to, const GradientSums& sums) {
  transport.send(to, sums.d_k.data, Layouts::bytes(sums.d_k.shape, DType::kF32));
  transport.send(to, sums.d_v.data, Layouts::bytes(sums.d_v.shape, DType::kF32));
}
void receive(Transport& transport, int from, const GradientSums& sums) {
  transport.receive(from, sums.d_k.data, Layouts::bytes(sums.d_k.shape, DType::kF32));
  transport.receive(from, sums.d_v.data, Layouts::bytes(sums.d_v.shape, DType::kF32));
}

// Returns the first `rows` rows of memory that was reserved for at least that many rows.
GradientSums key_sums(const GradientSums& memory, const Layouts& layouts, int64_t rows) {
  GradientSums sums;
  sums.d_k = Tensor(memory.d_k.data, layouts.k_shape(rows));
  sums.d_v = Tensor(memory.d_v.data, layouts.v_shape(rows));
  return sums;
}
void take_keys(rules::Arena& arena, GradientSums& sums, const Layouts& layouts, int64_t rows) {
  take(arena, sums.d_k, layouts.k_shape(rows));
  take(arena, sums.d_v, layouts.v_shape(rows));
}
// Reserves gradients of the rank's queries and of the bias.
void take_queries(rules::Arena& arena, GradientSums& sums, const Call& call,
                  const Layouts& layouts) {
  take(arena, sums.d_q, layouts.q_shape(call.shape.queries));
  if (call.options.bias.given()) take(arena, sums.d_bias, call.options.bias.shape);
}

// Adds gradients of some rows of this rank's keys to the gradients of all its keys.
void add_rows(std::span<const Chunk> rows, const GradientSums& from, const GradientSums& to,
              std::span<const Chunk> own, Context& context) {
  for (const Chunk& chunk : rows) {
    const int64_t at = local_row(own, chunk);
    add(rows_of(from.d_k, chunk.local, chunk.count), rows_of(to.d_k, at, chunk.count), context);
    add(rows_of(from.d_v, chunk.local, chunk.count), rows_of(to.d_v, at, chunk.count), context);
  }
}

}  // namespace

Status add_gradients(const Task& task, const BackwardInputs& inputs, const TileOperands& operands,
                     const GradientSums& part, const GradientSums& total) {
  const Call& call = task.call;
  const Heads& heads = operands.heads;
  Context& context = task.context;
  const AttentionOptions options = head_options(call, heads);
  for (const Tile& tile : tiles_of(operands.queries, operands.keys, call.cu_k)) {
    const auto query_rows = [&](const auto& view) {
      return rows_of(view, tile.queries.local, tile.queries.count);
    };
    const auto key_rows = [&](const auto& view) {
      return rows_of(view, tile.keys.local, tile.keys.count);
    };
    const auto tile_gradients = [&](const GradientSums& sums) {
      return AttentionGradients{
          .d_q = query_rows(sums.d_q),
          .d_k = key_rows(sums.d_k),
          .d_v = key_rows(sums.d_v),
          .d_bias = sums.d_bias.given() ? tile_scores(sums.d_bias, heads, tile) : Tensor()};
    };
    const AttentionGradients from = tile_gradients(part), to = tile_gradients(total);
    const engine::Shard shard = tile_shard(call, heads, tile);
    engine::BackwardPlan plan =
        engine::plan_backward({query_rows(operands.q),
                               key_rows(operands.k),
                               key_rows(operands.v),
                               tile_options(call, options, tile),
                               {.out = query_rows(inputs.out), .lse = query_rows(inputs.lse)},
                               query_rows(inputs.d_out),
                               from},
                              tile_shape(call, heads, tile), {}, &shard);
    const rules::AttentionParams& params = plan.params.forward;
    if (!sees_anything(params) || params.rows() == 0) continue;
    MULTIHEAD_TRY(engine::reserve_backward(plan, from, context));
    engine::finish_plan(plan, context.threads());
    engine::begin_backward(plan, from, context);
    const engine::Scratch& scratch = engine::scratch_of(context);
    engine::parallel_for(context, "attention backward", plan.threads, plan.jobs(),
                         [&](int64_t index, int thread) {
                           engine::run_backward_job(plan, index, scratch.thread_memory(thread));
                           if (thread == 0) task.transport().poll();
                         });
    engine::end_backward(plan, from, context);
    add(from.d_q, to.d_q, context);
    add(from.d_k, to.d_k, context);
    add(from.d_v, to.d_v, context);
    if (from.d_bias.given()) add(as_scores(from.d_bias), as_scores(to.d_bias), context);
    task.transport().poll();
  }
  return {};
}

// Ring as in the forward. The gradients of a rank's keys and values follow them one step later. The
// last rank that sees any of these keys sends the sums to their owner, which adds them to its own
// part. Every rank adds its part to the sums that arrive, so the order of the additions depends
// only on the number of ranks.
Status ring_backward(const Task& task, const BackwardInputs& inputs, GradientSums& total) {
  const Call& call = task.call;
  Transport& transport = task.transport();
  const int size = transport.size(), rank = transport.rank();
  const int next = (rank + 1) % size, previous = (rank - 1 + size) % size;
  const Layouts layouts = task.layouts();
  RingKeys keys(task, /*keeps_rows=*/true);
  OwnQueries queries{task, task.query_segments()};
  const int last = keys.last_step(rank);
  const Chunks& own = keys.held(0);
  const Chunks returning = keys.rows(rank, 1);
  std::array<GradientSums, 2> parts;  // this step and the previous one
  GradientSums incoming, returned_sums, part;
  MULTIHEAD_TRY(reserve(task, [&](rules::Arena& arena) {
    keys.take(arena);
    queries.take(arena);
    for (GradientSums* sums : {&parts[0], &parts[1], &incoming, &part}) {
      take_keys(arena, *sums, layouts, keys.most_rows());
    }
    take_keys(arena, returned_sums, layouts, count_of(returning));
    take_keys(arena, total, layouts, call.shape.keys);
    take_queries(arena, total, call, layouts);
    take_queries(arena, part, call, layouts);
  }));
  MULTIHEAD_TRY(keys.start());
  MULTIHEAD_TRY(queries.pack());
  set_zero(total);
  GradientSums outgoing;
  for (int step = 0; step <= size; ++step) {
    const int before = keys.owner(rank, step - 1);
    const int64_t rows = keys.count(step);
    keys.exchange(step);
    const GradientSums arrived = key_sums(incoming, layouts, rows);
    const GradientSums returned = key_sums(returned_sums, layouts, count_of(returning));
    if (step >= 2) {
      receive(transport, previous, arrived);
      const bool goes_on = step <= keys.last_step(before);
      if (outgoing.d_k.given()) send(transport, goes_on ? next : before, outgoing);
    }
    if (step == last + 1 && last > 0) receive(transport, (rank + last) % size, returned);
    outgoing = {};
    if (rows > 0) {
      GradientSums sums =
          step == 0 ? total : key_sums(parts[static_cast<size_t>(step % 2)], layouts, rows);
      set_zero(sums);
      sums.d_q = total.d_q;
      sums.d_bias = total.d_bias;
      GradientSums tile_part = key_sums(part, layouts, rows);
      tile_part.d_q = part.d_q;
      tile_part.d_bias = part.d_bias;
      for (const Chunk& chunk : keys.held(step)) {
        MULTIHEAD_TRY(add_gradients(task, inputs,
                                    TileOperands::of(queries, keys.k(step), keys.v(step), chunk),
                                    tile_part, sums));
      }
      if (step > 0) outgoing = key_sums(sums, layouts, rows);
    }
    MULTIHEAD_TRY(task.finish());
    if (step >= 2 && rows > 0) {
      add(arrived.d_k, outgoing.d_k, task.context);
      add(arrived.d_v, outgoing.d_v, task.context);
    }
    if (step == last + 1 && last > 0) add_rows(returning, returned, total, own, task.context);
  }
  return {};
}

// Every rank computes its queries' part of the gradients of all visible keys and values, and sends
// each rank the part for its rows. The receiver adds the parts in rank order.
Status gathered_backward(const Task& task, const BackwardInputs& inputs, GradientSums& total) {
  const Call& call = task.call;
  Transport& transport = task.transport();
  const int size = transport.size(), rank = transport.rank();
  const Layouts layouts = task.layouts();
  const int64_t all_keys = call.sharding.keys;
  GatheredKeys gathered(task);
  std::vector<GradientSums> outgoing(static_cast<size_t>(size)),
      incoming(static_cast<size_t>(size));
  GradientSums part, sums;
  OwnQueries queries{task, task.query_segments()};
  MULTIHEAD_TRY(reserve(task, [&](rules::Arena& arena) {
    for (int r = 0; r < size; ++r) {
      const auto at = static_cast<size_t>(r);
      take_keys(arena, outgoing[at], layouts, count_of(gathered.received(r)));
      take_keys(arena, incoming[at], layouts, count_of(gathered.sent(r)));
    }
    gathered.take(arena);
    for (GradientSums* memory : {&part, &sums}) {
      take_keys(arena, *memory, layouts, all_keys);
      take_queries(arena, *memory, call, layouts);
    }
    take_keys(arena, total, layouts, layouts.rows(rank));
    queries.take(arena);
  }));

  MULTIHEAD_TRY(gathered.start());
  MULTIHEAD_TRY(queries.pack());
  MULTIHEAD_TRY(task.finish());
  gathered.join();
  set_zero(sums);
  MULTIHEAD_TRY(add_gradients(
      task, inputs, TileOperands::of(queries, gathered.k(), gathered.v(), whole(all_keys)), part,
      sums));

  for (int other = 0; other < size; ++other) {
    const auto at = static_cast<size_t>(other);
    const GradientSums& to = other == rank ? incoming[at] : outgoing[at];
    gather(gathered.received(other), ConstAnyTensor(sums.d_k), to.d_k, task.context);
    gather(gathered.received(other), ConstAnyTensor(sums.d_v), to.d_v, task.context);
    if (other == rank) continue;
    receive(transport, other, incoming[at]);
    send(transport, other, outgoing[at]);
  }
  MULTIHEAD_TRY(task.finish());
  set_zero(total);  // d_k and d_v
  total.d_q = sums.d_q;
  total.d_bias = sums.d_bias;
  for (int other = 0; other < size; ++other) {
    add_rows(gathered.sent(other), incoming[static_cast<size_t>(other)], total,
             gathered.received(rank), task.context);
  }
  return {};
}

}  // namespace multihead::distributed
