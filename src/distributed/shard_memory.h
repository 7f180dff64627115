// Keys and values of one rank as they are sent: contiguous, and f32 if they are transformed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "distributed/call.h"
#include "distributed/rectangles.h"
#include "distributed/transport.h"
#include "rules/arena.h"

namespace multihead::distributed {

// Memory of keys and values for up to `rows` rows.
struct KeyMemory {
  char *k = nullptr, *v = nullptr;
};

// Shapes and sizes of the data that a rank sends; all ranks can compute them.
class Layouts {
 public:
  Layouts(const Call& call, const Shards& shards) : call_(call), shards_(shards) {}

  DType q_type() const { return call_.transforms() ? DType::kF32 : call_.q.dtype; }
  DType k_type() const { return call_.transforms() ? DType::kF32 : call_.k.dtype; }
  DType v_type() const { return call_.v.dtype; }
  int64_t rows(int rank) const { return shards_.keys[static_cast<size_t>(rank)]; }

  Dims q_shape(int64_t queries) const {
    return {call_.shape.batch, call_.shape.heads, queries, call_.shape.head_dim};
  }
  Dims k_shape(int64_t rows) const {
    return {call_.shape.batch, call_.shape.kv_heads, rows, call_.shape.head_dim};
  }
  Dims v_shape(int64_t rows) const {
    return {call_.shape.batch, call_.shape.kv_heads, rows, call_.shape.value_dim};
  }
  Dims out_shape(int64_t queries) const {
    return {call_.shape.batch, call_.shape.heads, queries, call_.shape.value_dim};
  }
  Dims lse_shape(int64_t queries) const { return {call_.shape.batch, call_.shape.heads, queries}; }

  uint64_t q_bytes(int64_t queries) const { return bytes(q_shape(queries), q_type()); }
  uint64_t k_bytes(int64_t rows) const { return bytes(k_shape(rows), k_type()); }
  uint64_t v_bytes(int64_t rows) const { return bytes(v_shape(rows), v_type()); }

  void take(rules::Arena& arena, KeyMemory& memory, int64_t rows) const {
    arena(memory.k, k_bytes(rows));
    arena(memory.v, v_bytes(rows));
  }
  AnyTensor k(const KeyMemory& memory, int64_t rows) const {
    return view(memory.k, k_type(), k_shape(rows));
  }
  AnyTensor v(const KeyMemory& memory, int64_t rows) const {
    return view(memory.v, v_type(), v_shape(rows));
  }
  void take(rules::Arena& arena, PartialResult& result, int64_t queries) const {
    result.out.shape = out_shape(queries);
    result.lse.shape = lse_shape(queries);
    arena(result.out.data, static_cast<uint64_t>(result.out.shape.elements()));
    arena(result.lse.data, static_cast<uint64_t>(result.lse.shape.elements()));
    result.out.strides = contiguous_strides(result.out.shape);
    result.lse.strides = contiguous_strides(result.lse.shape);
  }

  static AnyTensor view(void* data, DType type, const Dims& shape) {
    return {data, type, shape, contiguous_strides(shape)};
  }
  static uint64_t bytes(const Dims& shape, DType type) {
    return static_cast<uint64_t>(shape.elements() * bytes_of(type));
  }

 private:
  const Call& call_;
  const Shards& shards_;
};

inline void send(Transport& transport, int to, const Layouts& layouts, const KeyMemory& memory,
                 int64_t rows) {
  transport.send(to, memory.k, layouts.k_bytes(rows));
  transport.send(to, memory.v, layouts.v_bytes(rows));
}
inline void receive(Transport& transport, int from, const Layouts& layouts, const KeyMemory& memory,
                    int64_t rows) {
  transport.receive(from, memory.k, layouts.k_bytes(rows));
  transport.receive(from, memory.v, layouts.v_bytes(rows));
}

// Writes this rank's keys and values to `memory`, transformed if the call requests it.
Status pack(const Call& call, const Shards& shards, int rank, const Layouts& layouts,
            const KeyMemory& memory, Context& context);

// Returns the rank's queries, transformed into `memory`. `memory` may be null if the call has no
// transformation.
Status pack_queries(const Call& call, std::span<const Segment> segments, const Layouts& layouts,
                    float* memory, ConstAnyTensor& q, Context& context);

// Copies a rank's rows, in the order of its chunks, to their places in the whole sequence; gather()
// copies them back.
void scatter(std::span<const Chunk> chunks, const ConstAnyTensor& shard, const AnyTensor& whole,
             Context& context);
void gather(std::span<const Chunk> chunks, const ConstAnyTensor& whole, const AnyTensor& shard,
            Context& context);

}  // namespace multihead::distributed
