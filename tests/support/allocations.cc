#include "support/allocations.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> count{0};
}

namespace multihead::testing {
int64_t allocations() { return count.load(); }
}  // namespace multihead::testing

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MULTIHEAD_THREAD_SANITIZER
#endif
#elif defined(__SANITIZE_THREAD__)
#define MULTIHEAD_THREAD_SANITIZER
#endif

#ifdef MULTIHEAD_THREAD_SANITIZER
// Its operator new cannot be replaced, but watched.
#include <sanitizer/allocator_interface.h>

namespace {
const int installed = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, size_t) { ++count; }, [](const volatile void*) {});
}  // namespace
#else
namespace {
void* allocate(size_t bytes) noexcept {
  ++count;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
// Not an exception: the WebAssembly build has none, and no test runs out of such memory.
void* allocate_or_abort(size_t bytes) noexcept {
  void* const memory = allocate(bytes);
  if (memory == nullptr) std::abort();
  return memory;
}
}  // namespace

// Every form without an alignment: the sanitizers' own do not call these.
void* operator new(size_t bytes) { return allocate_or_abort(bytes); }
void* operator new[](size_t bytes) { return allocate_or_abort(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
#endif
