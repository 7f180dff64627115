#include "distributed/head_exchange.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "distributed/shard_memory.h"

namespace multihead::distributed {

Heads HeadExchange::heads_of(int rank) const {
  const engine::AttentionShape& shape = task_.call.shape;
  const int64_t size = task_.size(), group = shape.heads / shape.kv_heads;
  const int64_t first = shape.kv_heads * rank / size, end = shape.kv_heads * (rank + 1) / size;
  return {first * group, first, (end - first) * group, end - first};
}

int64_t HeadExchange::rows_of_rank(const Exchanged& tensor, int rank) const {
  return (tensor.query_heads ? task_.shards.queries : task_.shards.keys)[static_cast<size_t>(rank)];
}

std::vector<Chunk> HeadExchange::chunks_of_rank(const Exchanged& tensor, int rank) const {
  return tensor.query_heads ? task_.shards.query_chunks(task_.call, rank)
                            : task_.shards.key_chunks(task_.call, rank);
}

AnyTensor HeadExchange::block(const Exchanged& tensor, void* data, const Heads& heads,
                              int64_t rows) const {
  const int64_t count = tensor.query_heads ? heads.count : heads.kv_count;
  return Layouts::view(data, tensor.type, {task_.call.shape.batch, count, rows, tensor.width});
}

AnyTensor HeadExchange::row_block(const Exchanged& tensor, int rank) const {
  return block(tensor, tensor.row_blocks[static_cast<size_t>(rank)], heads_of(rank),
               rows_of_rank(tensor, task_.rank()));
}

AnyTensor HeadExchange::head_block(const Exchanged& tensor, int rank) const {
  return block(tensor, tensor.head_blocks[static_cast<size_t>(rank)], heads(),
               rows_of_rank(tensor, rank));
}

AnyTensor HeadExchange::whole(const Exchanged& tensor) const {
  return block(tensor, tensor.whole, heads(),
               tensor.query_heads ? task_.call.sharding.queries : task_.call.sharding.keys);
}

Tensor HeadExchange::whole_floats(const Exchanged& tensor) const {
  const AnyTensor all = whole(tensor);
  return {static_cast<float*>(all.data), all.shape};
}

void HeadExchange::take(rules::Arena& arena, Exchanged& tensor) const {
  const auto size = static_cast<size_t>(task_.size());
  tensor.row_blocks.resize(size);
  tensor.head_blocks.resize(size);
  const auto bytes = [](const AnyTensor& view) { return Layouts::bytes(view.shape, view.dtype); };
  for (int rank = 0; rank < task_.size(); ++rank) {
    const auto at = static_cast<size_t>(rank);
    arena(tensor.row_blocks[at], bytes(row_block(tensor, rank)));
    arena(tensor.head_blocks[at], bytes(head_block(tensor, rank)));
  }
  arena(tensor.whole, bytes(whole(tensor)));
}

void HeadExchange::exchange(const Exchanged& tensor, bool to_heads) const {
  for (int other = 0; other < task_.size(); ++other) {
    const AnyTensor out = to_heads ? row_block(tensor, other) : head_block(tensor, other);
    const AnyTensor in = to_heads ? head_block(tensor, other) : row_block(tensor, other);
    if (other == task_.rank()) {
      copy(out, in, task_.context);
      continue;
    }
    task_.transport().receive(other, in.data, Layouts::bytes(in.shape, in.dtype));
    task_.transport().send(other, out.data, Layouts::bytes(out.shape, out.dtype));
  }
}

template <class View>
View HeadExchange::heads_of_view(const Exchanged& tensor, const View& rows, int rank) const {
  const Heads heads = heads_of(rank);
  return part_of(rows, 1, tensor.query_heads ? heads.first : heads.kv_first,
                 tensor.query_heads ? heads.count : heads.kv_count);
}

void HeadExchange::send_heads(const Exchanged& tensor, const ConstAnyTensor& rows) const {
  for (int other = 0; other < task_.size(); ++other) {
    copy(heads_of_view(tensor, rows, other), row_block(tensor, other), task_.context);
  }
  exchange(tensor, /*to_heads=*/true);
}

void HeadExchange::to_heads(const Exchanged& tensor) const {
  for (int rank = 0; rank < task_.size(); ++rank) {
    scatter(chunks_of_rank(tensor, rank), head_block(tensor, rank), whole(tensor), task_.context);
  }
}

void HeadExchange::send_rows(const Exchanged& tensor) const {
  for (int rank = 0; rank < task_.size(); ++rank) {
    gather(chunks_of_rank(tensor, rank), whole(tensor), head_block(tensor, rank), task_.context);
  }
  exchange(tensor, /*to_heads=*/false);
}

void HeadExchange::to_rows(const Exchanged& tensor, const AnyTensor& rows) const {
  for (int other = 0; other < task_.size(); ++other) {
    copy(row_block(tensor, other), heads_of_view(tensor, rows, other), task_.context);
  }
}

}  // namespace multihead::distributed
