// Method kHeads: each rank gets all rows of some heads, computes them, and returns each rank its
// rows.
#include <cstdint>
#include <span>
#include <vector>

#include "distributed/head_exchange.h"
#include "distributed/methods.h"
#include "distributed/shard_memory.h"
#include "distributed/tiles.h"
#include "rules/arena.h"

namespace multihead::distributed {
namespace {

// Query heads of rows, f32 unless said otherwise; key/value heads.
Exchanged queries_of(int64_t width, DType type = DType::kF32) {
  return {.type = type, .query_heads = true, .width = width};
}
Exchanged keys_of(int64_t width, DType type = DType::kF32) {
  return {.type = type, .query_heads = false, .width = width};
}

// q, k and v on their way to the ranks that compute their heads.
struct ExchangedInputs {
  Exchanged q, k, v;
  OwnQueries own_queries;
  KeyMemory transformed_keys;

  explicit ExchangedInputs(const Task& task) : own_queries{task, task.query_segments()} {
    const Layouts layouts = task.layouts();
    const engine::AttentionShape& shape = task.call.shape;
    q = queries_of(shape.head_dim, layouts.q_type());
    k = keys_of(shape.head_dim, layouts.k_type());
    v = keys_of(shape.value_dim, layouts.v_type());
  }

  void take(rules::Arena& arena, const HeadExchange& exchange, const Task& task) {
    for (Exchanged* tensor : {&q, &k, &v}) exchange.take(arena, *tensor);
    if (task.call.transforms()) {
      task.layouts().take(arena, transformed_keys, task.call.shape.keys);
    }
    own_queries.take(arena);
  }

  // Transforms q and k if the call requests it, and starts the exchange.
  Status send(const HeadExchange& exchange, const Task& task) {
    const Call& call = task.call;
    ConstAnyTensor own_k = call.k;
    MULTIHEAD_TRY(own_queries.pack());
    if (call.transforms()) {
      MULTIHEAD_TRY(pack(task, transformed_keys));
      own_k = task.layouts().k(transformed_keys, call.shape.keys);
    }
    exchange.send_heads(q, own_queries.q);
    exchange.send_heads(k, own_k);
    exchange.send_heads(v, call.v);
    return {};
  }

  // Call this after the transfers: all rows of this rank's heads.
  TileOperands receive(const HeadExchange& exchange, const Call& call,
                       std::span<const Segment> queries) const {
    for (const Exchanged* tensor : {&q, &k, &v}) exchange.to_heads(*tensor);
    return {exchange.heads(),  exchange.whole(q), exchange.whole(k),
            exchange.whole(v), queries,           whole(call.sharding.keys)};
  }
};

std::vector<Segment> all_queries(const Call& call) {
  return segments_of(whole(call.sharding.queries), call.cu_q);
}

}  // namespace

Status heads_attention(const Task& task, PartialResult& total) {
  const Call& call = task.call;
  const HeadExchange exchange(task);
  const Heads heads = exchange.heads();
  ExchangedInputs inputs(task);
  Exchanged out = queries_of(call.shape.value_dim), lse = queries_of(1);
  PartialResult part;
  MULTIHEAD_TRY(reserve(task, [&](rules::Arena& arena) {
    inputs.take(arena, exchange, task);
    exchange.take(arena, out);
    exchange.take(arena, lse);
    task.layouts().take(arena, total, call.shape.queries);
    const int64_t batch = call.shape.batch, queries = call.sharding.queries;
    take(arena, part.out, {batch, heads.count, queries, call.shape.value_dim});
    take(arena, part.lse, {batch, heads.count, queries});
  }));
  MULTIHEAD_TRY(inputs.send(exchange, task));
  MULTIHEAD_TRY(task.finish());
  const PartialResult result{exchange.whole_floats(out),
                             Tensor(exchange.whole_floats(lse).data, part.lse.shape)};
  clear(result);
  const std::vector<Segment> queries = all_queries(call);
  MULTIHEAD_TRY(add_attention(task, inputs.receive(exchange, call, queries), part, result));
  exchange.send_rows(out);
  exchange.send_rows(lse);
  MULTIHEAD_TRY(task.finish());
  exchange.to_rows(out, total.out);
  exchange.to_rows(lse, as_columns(total.lse));
  return {};
}

Status heads_backward(const Task& task, const BackwardInputs& results, GradientSums& total) {
  const Call& call = task.call;
  const Layouts layouts = task.layouts();
  const HeadExchange exchange(task);
  const Heads heads = exchange.heads();
  const int64_t head_dim = call.shape.head_dim, value_dim = call.shape.value_dim;
  ExchangedInputs inputs(task);
  Exchanged out = queries_of(value_dim, results.out.dtype);
  Exchanged d_out = queries_of(value_dim, results.d_out.dtype), lse = queries_of(1);
  Exchanged d_q = queries_of(head_dim), d_k = keys_of(head_dim), d_v = keys_of(value_dim);
  GradientSums part;
  MULTIHEAD_TRY(reserve(task, [&](rules::Arena& arena) {
    inputs.take(arena, exchange, task);
    for (Exchanged* tensor : {&out, &d_out, &lse, &d_q, &d_k, &d_v}) exchange.take(arena, *tensor);
    take(arena, part.d_q, exchange.whole(d_q).shape);
    take(arena, part.d_k, exchange.whole(d_k).shape);
    take(arena, part.d_v, exchange.whole(d_v).shape);
    take(arena, total.d_q, layouts.q_shape(call.shape.queries));
    take(arena, total.d_k, layouts.k_shape(call.shape.keys));
    take(arena, total.d_v, layouts.v_shape(call.shape.keys));
    if (call.options.bias.given()) {
      take(arena, part.d_bias, call.options.bias.shape);
      take(arena, total.d_bias, call.options.bias.shape);
    }
  }));
  MULTIHEAD_TRY(inputs.send(exchange, task));
  exchange.send_heads(out, results.out);
  exchange.send_heads(d_out, results.d_out);
  exchange.send_heads(lse, as_columns(results.lse));
  MULTIHEAD_TRY(task.finish());
  for (const Exchanged* tensor : {&out, &d_out, &lse}) exchange.to_heads(*tensor);

  const GradientSums sums{.d_q = exchange.whole_floats(d_q),
                          .d_k = exchange.whole_floats(d_k),
                          .d_v = exchange.whole_floats(d_v),
                          .d_bias = total.d_bias};
  set_zero(sums);
  const std::vector<Segment> queries = all_queries(call);
  const Tensor whole_lse(exchange.whole_floats(lse).data,
                         {call.shape.batch, heads.count, call.sharding.queries});
  MULTIHEAD_TRY(add_gradients(
      task, {.out = exchange.whole(out), .d_out = exchange.whole(d_out), .lse = whole_lse},
      inputs.receive(exchange, call, queries), part, sums));
  for (const Exchanged* tensor : {&d_q, &d_k, &d_v}) exchange.send_rows(*tensor);
  MULTIHEAD_TRY(task.finish());
  exchange.to_rows(d_q, total.d_q);
  exchange.to_rows(d_k, total.d_k);
  exchange.to_rows(d_v, total.d_v);
  return {};
}

}  // namespace multihead::distributed
