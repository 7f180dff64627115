// A rank's part of an agreed call: its memory, and its keys and values as they are sent, contiguous
// and f32 if they are transformed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "distributed/agreement.h"
#include "distributed/call.h"
#include "distributed/communicator.h"
#include "distributed/transport.h"
#include "engine/error/error.h"
#include "multihead/context.h"
#include "rules/arena.h"

namespace multihead::distributed {

// Memory of keys and values for up to `rows` rows.
struct KeyMemory {
  char *k = nullptr, *v = nullptr;
};

// Outputs of rows over the keys so far, normalized by their log-sum-exp.
struct PartialResult {
  Tensor out;  // (B, H, n, d_v)
  Tensor lse;  // (B, H, n)
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

// The call that the ranks agreed on, as one rank computes it.
struct Task {
  const Call& call;
  const Shards& shards;
  Communicator::Internals& ranks;
  Context& context;

  Transport& transport() const { return *ranks.transport; }
  int rank() const { return ranks.transport->rank(); }
  int size() const { return ranks.transport->size(); }
  Layouts layouts() const { return {call, shards}; }
  // Parts of the sequences that this rank's queries belong to.
  std::vector<Segment> query_segments() const {
    return segments_of(shards.query_chunks(call, rank()), call.cu_q);
  }
  // Waits for all transfers. Errors: kExchange.
  Status finish() const { return ranks.finish(call.sharding.time_limit); }
};

// Reserves the memory that `lay_out` takes from an arena; an error if any rank has not enough
// memory.
template <class LayOut>
Status reserve(const Task& task, const LayOut& lay_out) {
  rules::Arena needs(nullptr);
  lay_out(needs);
  const bool reserved = task.ranks.memory.reserve(needs.bytes());
  MULTIHEAD_TRY(agree(reserved ? Status() : Status::out_of_memory(needs.bytes()),
                      task.call.sharding.time_limit, task.ranks));
  rules::Arena takes(task.ranks.memory.data());
  lay_out(takes);
  return {};
}

// Takes a contiguous tensor from the arena.
inline void take(rules::Arena& arena, Tensor& tensor, const Dims& shape) {
  tensor.shape = shape;
  tensor.strides = contiguous_strides(shape);
  arena(tensor.data, static_cast<uint64_t>(shape.elements()));
}

// Writes this rank's keys and values to `memory`, transformed if the call requests it.
Status pack(const Task& task, const KeyMemory& memory);

// This rank's queries, transformed if the call requests it.
struct OwnQueries {
  const Task& task;
  std::vector<Segment> segments;  // the sequences that they belong to
  ConstAnyTensor q = {};          // set by pack()
  float* memory = nullptr;

  void take(rules::Arena& arena);
  Status pack();
};

// Copies a rank's rows, in the order of its chunks, to their places in the whole sequence; gather()
// copies them back.
void scatter(std::span<const Chunk> chunks, const ConstAnyTensor& shard, const AnyTensor& whole,
             Context& context);
void gather(std::span<const Chunk> chunks, const ConstAnyTensor& whole, const AnyTensor& shard,
            Context& context);

}  // namespace multihead::distributed
