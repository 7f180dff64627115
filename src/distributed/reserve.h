// Reserves the memory of a call.
#pragma once

#include <cstdint>

#include "distributed/agreement.h"
#include "distributed/call.h"
#include "distributed/communicator.h"
#include "distributed/shard_memory.h"
#include "engine/error/error.h"
#include "engine/runtime/scratch.h"
#include "rules/arena.h"

namespace multihead::distributed {

// Reserves the memory that `lay_out` takes from an arena; an error if any rank has not enough
// memory.
template <class LayOut>
Status reserve(const Call& call, Communicator::Internals& ranks, const LayOut& lay_out) {
  rules::Arena needs(nullptr);
  lay_out(needs);
  const bool reserved = ranks.memory.reserve(needs.bytes());
  MULTIHEAD_TRY(agree(reserved ? Status() : Status::out_of_memory(needs.bytes()),
                      call.sharding.time_limit, ranks));
  rules::Arena takes(ranks.memory.data());
  lay_out(takes);
  return {};
}

// Takes a contiguous tensor from the arena.
inline void take(rules::Arena& arena, Tensor& tensor, const Dims& shape) {
  tensor.shape = shape;
  tensor.strides = contiguous_strides(shape);
  arena(tensor.data, static_cast<uint64_t>(shape.elements()));
}

// Number of floats for the rank's transformed queries; 0 if they are not transformed.
inline uint64_t transformed_queries(const Call& call, const Layouts& layouts) {
  if (!call.transforms()) return 0;
  return static_cast<uint64_t>(layouts.q_shape(call.shape.queries).elements());
}

}  // namespace multihead::distributed
