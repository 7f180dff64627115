#include "support/allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> count{0};
}

namespace multihead::testing {
int64_t allocations() { return count.load(); }
}  // namespace multihead::testing

// The forms that are not defined here call these.
void* operator new(size_t bytes) {
  ++count;
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
  // Not an exception: the WebAssembly build has none, and no test runs out of such memory.
  if (memory == nullptr) std::abort();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
