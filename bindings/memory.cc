#include "memory.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace multihead::bindings {
namespace {

// Size of the reserve. A call needs at most a few kilobytes in addition to its buffers, and some
// hundred bytes for each named parameter: a model of 64 layers needs more than 1 MiB.
constexpr size_t kReserveBytes = size_t{3} << 19;

void* reserve = nullptr;

}  // namespace

bool renew_reserve() {
  if (reserve == nullptr) reserve = std::malloc(kReserveBytes);
  return reserve != nullptr;
}

}  // namespace multihead::bindings

namespace {

// Allocates memory. If none is left, frees the reserve and allocates from it. Null if that is not
// enough either.
void* memory_for(size_t bytes) {
  const size_t least = bytes == 0 ? 1 : bytes;
  void* const memory = std::malloc(least);
  if (memory != nullptr || multihead::bindings::reserve == nullptr) return memory;
  std::free(multihead::bindings::reserve);
  multihead::bindings::reserve = nullptr;
  return std::malloc(least);
}

}  // namespace

// The module has no exceptions, so a failed operator new can only trap. The reserve lets the call
// end with an error instead. Large memory comes from engine::Buffer, which returns a Status.
void* operator new(size_t bytes) {
  void* const memory = memory_for(bytes);
  if (memory == nullptr) __builtin_trap();
  return memory;
}

// Allocates error records. The reserve lets a call fail with its own error.
void* operator new(size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return memory_for(bytes);
}
