// Where memory ends: what malloc() may have, and what a call may do when nothing is left.

#include <emscripten/heap.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "memory.h"

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

extern "C" const char __heap_base;  // NOLINT: the linker's name for where malloc()'s memory begins

// Emscripten's own adds without looking at the carry: near 4 GiB it gives addresses that lie beyond
// the end of memory, or at its beginning. Negative increments are sizes above 2 GiB as malloc()
// hands them over. The memory ends below 4 GiB (CMakeLists.txt), so that address + size never
// wraps.
extern "C" void* sbrk(intptr_t increment) {
  static uintptr_t end = reinterpret_cast<uintptr_t>(&__heap_base);
  constexpr uint64_t kAlignment = alignof(std::max_align_t);
  const auto bytes = static_cast<uint64_t>(increment);
  const uint64_t new_end = end + (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const bool has_room = increment >= 0 && new_end <= UINT32_MAX &&
                        (new_end <= emscripten_get_heap_size() ||
                         emscripten_resize_heap(static_cast<size_t>(new_end)) != 0);
  if (!has_room) {
    errno = ENOMEM;
    return reinterpret_cast<void*>(-1);
  }
  const uintptr_t start = end;
  end = static_cast<uintptr_t>(new_end);
  return reinterpret_cast<void*>(start);
}

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
