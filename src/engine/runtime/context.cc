#include "multihead/context.h"

#if defined(__linux__)
#include <sys/mman.h>
#elif defined(_WIN32)
#include <malloc.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "cpu/kernels.h"
#include "cpu/target.h"
#include "engine/runtime/kernel_choice.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/threads.h"
#include "rules/integers.h"

namespace multihead {
namespace engine {
namespace {

// No object can be larger. With larger sizes, Emscripten's malloc() overflows to a negative size
// and returns memory that is in use. 1 MB is left for malloc()'s own header.
constexpr uint64_t kLargest = PTRDIFF_MAX - (1 << 20);

// Requests 2 MB pages from Linux before the memory is touched. A GPT-2-small step, which reads 500
// MB of weights, is 4 % faster with them.
void ask_for_large_pages([[maybe_unused]] void* memory, [[maybe_unused]] size_t bytes) {
#if defined(__linux__)
  constexpr size_t kPage = size_t{1} << 21;
  constexpr size_t kWorthIt = 8 * kPage;
  if (bytes < kWorthIt) return;
  auto* const start = static_cast<char*>(memory);
  const size_t to_page = (kPage - reinterpret_cast<uintptr_t>(memory) % kPage) % kPage;
  madvise(start + to_page, (bytes - to_page) / kPage * kPage, MADV_HUGEPAGE);
#endif
}

}  // namespace

void* allocate(uint64_t bytes) {
  constexpr size_t kAlignment = cpu::kScratchAlignment;
  if (bytes > kLargest) return nullptr;
  const size_t rounded = rules::round_up(static_cast<size_t>(bytes), kAlignment);
#if defined(_WIN32)  // has no aligned_alloc(), because its free() takes no aligned memory
  void* const memory = _aligned_malloc(rounded, kAlignment);
#else
  void* const memory = std::aligned_alloc(kAlignment, rounded);
#endif
  if (memory != nullptr) ask_for_large_pages(memory, rounded);
  return memory;
}

void release(void* memory) {
#if defined(_WIN32)
  _aligned_free(memory);
#else
  std::free(memory);
#endif
}

bool Buffer::reserve(uint64_t bytes) {
  if (bytes <= bytes_) return true;
  data_.reset();
  bytes_ = 0;
#if !defined(__EMSCRIPTEN__)
  if (const ContextOptions* const host = data_.get_deleter().host; host != nullptr) {
    if (bytes > kLargest) return false;
    data_.get_deleter().bytes = static_cast<size_t>(bytes);
    data_.reset(host->allocate(host->user, data_.get_deleter().bytes, cpu::kScratchAlignment));
  } else {
    data_.reset(allocate(bytes));
  }
#else
  data_.reset(allocate(bytes));
#endif
  if (data_ == nullptr) return false;
  bytes_ = static_cast<size_t>(bytes);
  return true;
}

Status Scratch::reserve(int threads, uint64_t bytes) {
  for (int thread = 0; thread < threads; ++thread) {
    if (!thread_memory_[static_cast<size_t>(thread)].reserve(bytes))
      return Status::out_of_memory(bytes);
  }
  return {};
}

size_t Scratch::bytes() const {
  size_t sum = workspace_.bytes() + transformed_.bytes() + plans_.bytes() + partials_.bytes() +
               gradients_.bytes() + module_.bytes() + transformer_.bytes();
  for (const Buffer& buffer : thread_memory_) sum += buffer.bytes();
  return sum;
}

}  // namespace engine

Context::Context(int threads)
    : threads_(engine::threads_of_context(threads)),
      internals_(std::make_unique<Internals>(threads_)) {}
Context::~Context() = default;
Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&&) noexcept = default;

Context::Internals& Context::Internals::of(Context& context) {
  if (context.internals_ == nullptr) {
    context.internals_ = std::make_unique<Internals>(context.threads_);
  }
  return *context.internals_;
}

std::string Context::last_kernel() const {
  if (internals_ == nullptr || !internals_->last_call) return {};
  return engine::explain(*internals_->last_call);
}

std::string Context::last_linear_kernel() const {
  if (internals_ == nullptr || !internals_->last_linear) return {};
  return engine::explain(*internals_->last_linear);
}

size_t Context::scratch_bytes() const {
  return internals_ == nullptr ? 0 : internals_->scratch.bytes();
}

const char* simd_target() { return cpu::target_name(); }

}  // namespace multihead
