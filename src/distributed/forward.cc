#include "distributed/forward.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "distributed/gathered_keys.h"
#include "distributed/rectangles.h"
#include "distributed/reserve.h"
#include "distributed/seen_keys.h"
#include "distributed/shard_memory.h"
#include "rules/arena.h"

namespace multihead::distributed {

// In step t a rank holds keys of rank - t. It sends the rows on that a rank ahead sees, and
// receives the next keys while it computes.
Status ring_attention(const Call& call, const Shards& shards, Communicator::Internals& ranks,
                      Context& context, PartialResult& total) {
  Transport& transport = *ranks.transport;
  const int size = transport.size(), rank = transport.rank();
  const int next = (rank + 1) % size, previous = (rank - 1 + size) % size;
  const Layouts layouts(call, shards);
  const RingJourney journey(call, shards, size);
  const auto held = [&](int step) {
    return step < size ? journey.keys(journey.owner(rank, step), step) : Chunks();
  };
  int64_t most_rows = 0;
  for (int step = 0; step < size; ++step) most_rows = std::max(most_rows, count_of(held(step)));
  std::array<KeyMemory, 2> keys;
  KeyMemory narrowed;
  PartialResult part;
  float* moved_q = nullptr;
  MULTIHEAD_TRY(reserve(call, ranks, [&](rules::Arena& arena) {
    for (KeyMemory& memory : keys) layouts.take(arena, memory, most_rows);
    layouts.take(arena, narrowed, most_rows);
    layouts.take(arena, total, call.shape.queries);
    layouts.take(arena, part, call.shape.queries);
    arena(moved_q, transformed_queries(call, layouts));
  }));

  const std::vector<Segment> segments = segments_of(shards.query_chunks(call, rank), call.cu_q);
  const Heads heads = all_heads(call);
  const AttentionOptions options = options_of_heads(call, heads);
  ConstAnyTensor q;
  MULTIHEAD_TRY(pack(call, shards, rank, layouts, keys[0], context));
  MULTIHEAD_TRY(pack_queries(call, segments, layouts, moved_q, q, context));
  clear(total);
  for (int step = 0; step < size; ++step) {
    const Chunks chunks = held(step), coming = held(step + 1);
    const KeyMemory& now = keys[static_cast<size_t>(step % 2)];
    const int64_t rows = count_of(chunks);
    receive(transport, previous, layouts, keys[static_cast<size_t>((step + 1) % 2)],
            count_of(coming));
    if (step + 1 < size) {
      const Chunks leaving = journey.keys(journey.owner(rank, step), step + 1);
      send_keys(transport, next, layouts, chunks, now, leaving, narrowed, context);
    }
    for (const Chunk& chunk : chunks) {
      MULTIHEAD_TRY(add_attention(call, heads, options,
                                  {q, layouts.k(now, rows), layouts.v(now, rows), segments, chunk},
                                  part, total, transport, context));
    }
    if (step + 1 == size) break;
    MULTIHEAD_TRY(ranks.finish(call.sharding.time_limit));
  }
  return {};
}

Status gathered_attention(const Call& call, const Shards& shards, Communicator::Internals& ranks,
                          Context& context, PartialResult& total) {
  Transport& transport = *ranks.transport;
  const Layouts layouts(call, shards);
  GatheredKeys gathered(call, shards, transport.rank());
  PartialResult part;
  float* moved_q = nullptr;
  MULTIHEAD_TRY(reserve(call, ranks, [&](rules::Arena& arena) {
    gathered.take(arena, layouts);
    layouts.take(arena, total, call.shape.queries);
    layouts.take(arena, part, call.shape.queries);
    arena(moved_q, transformed_queries(call, layouts));
  }));

  MULTIHEAD_TRY(gathered.start(transport, layouts, context));
  const std::vector<Segment> segments =
      segments_of(shards.query_chunks(call, transport.rank()), call.cu_q);
  ConstAnyTensor q;
  MULTIHEAD_TRY(pack_queries(call, segments, layouts, moved_q, q, context));
  MULTIHEAD_TRY(ranks.finish(call.sharding.time_limit));
  gathered.join(layouts, context);
  const Heads heads = all_heads(call);
  clear(total);
  return add_attention(call, heads, options_of_heads(call, heads),
                       {q,
                        gathered.k(layouts),
                        gathered.v(layouts),
                        segments,
                        {.first = 0, .count = call.sharding.keys, .local = 0}},
                       part, total, transport, context);
}

// Every rank computes all queries against its own keys. The results are merged in rank order, so
// all ranks get the same bits.
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
  MULTIHEAD_TRY(reserve(call, ranks, [&](rules::Arena& arena) {
    for (PartialResult& result : of_rank) layouts.take(arena, result, queries);
    layouts.take(arena, part, queries);
    layouts.take(arena, total, queries);
    if (call.transforms()) layouts.take(arena, keys, call.shape.keys);
    arena(moved_q, transformed_queries(call, layouts));
  }));

  // The cache is read in place, unless its keys are transformed.
  ConstAnyTensor q, k = call.k, v = call.v;
  if (call.transforms()) {
    MULTIHEAD_TRY(pack(call, shards, rank, layouts, keys, context));
    k = layouts.k(keys, call.shape.keys);
    v = layouts.v(keys, call.shape.keys);
  }
  const std::vector<Segment> segments =
      segments_of(Chunk{.first = 0, .count = queries, .local = 0}, call.cu_q);
  MULTIHEAD_TRY(pack_queries(call, segments, layouts, moved_q, q, context));
  const Heads heads = all_heads(call);
  const AttentionOptions options = options_of_heads(call, heads);
  const PartialResult& own = of_rank[static_cast<size_t>(rank)];
  clear(own);
  for (const Chunk& chunk : shards.key_chunks(call, rank)) {
    MULTIHEAD_TRY(add_attention(call, heads, options, {q, k, v, segments, chunk}, part, own,
                                transport, context));
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
  MULTIHEAD_TRY(ranks.finish(call.sharding.time_limit));
  clear(total);
  for (const PartialResult& from : of_rank) merge(total, from.out, from.lse, context);
  return {};
}

}  // namespace multihead::distributed
