#include "distributed/backward.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "distributed/gathered_keys.h"
#include "distributed/rectangles.h"
#include "distributed/reserve.h"
#include "distributed/seen_keys.h"
#include "distributed/shard_memory.h"
#include "engine/attention/backward.h"
#include "engine/attention/plan.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/threads.h"
#include "rules/arena.h"

namespace multihead::distributed {
namespace {

// to += from, row by row, for any strides.
void add(const Tensor& from, const Tensor& to) {
  if (!from.given() || from.shape.elements() == 0) return;
  const int rank = from.shape.rank();
  const int64_t width = from.shape[rank - 1];
  for (int64_t row = 0; row < from.shape.elements() / width; ++row) {
    int64_t rest = row, at = 0, put = 0;
    for (int axis = rank - 2; axis >= 0; --axis) {
      at += rest % from.shape[axis] * from.strides[axis];
      put += rest % from.shape[axis] * to.strides[axis];
      rest /= from.shape[axis];
    }
    const int64_t step_from = from.strides[rank - 1], step_to = to.strides[rank - 1];
    for (int64_t c = 0; c < width; ++c) to.data[put + c * step_to] += from.data[at + c * step_from];
  }
}

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
GradientSums of_keys(const GradientSums& memory, const Layouts& layouts, int64_t rows) {
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
              std::span<const Chunk> own) {
  for (const Chunk& chunk : rows) {
    const int64_t at = local_row(own, chunk);
    add(rows_of(from.d_k, chunk.local, chunk.count), rows_of(to.d_k, at, chunk.count));
    add(rows_of(from.d_v, chunk.local, chunk.count), rows_of(to.d_v, at, chunk.count));
  }
}

}  // namespace

Status add_gradients(const Call& call, const Heads& heads, const AttentionOptions& of_heads,
                     const BackwardInputs& inputs, const BackwardOperands& operands,
                     const GradientSums& part, const GradientSums& total, Transport& transport,
                     Context& context) {
  for (const Rectangle& rectangle : rectangles_of(operands.queries, operands.keys, call.cu_k)) {
    const auto& [queries, keys] = rectangle;
    const auto of_queries = [&, rows = queries](const auto& view) {
      return rows_of(view, rows.local, rows.count);
    };
    const auto of_key_rows = [&, rows = keys](const auto& view) {
      return rows_of(view, rows.local, rows.count);
    };
    const auto sums_of = [&](const GradientSums& sums) {
      return AttentionGradients{
          .d_q = of_queries(sums.d_q),
          .d_k = of_key_rows(sums.d_k),
          .d_v = of_key_rows(sums.d_v),
          .d_bias = sums.d_bias.given() ? scores_of(sums.d_bias, heads, rectangle) : Tensor()};
    };
    const AttentionGradients from = sums_of(part), to = sums_of(total);
    const engine::Shard shard = shard_of(call, heads, rectangle);
    engine::BackwardPlan plan = engine::plan_backward(
        of_queries(operands.q), of_key_rows(operands.k), of_key_rows(operands.v),
        shape_of(call, heads, rectangle), options_of(call, of_heads, rectangle),
        {.out = of_queries(inputs.out), .lse = of_queries(inputs.lse)}, of_queries(inputs.d_out),
        from, {}, &shard);
    const rules::AttentionParams& params = plan.params.forward;
    bool sees_anything = false;
    for (int64_t batch = 0; batch < params.batch; ++batch) {
      sees_anything = sees_anything || !params.seen_keys(batch).empty();
    }
    if (!sees_anything || params.rows() == 0) continue;
    if (Status status = engine::reserve_backward(plan, from, context); !status.ok()) return status;
    engine::begin_backward(plan, from, context);
    const engine::Scratch& scratch = engine::scratch_of(context);
    const int threads = engine::threads_for(plan.operations, context.threads());
    engine::parallel_for(threads, plan.geometry.jobs, [&](int64_t index, int thread) {
      engine::run_backward_job(plan, index, scratch.of_thread(thread));
      if (thread == 0) transport.poll();
    });
    engine::end_backward(plan, from, context);
    add(from.d_q, to.d_q);
    add(from.d_k, to.d_k);
    add(from.d_v, to.d_v);
    add(from.d_bias, to.d_bias);
    transport.poll();
  }
  return {};
}

// Ring as in the forward. The gradients of a rank's keys and values follow them one step later. The
// last rank that sees any of these keys sends the sums to their owner, which adds them to its own
// part. Every rank adds its part to the sums that arrive, so the order of the additions depends
// only on the number of ranks.
Status ring_backward(const Call& call, const BackwardInputs& inputs, const Shards& shards,
                     Communicator::Internals& ranks, Context& context, GradientSums& total) {
  Transport& transport = *ranks.transport;
  const int size = transport.size(), rank = transport.rank();
  const int next = (rank + 1) % size, previous = (rank - 1 + size) % size;
  const Layouts layouts(call, shards);
  const RingJourney journey(call, shards, size);
  // Gradients stay with the rows that left their owner, so these rows are not narrowed further.
  const auto held = [&](int owner, int step) {
    if (step > journey.last_step(owner)) return Chunks();
    return journey.keys(owner, std::min(step, 1));
  };
  int64_t most_rows = 0;
  for (int step = 0; step < size; ++step) {
    most_rows = std::max(most_rows, count_of(held(journey.owner(rank, step), step)));
  }
  const Chunks own = held(rank, 0), returning = held(rank, 1);
  std::array<KeyMemory, 2> keys;
  KeyMemory narrowed;
  std::array<GradientSums, 2> parts;  // this step and the previous one
  GradientSums arriving, home, part;
  float* moved_q = nullptr;
  Status status = reserve(call, ranks, [&](rules::Arena& arena) {
    for (KeyMemory& memory : keys) layouts.take(arena, memory, most_rows);
    layouts.take(arena, narrowed, count_of(returning));
    for (GradientSums* sums : {&parts[0], &parts[1], &arriving, &part}) {
      take_keys(arena, *sums, layouts, most_rows);
    }
    take_keys(arena, home, layouts, count_of(returning));
    take_keys(arena, total, layouts, call.shape.keys);
    take_queries(arena, total, call, layouts);
    take_queries(arena, part, call, layouts);
    arena(moved_q, transformed_queries(call, layouts));
  });
  if (!status.ok()) return status;

  const std::vector<Segment> segments = segments_of(shards.query_chunks(call, rank), call.cu_q);
  const Heads heads = all_heads(call);
  const AttentionOptions options = options_of_heads(call, heads);
  ConstAnyTensor q;
  status = pack(call, shards, rank, layouts, keys[0], context);
  if (status.ok()) status = pack_queries(call, segments, layouts, moved_q, q, context);
  if (!status.ok()) return status;
  for (const Tensor& tensor : {total.d_q, total.d_k, total.d_v, total.d_bias}) set_zero(tensor);
  GradientSums leaving;
  for (int step = 0; step <= size; ++step) {
    const int owner = journey.owner(rank, step), before = journey.owner(rank, step - 1);
    const Chunks chunks = step < size ? held(owner, step) : Chunks();
    const int64_t rows = count_of(chunks);
    const KeyMemory& now = keys[static_cast<size_t>(step % 2)];
    if (step + 1 < size) {
      distributed::receive(transport, previous, layouts, keys[static_cast<size_t>((step + 1) % 2)],
                           count_of(held(journey.owner(rank, step + 1), step + 1)));
      send_keys(transport, next, layouts, chunks, now, held(owner, step + 1), narrowed, context);
    }
    const GradientSums arrived = of_keys(arriving, layouts, rows);
    const GradientSums returned = of_keys(home, layouts, count_of(returning));
    const int last = journey.last_step(rank);
    if (step >= 2) {
      receive(transport, previous, arrived);
      const bool goes_on = step <= journey.last_step(before);
      if (leaving.d_k.given()) send(transport, goes_on ? next : before, leaving);
    }
    if (step == last + 1 && last > 0) receive(transport, (rank + last) % size, returned);
    leaving = {};
    if (rows > 0) {
      GradientSums sums =
          step == 0 ? total : of_keys(parts[static_cast<size_t>(step % 2)], layouts, rows);
      set_zero(sums.d_k);
      set_zero(sums.d_v);
      sums.d_q = total.d_q;
      sums.d_bias = total.d_bias;
      GradientSums of_rectangle = of_keys(part, layouts, rows);
      of_rectangle.d_q = part.d_q;
      of_rectangle.d_bias = part.d_bias;
      for (const Chunk& chunk : chunks) {
        status = add_gradients(call, heads, options, inputs,
                               {q, layouts.k(now, rows), layouts.v(now, rows), segments, chunk},
                               of_rectangle, sums, transport, context);
        if (!status.ok()) return status;
      }
      if (step > 0) leaving = of_keys(sums, layouts, rows);
    }
    status = ranks.finish(call.sharding.time_limit);
    if (!status.ok()) return status;
    if (step >= 2 && rows > 0) {
      add(arrived.d_k, leaving.d_k);
      add(arrived.d_v, leaving.d_v);
    }
    if (step == last + 1 && last > 0) add_rows(returning, returned, total, own);
  }
  return {};
}

// Every rank computes its queries' part of the gradients of all visible keys and values, and sends
// each rank the part for its rows. The receiver adds the parts in rank order.
Status gathered_backward(const Call& call, const BackwardInputs& inputs, const Shards& shards,
                         Communicator::Internals& ranks, Context& context, GradientSums& total) {
  Transport& transport = *ranks.transport;
  const int size = transport.size(), rank = transport.rank();
  const Layouts layouts(call, shards);
  const int64_t all_keys = call.sharding.keys;
  GatheredKeys gathered(call, shards, rank);
  std::vector<GradientSums> leaving(static_cast<size_t>(size)), arriving(static_cast<size_t>(size));
  GradientSums part, sums;
  float* moved_q = nullptr;
  Status status = reserve(call, ranks, [&](rules::Arena& arena) {
    for (int r = 0; r < size; ++r) {
      const auto at = static_cast<size_t>(r);
      take_keys(arena, leaving[at], layouts, count_of(gathered.of(r)));
      take_keys(arena, arriving[at], layouts, count_of(gathered.to(r)));
    }
    gathered.take(arena, layouts);
    for (GradientSums* memory : {&part, &sums}) {
      take_keys(arena, *memory, layouts, all_keys);
      take_queries(arena, *memory, call, layouts);
    }
    take_keys(arena, total, layouts, layouts.rows(rank));
    arena(moved_q, transformed_queries(call, layouts));
  });
  if (!status.ok()) return status;

  status = gathered.start(transport, layouts, context);
  if (!status.ok()) return status;
  const std::vector<Segment> segments = segments_of(shards.query_chunks(call, rank), call.cu_q);
  ConstAnyTensor q;
  status = pack_queries(call, segments, layouts, moved_q, q, context);
  if (status.ok()) status = ranks.finish(call.sharding.time_limit);
  if (!status.ok()) return status;
  gathered.join(layouts, context);
  for (const Tensor& tensor : {sums.d_q, sums.d_k, sums.d_v, sums.d_bias}) set_zero(tensor);
  const Heads heads = all_heads(call);
  status = add_gradients(call, heads, options_of_heads(call, heads), inputs,
                         {q,
                          gathered.k(layouts),
                          gathered.v(layouts),
                          segments,
                          {.first = 0, .count = all_keys, .local = 0}},
                         part, sums, transport, context);
  if (!status.ok()) return status;

  for (int other = 0; other < size; ++other) {
    const auto at = static_cast<size_t>(other);
    const GradientSums& to = other == rank ? arriving[at] : leaving[at];
    gather(gathered.of(other), ConstAnyTensor(sums.d_k), to.d_k, context);
    gather(gathered.of(other), ConstAnyTensor(sums.d_v), to.d_v, context);
    if (other == rank) continue;
    receive(transport, other, arriving[at]);
    send(transport, other, leaving[at]);
  }
  status = ranks.finish(call.sharding.time_limit);
  if (!status.ok()) return status;
  total.d_q = sums.d_q;
  total.d_bias = sums.d_bias;
  set_zero(total.d_k);
  set_zero(total.d_v);
  for (int other = 0; other < size; ++other) {
    add_rows(gathered.to(other), arriving[static_cast<size_t>(other)], total, gathered.of(rank));
  }
  return {};
}

}  // namespace multihead::distributed
