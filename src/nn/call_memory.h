// Scratch memory for one call of a module: all its arrays in one buffer of the context.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/runtime/scratch.h"
#include "multihead/status.h"
#include "multihead/tensor.h"
#include "rules/arena.h"

namespace multihead::nn {

// Returns shape.elements(), or at least 2^62 if the product is larger: keys with stride 0 can have
// more elements than any memory.
inline uint64_t saturated_elements(const Dims& shape) {
  double product = 1;
  for (int axis = 0; axis < shape.rank(); ++axis) product *= static_cast<double>(shape[axis]);
  return product < 0x1p62 ? static_cast<uint64_t>(shape.elements()) : uint64_t{1} << 62U;
}

// Calls lay_out(arena) twice: first without memory, to measure the size, then with that many bytes
// of `buffer`. Errors: kMemory.
template <class LayOut>
Status reserve(engine::Buffer& buffer, LayOut&& lay_out) {
  rules::Arena size(nullptr);
  lay_out(size);
  // At least one alignment unit, so that arrays without elements have an address too.
  const uint64_t bytes = std::max(size.bytes(), rules::Arena::kAlignment);
  if (!buffer.reserve(bytes)) return Status::out_of_memory(bytes);
  rules::Arena memory(buffer.data());
  lay_out(memory);
  return {};
}

// Reserves `count` floats. Errors: kMemory, also for more floats than any memory has.
inline Status reserve_floats(engine::Buffer& buffer, int64_t count, float*& floats) {
  return reserve(buffer, [&](rules::Arena& take) { take(floats, static_cast<uint64_t>(count)); });
}

}  // namespace multihead::nn
