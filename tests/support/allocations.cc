#include "support/allocations.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> count{0};

// State of FailingMemory: the number of requests so far, the first request that fails, and the
// first later request that succeeds again. No request fails while `begin` is negative.
std::atomic<int64_t> requests{0}, begin{-1}, end{-1};

[[maybe_unused]] bool fails() noexcept {
  const int64_t first = begin.load();
  if (first < 0) return false;
  const int64_t request = requests.fetch_add(1);
  return request >= first && request < end.load();
}
}  // namespace

namespace multihead::testing {

int64_t allocations() { return count.load(); }

FailingMemory::FailingMemory(int64_t first, Fail fail) {
  requests = 0;
  end = fail == Fail::kOnce ? first + 1 : INT64_MAX;
  begin = first;
}
FailingMemory::~FailingMemory() { begin = -1; }
bool FailingMemory::failed() const { return requests.load() > begin.load(); }
int64_t FailingMemory::later() const { return failed() ? requests.load() - begin.load() - 1 : 0; }

}  // namespace multihead::testing

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MULTIHEAD_THREAD_SANITIZER
#endif
#elif defined(__SANITIZE_THREAD__)
#define MULTIHEAD_THREAD_SANITIZER
#endif

#ifdef MULTIHEAD_THREAD_SANITIZER
// operator new cannot be replaced in this build, but its calls can be counted.
#include <sanitizer/allocator_interface.h>

namespace {
const int installed = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, size_t) { ++count; }, [](const volatile void*) {});
}  // namespace
#else
namespace {
void* allocate(size_t bytes) noexcept {
  ++count;
  if (fails()) return nullptr;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void* allocate_or_throw(size_t bytes) {
  void* const memory = allocate(bytes);
#if defined(__cpp_exceptions)
  if (memory == nullptr) throw std::bad_alloc();
#else
  // Tests never exhaust memory in a build without exceptions (WebAssembly).
  if (memory == nullptr) std::abort();
#endif
  return memory;
}
}  // namespace

// All forms without an alignment are replaced: the sanitizers' versions of one form do not call
// another.
void* operator new(size_t bytes) { return allocate_or_throw(bytes); }
void* operator new[](size_t bytes) { return allocate_or_throw(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

// Elsewhere only requests through operator new fail: a program cannot replace _aligned_malloc(),
// which the library calls on Windows, and musl's posix_memalign() calls aligned_alloc().
#if defined(__GLIBC__) || defined(__APPLE__)
// Replaces the C library's function in this program and in everything linked statically.
extern "C" void* aligned_alloc(size_t alignment, size_t bytes) {
  if (fails()) return nullptr;
  void* memory = nullptr;
  return posix_memalign(&memory, alignment, bytes) == 0 ? memory : nullptr;
}
#endif
#endif
