#include "distributed/methods.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "distributed/seen_keys.h"
#include "distributed/shard_memory.h"
#include "distributed/tiles.h"
#include "engine/attention/run.h"
#include "rules/arena.h"

namespace multihead::distributed {
namespace {

// Reserves the memory of a method that sends keys, and packs this rank's keys and queries.
template <class Keys>
Status start(const Task& task, Keys& keys, OwnQueries& queries, PartialResult& part,
             PartialResult& total) {
  MULTIHEAD_TRY(reserve(task, [&](rules::Arena& arena) {
    keys.take(arena);
    queries.take(arena);
    for (PartialResult* result : {&total, &part}) {
      task.layouts().take(arena, *result, task.call.shape.queries);
    }
  }));
  clear(total);
  MULTIHEAD_TRY(keys.start());
  return queries.pack();
}

}  // namespace

// Every rank sends its keys on and receives the next ones while it computes.
Status ring_attention(const Task& task, PartialResult& total) {
  RingKeys keys(task, /*keeps_rows=*/false);
  OwnQueries queries{task, task.query_segments()};
  PartialResult part;
  MULTIHEAD_TRY(start(task, keys, queries, part, total));
  for (int step = 0; step < task.size(); ++step) {
    keys.exchange(step);
    for (const Chunk& chunk : keys.held(step)) {
      MULTIHEAD_TRY(add_attention(
          task, TileOperands::of(queries, keys.k(step), keys.v(step), chunk), part, total));
    }
    if (step + 1 == task.size()) break;
    MULTIHEAD_TRY(task.finish());
  }
  return {};
}

Status gathered_attention(const Task& task, PartialResult& total) {
  GatheredKeys keys(task);
  OwnQueries queries{task, task.query_segments()};
  PartialResult part;
  MULTIHEAD_TRY(start(task, keys, queries, part, total));
  MULTIHEAD_TRY(task.finish());
  keys.join();
  return add_attention(
      task, TileOperands::of(queries, keys.k(), keys.v(), whole(task.call.sharding.keys)), part,
      total);
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
  OwnQueries own_queries{task, segments_of(whole(queries), call.cu_q)};
  MULTIHEAD_TRY(reserve(task, [&](rules::Arena& arena) {
    for (PartialResult& result : results) layouts.take(arena, result, queries);
    layouts.take(arena, part, queries);
    layouts.take(arena, total, queries);
    if (call.transforms()) layouts.take(arena, keys, call.shape.keys);
    own_queries.take(arena);
  }));

  // The cache is read in place, unless its keys are transformed.
  ConstAnyTensor k = call.k, v = call.v;
  if (call.transforms()) {
    MULTIHEAD_TRY(pack(task, keys));
    k = layouts.k(keys, call.shape.keys);
    v = layouts.v(keys, call.shape.keys);
  }
  MULTIHEAD_TRY(own_queries.pack());
  const PartialResult& own = results[static_cast<size_t>(rank)];
  clear(own);
  for (const Chunk& chunk : task.shards.key_chunks(call, rank)) {
    MULTIHEAD_TRY(add_attention(task, TileOperands::of(own_queries, k, v, chunk), part, own));
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
  for (const PartialResult& from : results) {
    engine::merge_rows(total.out, total.lse, from.out, from.lse, &task.context);
  }
  return {};
}

}  // namespace multihead::distributed
