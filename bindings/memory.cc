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

namespace {

// From the reserve where there is nothing else; else null.
void* memory_for(size_t bytes) {
  const size_t least = bytes == 0 ? 1 : bytes;
  void* const memory = std::malloc(least);
  if (memory != nullptr || multihead::bindings::reserve == nullptr) return memory;
  std::free(multihead::bindings::reserve);
  multihead::bindings::reserve = nullptr;
  return std::malloc(least);
}

}  // namespace

// Without exceptions a failure has no way back to the call: the reserve is for it to end with an
// error. Large memory is never asked for here, but through engine::Buffer, which gives a status.
void* operator new(size_t bytes) {
  void* const memory = memory_for(bytes);
  if (memory == nullptr) __builtin_trap();
  return memory;
}

// Of an error's record, among others: with the reserve, calls are refused with their own errors.
void* operator new(size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return memory_for(bytes);
}
