#include "distributed/backward.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "distributed/rectangles.h"
#include "distributed/reserve.h"
#include "distributed/shard_memory.h"
#include "engine/backward.h"
#include "engine/plan.h"
#include "engine/scratch.h"
#include "engine/threads.h"
#include "rules/arena.h"

namespace multihead::distributed {
namespace {

// to += from, of any strides, row by row.
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

// Gradients of keys and values as they travel.
void send(Transport& transport, int to, const GradientSums& sums) {
  transport.send(to, sums.d_k.data, Layouts::bytes(sums.d_k.shape, DType::kF32));
  transport.send(to, sums.d_v.data, Layouts::bytes(sums.d_v.shape, DType::kF32));
}
void receive(Transport& transport, int from, const GradientSums& sums) {
  transport.receive(from, sums.d_k.data, Layouts::bytes(sums.d_k.shape, DType::kF32));
  transport.receive(from, sums.d_v.data, Layouts::bytes(sums.d_v.shape, DType::kF32));
}

// Memory of gradients of keys and values for fewer rows than it was taken for.
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
// Gradients of the rank's queries, and of the bias.
void take_queries(rules::Arena& arena, GradientSums& sums, const Call& call,
                  const Layouts& layouts) {
  take(arena, sums.d_q, layouts.q_shape(call.shape.queries));
  if (call.options.bias.given()) take(arena, sums.d_bias, call.options.bias.shape);
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
    engine::end_backward(plan, from);
    add(from.d_q, to.d_q);
    add(from.d_k, to.d_k);
    add(from.d_v, to.d_v);
    add(from.d_bias, to.d_bias);
    transport.poll();
  }
  return {};
}

// As the forward ring. The gradients of a rank's keys and values follow them one step later, and
// after the last step are at the rank before their owner's, which sends them home. Every rank adds
// its part to what arrives, so the order of the sums depends on the number of ranks alone.
Status ring_backward(const Call& call, const BackwardInputs& inputs, const Shards& shards,
                     Communicator::Internals& ranks, Context& context, GradientSums& total) {
  Transport& transport = *ranks.transport;
  const int size = transport.size(), rank = transport.rank();
  const int next = (rank + 1) % size, previous = (rank - 1 + size) % size;
  const Layouts layouts(call, shards);
  std::array<KeyMemory, 2> keys;
  std::array<GradientSums, 2> own_parts;  // of this step and the one before
  GradientSums arriving, part;
  float* moved_q = nullptr;
  Status status = reserve(call, ranks, [&](rules::Arena& arena) {
    for (KeyMemory& memory : keys) layouts.take(arena, memory, layouts.most_rows());
    for (GradientSums* sums : {&own_parts[0], &own_parts[1], &arriving, &part}) {
      take_keys(arena, *sums, layouts, layouts.most_rows());
    }
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
  set_zero(total.d_q);
  set_zero(total.d_bias);
  GradientSums leaving;
  for (int step = 0; step < size; ++step) {
    const int owner = (rank - step + size) % size;
    const KeyMemory& now = keys[static_cast<size_t>(step % 2)];
    const int64_t rows = layouts.rows(owner);
    if (step + 1 < size) {
      const int coming = (owner - 1 + size) % size;
      distributed::receive(transport, previous, layouts, keys[static_cast<size_t>((step + 1) % 2)],
                           layouts.rows(coming));
      distributed::send(transport, next, layouts, now, rows);
    }
    const GradientSums arrived = of_keys(arriving, layouts, rows);
    if (step > 0) {
      receive(transport, previous, arrived);
      send(transport, next, leaving);
    }
    GradientSums sums = of_keys(own_parts[static_cast<size_t>(step % 2)], layouts, rows);
    set_zero(sums.d_k);
    set_zero(sums.d_v);
    sums.d_q = total.d_q;
    sums.d_bias = total.d_bias;
    GradientSums of_rectangle = of_keys(part, layouts, rows);
    of_rectangle.d_q = part.d_q;
    of_rectangle.d_bias = part.d_bias;
    for (const Chunk& chunk : shards.key_chunks(call, owner)) {
      status = add_gradients(call, heads, options, inputs,
                             {q, layouts.k(now, rows), layouts.v(now, rows), segments, chunk},
                             of_rectangle, sums, transport, context);
      if (!status.ok()) return status;
    }
    status = ranks.finish(call.sharding.time_limit);
    if (!status.ok()) return status;
    if (step > 0) {
      add(arrived.d_k, sums.d_k);
      add(arrived.d_v, sums.d_v);
    }
    leaving = sums;
  }
  // This rank's, from the one before.
  const GradientSums home = of_keys(arriving, layouts, call.shape.keys);
  receive(transport, previous, home);
  send(transport, next, leaving);
  total.d_k = home.d_k;
  total.d_v = home.d_v;
  return ranks.finish(call.sharding.time_limit);
}

// Every rank computes its queries' part of the gradients of all keys and values, and sends each
// rank its rows, which adds them in the order of the ranks.
Status gathered_backward(const Call& call, const BackwardInputs& inputs, const Shards& shards,
                         Communicator::Internals& ranks, Context& context, GradientSums& total) {
  Transport& transport = *ranks.transport;
  const int size = transport.size(), rank = transport.rank();
  const Layouts layouts(call, shards);
  const int64_t all_keys = call.sharding.keys;
  std::vector<KeyMemory> of_rank(static_cast<size_t>(size));
  std::vector<GradientSums> leaving(static_cast<size_t>(size)), arriving(static_cast<size_t>(size));
  KeyMemory whole;
  GradientSums part, sums;
  float* moved_q = nullptr;
  Status status = reserve(call, ranks, [&](rules::Arena& arena) {
    for (int r = 0; r < size; ++r) {
      const auto at = static_cast<size_t>(r);
      layouts.take(arena, of_rank[at], layouts.rows(r));
      take_keys(arena, leaving[at], layouts, layouts.rows(r));
      take_keys(arena, arriving[at], layouts, layouts.rows(rank));
    }
    layouts.take(arena, whole, all_keys);
    for (GradientSums* memory : {&part, &sums}) {
      take_keys(arena, *memory, layouts, all_keys);
      take_queries(arena, *memory, call, layouts);
    }
    take_keys(arena, total, layouts, layouts.rows(rank));
    arena(moved_q, transformed_queries(call, layouts));
  });
  if (!status.ok()) return status;

  const KeyMemory& own = of_rank[static_cast<size_t>(rank)];
  status = pack(call, shards, rank, layouts, own, context);
  if (!status.ok()) return status;
  for (int other = 0; other < size; ++other) {
    if (other == rank) continue;
    distributed::receive(transport, other, layouts, of_rank[static_cast<size_t>(other)],
                         layouts.rows(other));
    distributed::send(transport, other, layouts, own, layouts.rows(rank));
  }
  const std::vector<Segment> segments = segments_of(shards.query_chunks(call, rank), call.cu_q);
  ConstAnyTensor q;
  status = pack_queries(call, segments, layouts, moved_q, q, context);
  if (status.ok()) status = ranks.finish(call.sharding.time_limit);
  if (!status.ok()) return status;
  const AnyTensor k = layouts.k(whole, all_keys), v = layouts.v(whole, all_keys);
  for (int r = 0; r < size; ++r) {
    const std::vector<Chunk> chunks = shards.key_chunks(call, r);
    const KeyMemory& from = of_rank[static_cast<size_t>(r)];
    scatter(chunks, layouts.k(from, layouts.rows(r)), k, context);
    scatter(chunks, layouts.v(from, layouts.rows(r)), v, context);
  }
  for (const Tensor& tensor : {sums.d_q, sums.d_k, sums.d_v, sums.d_bias}) set_zero(tensor);
  const Heads heads = all_heads(call);
  status = add_gradients(call, heads, options_of_heads(call, heads), inputs,
                         {q, k, v, segments, {.first = 0, .count = all_keys, .local = 0}}, part,
                         sums, transport, context);
  if (!status.ok()) return status;

  for (int other = 0; other < size; ++other) {
    const auto at = static_cast<size_t>(other);
    const GradientSums& to = other == rank ? arriving[at] : leaving[at];
    const std::vector<Chunk> chunks = shards.key_chunks(call, other);
    gather(chunks, ConstAnyTensor(sums.d_k), to.d_k, context);
    gather(chunks, ConstAnyTensor(sums.d_v), to.d_v, context);
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
  for (const GradientSums& from : arriving) {
    add(from.d_k, total.d_k);
    add(from.d_v, total.d_v);
  }
  return {};
}

}  // namespace multihead::distributed
