#include "distributed/methods.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "distributed/gathered_keys.h"
#include "distributed/seen_keys.h"
#include "distributed/shard_memory.h"
#include "distributed/tiles.h"
#include "rules/arena.h"

namespace multihead::distributed {

// In step t a rank holds keys of rank - t. It sends the rows on that a rank ahead sees, and
// receives the next keys while it computes.
Status ring_attention(const Task& task, PartialResult& total) {
  const Call& call = task.call;
  Transport& transport = task.transport();
  const int size = transport.size(), rank = transport.rank();
  const int next = (rank + 1) % size, previous = (rank - 1 + size) % size;
  const Layouts layouts = task.layouts();
  const RingSchedule schedule(task);
  const auto held = [&](int step) {
    return step < size ? schedule.keys(schedule.owner(rank, step), step) : Chunks();
  };
  int64_t most_rows = 0;
  for (int step = 0; step < size; ++step) most_rows = std::max(most_rows, count_of(held(step)));
  std::array<KeyMemory, 2> keys;
  KeyMemory narrowed;
  PartialResult part;
  float* transformed_q = nullptr;
  MULTIHEAD_TRY(reserve(task, [&](rules::Arena& arena) {
    for (KeyMemory& memory : keys) layouts.take(arena, memory, most_rows);
    layouts.take(arena, narrowed, most_rows);
    layouts.take(arena, total, call.shape.queries);
    layouts.take(arena, part, call.shape.queries);
    arena(transformed_q, transformed_queries(task));
  }));

  const std::vector<Segment> segments = task.query_segments();
  const Heads heads = all_heads(call);
  ConstAnyTensor q;
  MULTIHEAD_TRY(pack(task, keys[0]));
  MULTIHEAD_TRY(pack_queries(task, segments, transformed_q, q));
  clear(total);
  for (int step = 0; step < size; ++step) {
    const Chunks chunks = held(step), coming = held(step + 1);
    const KeyMemory& now = keys[static_cast<size_t>(step % 2)];
    const int64_t rows = count_of(chunks);
    receive(transport, previous, layouts, keys[static_cast<size_t>((step + 1) % 2)],
            count_of(coming));
    if (step + 1 < size) {
      send_keys(task, next, chunks, now, schedule.keys(schedule.owner(rank, step), step + 1),
                narrowed);
    }
    for (const Chunk& chunk : chunks) {
      MULTIHEAD_TRY(add_attention(task, heads,
                                  {q, layouts.k(now, rows), layouts.v(now, rows), segments, chunk},
                                  part, total));
    }
    if (step + 1 == size) break;
    MULTIHEAD_TRY(task.finish());
  }
  return {};
}

Status gathered_attention(const Task& task, PartialResult& total) {
  const Call& call = task.call;
  const Layouts layouts = task.layouts();
  GatheredKeys gathered(task);
  PartialResult part;
  float* transformed_q = nullptr;
  MULTIHEAD_TRY(reserve(task, [&](rules::Arena& arena) {
    gathered.take(arena);
    layouts.take(arena, total, call.shape.queries);
    layouts.take(arena, part, call.shape.queries);
    arena(transformed_q, transformed_queries(task));
  }));

  MULTIHEAD_TRY(gathered.start());
  const std::vector<Segment> segments = task.query_segments();
  ConstAnyTensor q;
  MULTIHEAD_TRY(pack_queries(task, segments, transformed_q, q));
  MULTIHEAD_TRY(task.finish());
  gathered.join();
  const Heads heads = all_heads(call);
  clear(total);
  return add_attention(task, heads,
                       {q,
                        gathered.k(),
                        gathered.v(),
                        segments,
                        {.first = 0, .count = call.sharding.keys, .local = 0}},
                       part, total);
}

// Every rank computes all queries against its own keys. The results are merged in rank order, so
// all ranks get the same bits.
Status decode_attention(const Task& task, PartialResult& total) {
  const Call& call = task.call;
  Transport& transport = task.transport();
  const int size = transport.size(), rank = transport.rank();
  const Layouts layouts = task.layouts();
  const int64_t queries = call.shape.queries;
  std::vector<PartialResult> results(static_cast<size_t>(size));
  PartialResult part;
  KeyMemory keys;
  float* transformed_q = nullptr;
  MULTIHEAD_TRY(reserve(task, [&](rules::Arena& arena) {
    for (PartialResult& result : results) layouts.take(arena, result, queries);
    layouts.take(arena, part, queries);
    layouts.take(arena, total, queries);
    if (call.transforms()) layouts.take(arena, keys, call.shape.keys);
    arena(transformed_q, transformed_queries(task));
  }));

  // The cache is read in place, unless its keys are transformed.
  ConstAnyTensor q, k = call.k, v = call.v;
  if (call.transforms()) {
    MULTIHEAD_TRY(pack(task, keys));
    k = layouts.k(keys, call.shape.keys);
    v = layouts.v(keys, call.shape.keys);
  }
  const std::vector<Segment> segments =
      segments_of(Chunk{.first = 0, .count = queries, .local = 0}, call.cu_q);
  MULTIHEAD_TRY(pack_queries(task, segments, transformed_q, q));
  const Heads heads = all_heads(call);
  const PartialResult& own = results[static_cast<size_t>(rank)];
  clear(own);
  for (const Chunk& chunk : task.shards.key_chunks(call, rank)) {
    MULTIHEAD_TRY(add_attention(task, heads, {q, k, v, segments, chunk}, part, own));
  }
  const uint64_t out_bytes = Layouts::bytes(own.out.shape, DType::kF32);
  const uint64_t lse_bytes = Layouts::bytes(own.lse.shape, DType::kF32);
  for (int other = 0; other < size; ++other) {
    if (other == rank) continue;
    const PartialResult& from = results[static_cast<size_t>(other)];
    transport.receive(other, from.out.data, out_bytes);
    transport.receive(other, from.lse.data, lse_bytes);
    transport.send(other, own.out.data, out_bytes);
    transport.send(other, own.lse.data, lse_bytes);
  }
  MULTIHEAD_TRY(task.finish());
  clear(total);
  for (const PartialResult& from : results) merge(total, from.out, from.lse, task.context);
  return {};
}

}  // namespace multihead::distributed
