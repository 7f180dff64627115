#include "distributed/forward.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "distributed/rectangles.h"
#include "distributed/reserve.h"
#include "distributed/shard_memory.h"
#include "rules/arena.h"

namespace multihead::distributed {

// In step t a rank has the keys of rank - t. It sends them on and receives the next ones while it
// computes with them.
Status ring_attention(const Call& call, const Shards& shards, Communicator::Internals& ranks,
                      Context& context, PartialResult& total) {
  Transport& transport = *ranks.transport;
  const int size = transport.size(), rank = transport.rank();
  const Layouts layouts(call, shards);
  std::array<KeyMemory, 2> keys;
  PartialResult part;
  float* moved_q = nullptr;
  Status status = reserve(call, ranks, [&](rules::Arena& arena) {
    for (KeyMemory& memory : keys) layouts.take(arena, memory, layouts.most_rows());
    layouts.take(arena, total, call.shape.queries);
    layouts.take(arena, part, call.shape.queries);
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
  clear(total);
  for (int step = 0; step < size; ++step) {
    const int owner = (rank - step + size) % size;
    const KeyMemory& now = keys[static_cast<size_t>(step % 2)];
    const int64_t rows = layouts.rows(owner);
    const bool is_last = step + 1 == size;
    if (!is_last) {
      const int previous = (rank - 1 + size) % size, coming = (owner - 1 + size) % size;
      receive(transport, previous, layouts, keys[static_cast<size_t>((step + 1) % 2)],
              layouts.rows(coming));
      send(transport, (rank + 1) % size, layouts, now, rows);
    }
    for (const Chunk& chunk : shards.key_chunks(call, owner)) {
      status = add_attention(call, heads, options,
                             {q, layouts.k(now, rows), layouts.v(now, rows), segments, chunk}, part,
                             total, transport, context);
      if (!status.ok()) return status;
    }
    if (is_last) break;
    status = ranks.finish(call.sharding.time_limit);
    if (!status.ok()) return status;
  }
  return {};
}

Status gathered_attention(const Call& call, const Shards& shards, Communicator::Internals& ranks,
                          Context& context, PartialResult& total) {
  Transport& transport = *ranks.transport;
  const int size = transport.size(), rank = transport.rank();
  const Layouts layouts(call, shards);
  std::vector<KeyMemory> of_rank(static_cast<size_t>(size));
  KeyMemory whole;
  PartialResult part;
  float* moved_q = nullptr;
  Status status = reserve(call, ranks, [&](rules::Arena& arena) {
    for (int r = 0; r < size; ++r) {
      layouts.take(arena, of_rank[static_cast<size_t>(r)], layouts.rows(r));
    }
    layouts.take(arena, whole, call.sharding.keys);
    layouts.take(arena, total, call.shape.queries);
    layouts.take(arena, part, call.shape.queries);
    arena(moved_q, transformed_queries(call, layouts));
  });
  if (!status.ok()) return status;

  const KeyMemory& own = of_rank[static_cast<size_t>(rank)];
  status = pack(call, shards, rank, layouts, own, context);
  if (!status.ok()) return status;
  for (int other = 0; other < size; ++other) {
    if (other == rank) continue;
    receive(transport, other, layouts, of_rank[static_cast<size_t>(other)], layouts.rows(other));
    send(transport, other, layouts, own, layouts.rows(rank));
  }
  const std::vector<Segment> segments = segments_of(shards.query_chunks(call, rank), call.cu_q);
  ConstAnyTensor q;
  status = pack_queries(call, segments, layouts, moved_q, q, context);
  if (status.ok()) status = ranks.finish(call.sharding.time_limit);
  if (!status.ok()) return status;
  const AnyTensor k = layouts.k(whole, call.sharding.keys),
                  v = layouts.v(whole, call.sharding.keys);
  for (int r = 0; r < size; ++r) {
    const std::vector<Chunk> chunks = shards.key_chunks(call, r);
    const KeyMemory& from = of_rank[static_cast<size_t>(r)];
    scatter(chunks, layouts.k(from, layouts.rows(r)), k, context);
    scatter(chunks, layouts.v(from, layouts.rows(r)), v, context);
  }
  const Heads heads = all_heads(call);
  clear(total);
  return add_attention(call, heads, options_of_heads(call, heads),
                       {q, k, v, segments, {.first = 0, .count = call.sharding.keys, .local = 0}},
                       part, total, transport, context);
}

// Every rank computes all queries against its own keys; the results are merged in the order of the
// ranks, so that all of them have the same bits.
Status decode_attention(const Call& call, const Shards& shards, Communicator::Internals& ranks,
                        Context& context, PartialResult& total) {
  Transport& transport = *ranks.transport;
  const int size = transport.size(), rank = transport.rank();
  const Layouts layouts(call, shards);
  const int64_t queries = call.shape.queries;
  std::vector<PartialResult> of_rank(static_cast<size_t>(size));
  PartialResult part;
  KeyMemory keys;
  float* moved_q = nullptr;
  Status status = reserve(call, ranks, [&](rules::Arena& arena) {
    for (PartialResult& result : of_rank) layouts.take(arena, result, queries);
    layouts.take(arena, part, queries);
    layouts.take(arena, total, queries);
    if (call.transforms()) layouts.take(arena, keys, call.shape.keys);
    arena(moved_q, transformed_queries(call, layouts));
  });
  if (!status.ok()) return status;

  // The cache stays where it is, unless its keys are transformed.
  ConstAnyTensor q, k = call.k, v = call.v;
  if (call.transforms()) {
    status = pack(call, shards, rank, layouts, keys, context);
    k = layouts.k(keys, call.shape.keys);
    v = layouts.v(keys, call.shape.keys);
  }
  const std::vector<Segment> segments =
      segments_of(Chunk{.first = 0, .count = queries, .local = 0}, call.cu_q);
  if (status.ok()) status = pack_queries(call, segments, layouts, moved_q, q, context);
  if (!status.ok()) return status;
  const Heads heads = all_heads(call);
  const AttentionOptions options = options_of_heads(call, heads);
  const PartialResult& own = of_rank[static_cast<size_t>(rank)];
  clear(own);
  for (const Chunk& chunk : shards.key_chunks(call, rank)) {
    status = add_attention(call, heads, options, {q, k, v, segments, chunk}, part, own, transport,
                           context);
    if (!status.ok()) return status;
  }
  const uint64_t out_bytes = Layouts::bytes(own.out.shape, DType::kF32);
  const uint64_t lse_bytes = Layouts::bytes(own.lse.shape, DType::kF32);
  for (int other = 0; other < size; ++other) {
    if (other == rank) continue;
    const PartialResult& from = of_rank[static_cast<size_t>(other)];
    transport.receive(other, from.out.data, out_bytes);
    transport.receive(other, from.lse.data, lse_bytes);
    transport.send(other, own.out.data, out_bytes);
    transport.send(other, own.lse.data, lse_bytes);
  }
  status = ranks.finish(call.sharding.time_limit);
  if (!status.ok()) return status;
  clear(total);
  for (const PartialResult& from : of_rank) merge(total, from.out, from.lse, context);
  return {};
}

}  // namespace multihead::distributed
