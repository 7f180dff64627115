#include "distributed/head_exchange.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "distributed/shard_memory.h"

namespace multihead::distributed {

Heads HeadExchange::heads_of(int rank) const {
  const engine::AttentionShape& shape = call_.shape;
  const int64_t size = transport_.size(), group = shape.heads / shape.kv_heads;
  const int64_t first = shape.kv_heads * rank / size, end = shape.kv_heads * (rank + 1) / size;
  return {first * group, first, (end - first) * group, end - first};
}

int64_t HeadExchange::rows_of_rank(const Exchanged& of, int rank) const {
  return (of.of_queries ? shards_.queries : shards_.keys)[static_cast<size_t>(rank)];
}

std::vector<Chunk> HeadExchange::chunks_of_rank(const Exchanged& of, int rank) const {
  return of.of_queries ? shards_.query_chunks(call_, rank) : shards_.key_chunks(call_, rank);
}

AnyTensor HeadExchange::block(const Exchanged& of, void* data, const Heads& heads,
                              int64_t rows) const {
  const int64_t count = of.of_queries ? heads.count : heads.kv_count;
  return Layouts::view(data, of.type, {call_.shape.batch, count, rows, of.width});
}

AnyTensor HeadExchange::there(const Exchanged& of, int rank) const {
  return block(of, of.there[static_cast<size_t>(rank)], heads_of(rank),
               rows_of_rank(of, transport_.rank()));
}

AnyTensor HeadExchange::here(const Exchanged& of, int rank) const {
  return block(of, of.here[static_cast<size_t>(rank)], heads(), rows_of_rank(of, rank));
}

AnyTensor HeadExchange::whole(const Exchanged& of) const {
  return block(of, of.whole, heads(), of.of_queries ? call_.sharding.queries : call_.sharding.keys);
}

Tensor HeadExchange::whole_floats(const Exchanged& of) const {
  const AnyTensor all = whole(of);
  return {static_cast<float*>(all.data), all.shape};
}

void HeadExchange::take(rules::Arena& arena, Exchanged& of) const {
  const auto size = static_cast<size_t>(transport_.size());
  of.there.resize(size);
  of.here.resize(size);
  const auto bytes = [](const AnyTensor& view) { return Layouts::bytes(view.shape, view.dtype); };
  for (int rank = 0; rank < transport_.size(); ++rank) {
    const auto at = static_cast<size_t>(rank);
    arena(of.there[at], bytes(there(of, rank)));
    arena(of.here[at], bytes(here(of, rank)));
  }
  arena(of.whole, bytes(whole(of)));
}

void HeadExchange::exchange(const Exchanged& of, bool forth) const {
  for (int other = 0; other < transport_.size(); ++other) {
    const AnyTensor out = forth ? there(of, other) : here(of, other);
    const AnyTensor in = forth ? here(of, other) : there(of, other);
    if (other == transport_.rank()) {
      copy(out, in, context_);
      continue;
    }
    transport_.receive(other, in.data, Layouts::bytes(in.shape, in.dtype));
    transport_.send(other, out.data, Layouts::bytes(out.shape, out.dtype));
  }
}

template <class View>
View HeadExchange::heads_of_view(const Exchanged& of, const View& rows, int rank) const {
  const Heads heads = heads_of(rank);
  return part_of(rows, 1, of.of_queries ? heads.first : heads.kv_first,
                 of.of_queries ? heads.count : heads.kv_count);
}

void HeadExchange::send_heads(const Exchanged& of, const ConstAnyTensor& rows) const {
  for (int other = 0; other < transport_.size(); ++other) {
    copy(heads_of_view(of, rows, other), there(of, other), context_);
  }
  exchange(of, /*forth=*/true);
}

void HeadExchange::to_heads(const Exchanged& of) const {
  for (int rank = 0; rank < transport_.size(); ++rank) {
    scatter(chunks_of_rank(of, rank), here(of, rank), whole(of), context_);
  }
}

void HeadExchange::send_rows(const Exchanged& of) const {
  for (int rank = 0; rank < transport_.size(); ++rank) {
    gather(chunks_of_rank(of, rank), whole(of), here(of, rank), context_);
  }
  exchange(of, /*forth=*/false);
}

void HeadExchange::to_rows(const Exchanged& of, const AnyTensor& rows) const {
  for (int other = 0; other < transport_.size(); ++other) {
    copy(there(of, other), heads_of_view(of, rows, other), context_);
  }
}

}  // namespace multihead::distributed
