#include "memory.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace multihead::bindings {
namespace {

// The longest call takes a few kilobytes beside its buffers; parameters with their names, some
// hundred bytes each.
constexpr size_t kReserveBytes = size_t{1} << 20;

void* reserve = nullptr;

}  // namespace

bool renew_reserve() {
  if (reserve == nullptr) reserve = std::malloc(kReserveBytes);
  return reserve != nullptr;
}

}  // namespace multihead::bindings

// Without exceptions a failure has no way back to the call: the reserve is for it to end with an
// error. Large memory is never asked for here, but through engine::Buffer, which gives a status.
void* operator new(size_t bytes) {
  const size_t least = bytes == 0 ? 1 : bytes;
  void* memory = std::malloc(least);
  if (memory == nullptr && multihead::bindings::reserve != nullptr) {
    std::free(multihead::bindings::reserve);
    multihead::bindings::reserve = nullptr;
    memory = std::malloc(least);
  }
  if (memory == nullptr) __builtin_trap();
  return memory;
}
