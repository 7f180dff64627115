#include "distributed/shard_memory.h"

#include <cstdint>
#include <span>

namespace multihead::distributed {

Status pack(const Task& task, const KeyMemory& memory) {
  const Call& call = task.call;
  const Layouts layouts = task.layouts();
  const int64_t rows = call.shape.keys;
  const AnyTensor k = layouts.k(memory, rows);
  copy(call.v, layouts.v(memory, rows), task.context);
  if (!call.transforms()) {
    copy(call.k, k, task.context);
    return {};
  }
  return transform(call, Operand::kKeys,
                   segments_of(task.shards.key_chunks(call, task.rank()), call.cu_k),
                   {static_cast<float*>(k.data), k.shape}, task.context);
}

void OwnQueries::take(rules::Arena& arena) {
  const Call& call = task.call;
  const Dims shape = task.layouts().q_shape(call.shape.queries);
  arena(memory, call.transforms() ? static_cast<uint64_t>(shape.elements()) : 0);
}

Status OwnQueries::pack() {
  const Call& call = task.call;
  q = call.q;
  if (!call.transforms()) return {};
  const Tensor to(memory, task.layouts().q_shape(call.shape.queries));
  q = to;
  return transform(call, Operand::kQueries, segments, to, task.context);
}

void scatter(std::span<const Chunk> chunks, const ConstAnyTensor& shard, const AnyTensor& whole,
             Context& context) {
  for (const Chunk& chunk : chunks) {
    copy(rows_of(shard, chunk.local, chunk.count), rows_of(whole, chunk.first, chunk.count),
         context);
  }
}

void gather(std::span<const Chunk> chunks, const ConstAnyTensor& whole, const AnyTensor& shard,
            Context& context) {
  for (const Chunk& chunk : chunks) {
    copy(rows_of(whole, chunk.first, chunk.count), rows_of(shard, chunk.local, chunk.count),
         context);
  }
}

}  // namespace multihead::distributed
