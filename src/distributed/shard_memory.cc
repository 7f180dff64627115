#include "distributed/shard_memory.h"

#include <cstdint>
#include <span>
#include <vector>

namespace multihead::distributed {

Status pack(const Call& call, const Shards& shards, int rank, const Layouts& layouts,
            const KeyMemory& memory, Context& context) {
  const int64_t rows = call.shape.keys;
  const AnyTensor k = layouts.k(memory, rows);
  copy(call.v, layouts.v(memory, rows), context);
  if (!call.transforms()) {
    copy(call.k, k, context);
    return {};
  }
  const std::vector<Segment> segments = segments_of(shards.key_chunks(call, rank), call.cu_k);
  return transform(call, Operand::kKeys, segments, {static_cast<float*>(k.data), k.shape}, context);
}

Status pack_queries(const Call& call, std::span<const Segment> segments, const Layouts& layouts,
                    float* memory, ConstAnyTensor& q, Context& context) {
  q = call.q;
  if (!call.transforms()) return {};
  const Tensor to(memory, layouts.q_shape(call.shape.queries));
  q = to;
  return transform(call, Operand::kQueries, segments, to, context);
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
