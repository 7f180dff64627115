// Method kHeads: each rank gets all rows of some heads, computes them, and returns each rank its
// rows.
#include <array>
#include <cstdint>
#include <vector>

#include "distributed/backward.h"
#include "distributed/forward.h"
#include "distributed/head_exchange.h"
#include "distributed/rectangles.h"
#include "distributed/reserve.h"
#include "distributed/shard_memory.h"
#include "rules/arena.h"

namespace multihead::distributed {
namespace {

std::array<Exchanged, 3> exchanged_inputs(const Call& call, const Layouts& layouts) {
  return {{{.type = layouts.q_type(), .of_queries = true, .width = call.shape.head_dim},
           {.type = layouts.k_type(), .of_queries = false, .width = call.shape.head_dim},
           {.type = layouts.v_type(), .of_queries = false, .width = call.shape.value_dim}}};
}

// Transforms q and k if the call requests it, and starts the exchange of q, k and v.
Status send_inputs(const Call& call, const Shards& shards, const HeadExchange& exchange, int rank,
                   const std::array<Exchanged, 3>& inputs, float* moved_q, const KeyMemory& moved,
                   Context& context) {
  const Layouts layouts(call, shards);
  ConstAnyTensor q, k = call.k;
  MULTIHEAD_TRY(pack_queries(call, segments_of(shards.query_chunks(call, rank), call.cu_q), layouts,
                             moved_q, q, context));
  if (call.transforms()) {
    MULTIHEAD_TRY(pack(call, shards, rank, layouts, moved, context));
    k = layouts.k(moved, call.shape.keys);
  }
  exchange.send_heads(inputs[0], q);
  exchange.send_heads(inputs[1], k);
  exchange.send_heads(inputs[2], call.v);
  return {};
}

std::vector<Segment> all_queries(const Call& call) {
  return segments_of(Chunk{.first = 0, .count = call.sharding.queries, .local = 0}, call.cu_q);
}

}  // namespace

Status heads_attention(const Call& call, const Shards& shards, Communicator::Internals& ranks,
                       Context& context, PartialResult& total) {
  Transport& transport = *ranks.transport;
  const Layouts layouts(call, shards);
  const HeadExchange exchange(call, shards, transport, context);
  const Heads heads = exchange.heads();
  std::array<Exchanged, 3> inputs = exchanged_inputs(call, layouts);
  Exchanged out{.width = call.shape.value_dim}, lse{.width = 1};
  KeyMemory moved;
  PartialResult part;
  float* moved_q = nullptr;
  MULTIHEAD_TRY(reserve(call, ranks, [&](rules::Arena& arena) {
    for (Exchanged& of : inputs) exchange.take(arena, of);
    exchange.take(arena, out);
    exchange.take(arena, lse);
    layouts.take(arena, total, call.shape.queries);
    const int64_t batch = call.shape.batch, queries = call.sharding.queries;
    take(arena, part.out, {batch, heads.count, queries, call.shape.value_dim});
    take(arena, part.lse, {batch, heads.count, queries});
    if (call.transforms()) layouts.take(arena, moved, call.shape.keys);
    arena(moved_q, transformed_queries(call, layouts));
  }));
  MULTIHEAD_TRY(
      send_inputs(call, shards, exchange, transport.rank(), inputs, moved_q, moved, context));
  MULTIHEAD_TRY(ranks.finish(call.sharding.time_limit));
  for (const Exchanged& of : inputs) exchange.to_heads(of);

  const PartialResult result{exchange.whole_floats(out),
                             Tensor(exchange.whole_floats(lse).data, part.lse.shape)};
  clear(result);
  const std::vector<Segment> queries = all_queries(call);
  MULTIHEAD_TRY(add_attention(call, heads, options_of_heads(call, heads),
                              {exchange.whole(inputs[0]),
                               exchange.whole(inputs[1]),
                               exchange.whole(inputs[2]),
                               queries,
                               {.first = 0, .count = call.sharding.keys, .local = 0}},
                              part, result, transport, context));
  exchange.send_rows(out);
  exchange.send_rows(lse);
  MULTIHEAD_TRY(ranks.finish(call.sharding.time_limit));
  exchange.to_rows(out, total.out);
  exchange.to_rows(lse, as_columns(total.lse));
  return {};
}

Status heads_backward(const Call& call, const BackwardInputs& results, const Shards& shards,
                      Communicator::Internals& ranks, Context& context, GradientSums& total) {
  Transport& transport = *ranks.transport;
  const Layouts layouts(call, shards);
  const HeadExchange exchange(call, shards, transport, context);
  const Heads heads = exchange.heads();
  const int64_t head_dim = call.shape.head_dim, value_dim = call.shape.value_dim;
  std::array<Exchanged, 3> inputs = exchanged_inputs(call, layouts);
  std::array<Exchanged, 3> of_results{{{.type = results.out.dtype, .width = value_dim},
                                       {.type = results.d_out.dtype, .width = value_dim},
                                       {.width = 1}}};
  std::array<Exchanged, 3> gradients{{{.width = head_dim},
                                      {.of_queries = false, .width = head_dim},
                                      {.of_queries = false, .width = value_dim}}};
  KeyMemory moved;
  GradientSums part;
  float* moved_q = nullptr;
  MULTIHEAD_TRY(reserve(call, ranks, [&](rules::Arena& arena) {
    for (auto* group : {&inputs, &of_results, &gradients}) {
      for (Exchanged& of : *group) exchange.take(arena, of);
    }
    take(arena, part.d_q, exchange.whole(gradients[0]).shape);
    take(arena, part.d_k, exchange.whole(gradients[1]).shape);
    take(arena, part.d_v, exchange.whole(gradients[2]).shape);
    take(arena, total.d_q, layouts.q_shape(call.shape.queries));
    take(arena, total.d_k, layouts.k_shape(call.shape.keys));
    take(arena, total.d_v, layouts.v_shape(call.shape.keys));
    if (call.options.bias.given()) {
      take(arena, part.d_bias, call.options.bias.shape);
      take(arena, total.d_bias, call.options.bias.shape);
    }
    if (call.transforms()) layouts.take(arena, moved, call.shape.keys);
    arena(moved_q, transformed_queries(call, layouts));
  }));
  MULTIHEAD_TRY(
      send_inputs(call, shards, exchange, transport.rank(), inputs, moved_q, moved, context));
  exchange.send_heads(of_results[0], results.out);
  exchange.send_heads(of_results[1], results.d_out);
  exchange.send_heads(of_results[2], as_columns(results.lse));
  MULTIHEAD_TRY(ranks.finish(call.sharding.time_limit));
  for (const Exchanged& of : inputs) exchange.to_heads(of);
  for (const Exchanged& of : of_results) exchange.to_heads(of);

  const GradientSums sums{.d_q = exchange.whole_floats(gradients[0]),
                          .d_k = exchange.whole_floats(gradients[1]),
                          .d_v = exchange.whole_floats(gradients[2]),
                          .d_bias = total.d_bias};
  for (const Tensor& tensor : {sums.d_q, sums.d_k, sums.d_v, sums.d_bias}) set_zero(tensor);
  const std::vector<Segment> queries = all_queries(call);
  const Tensor lse(exchange.whole_floats(of_results[2]).data,
                   {call.shape.batch, heads.count, call.sharding.queries});
  MULTIHEAD_TRY(add_gradients(
      call, heads, options_of_heads(call, heads),
      {.out = exchange.whole(of_results[0]), .d_out = exchange.whole(of_results[1]), .lse = lse},
      {exchange.whole(inputs[0]),
       exchange.whole(inputs[1]),
       exchange.whole(inputs[2]),
       queries,
       {.first = 0, .count = call.sharding.keys, .local = 0}},
      part, sums, transport, context));
  for (const Exchanged& of : gradients) exchange.send_rows(of);
  MULTIHEAD_TRY(ranks.finish(call.sharding.time_limit));
  exchange.to_rows(gradients[0], total.d_q);
  exchange.to_rows(gradients[1], total.d_k);
  exchange.to_rows(gradients[2], total.d_v);
  return {};
}

}  // namespace multihead::distributed
