// Scratch memory that a Context keeps between calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/runtime/kernel_choice.h"
#include "multihead/context.h"
#include "multihead/status.h"
#include "rules/arena.h"
#include "rules/shared.h"

namespace multihead::engine {

// Allocates memory aligned for the kernels; free it with release(). Returns null if memory is
// exhausted, or if `bytes` exceeds the largest possible object of this machine.
void* allocate(uint64_t bytes);
MULTIHEAD_SHARED void release(void* memory);

// Memory that is read at the speed of memory is allocated in blocks of this size, because Linux
// gives pages of 2 MB to large blocks only. 0: each by itself.
#if defined(__linux__)
inline constexpr int64_t kLargePages = int64_t{64} << 20;
#else
inline constexpr int64_t kLargePages = 0;
#endif

// Gives the block of a Buffer back.
struct Free {
#if defined(__EMSCRIPTEN__)
  void operator()(void* memory) const { release(memory); }
#else
  void operator()(void* memory) const {
    if (host == nullptr) return release(memory);
    host->deallocate(host->user, memory, bytes, rules::Arena::kAlignment);
  }
  const ContextOptions* host = nullptr;
  size_t bytes = 0;
#endif
};

// A buffer whose reserve() returns false if memory is exhausted. It does not throw, so builds
// without exceptions (WebAssembly) can report the error, too.
class Buffer {
 public:
  Buffer() = default;
#if !defined(__EMSCRIPTEN__)
  // Takes memory from the host's allocator, if it is not null.
  explicit Buffer(const ContextOptions* host) : data_(nullptr, Free{host, 0}) {}
#endif
  // Growing loses the contents. Returns false if memory is exhausted.
  MULTIHEAD_SHARED bool reserve(uint64_t bytes);
  void* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  std::unique_ptr<void, Free> data_;
  size_t bytes_ = 0;
};

class Team;

class Scratch {
 public:
  explicit Scratch(int threads) : thread_memory_(static_cast<size_t>(threads)) {}
#if !defined(__EMSCRIPTEN__)
  // With memory of a host's allocator.
  Scratch(int threads, const ContextOptions& host) : Scratch(threads) {
    for (Buffer& buffer : thread_memory_) buffer = Buffer(&host);
    for (Buffer* buffer :
         {&workspace_, &transformed_, &plans_, &partials_, &gradients_, &module_, &transformer_}) {
      *buffer = Buffer(&host);
    }
  }
#endif

  // Reserves at least `bytes` for each of the first `threads` threads.
  MULTIHEAD_SHARED Status reserve(int threads, uint64_t bytes);
  void* thread_memory(int thread) const {
    return thread_memory_[static_cast<size_t>(thread)].data();
  }
  size_t bytes() const;

  // Each buffer belongs to one level of nested calls: a transformer calls modules, which call
  // latent attention, which calls attention().
  Buffer& transformed() { return transformed_; }  // queries and keys after QK-norm and RoPE
  Buffer& plans() { return plans_; }              // one per varlen sequence
  // Results of decode splits until they are merged; partial sums of gain gradients.
  Buffer& partials() { return partials_; }
  Buffer& gradients() { return gradients_; }  // shared by the jobs of a backward call
  Buffer& workspace() { return workspace_; }  // for latent attention
  Buffer& module() { return module_; }
  Buffer& transformer() { return transformer_; }

 private:
  std::vector<Buffer> thread_memory_;
  Buffer workspace_;
  Buffer transformed_;
  Buffer plans_;
  Buffer partials_;
  Buffer gradients_;
  Buffer module_;
  Buffer transformer_;
};

}  // namespace multihead::engine

// The members of a Context, hidden from the public header.
struct multihead::Context::Internals {
#if !defined(__EMSCRIPTEN__)
  // nullopt if the library uses its own threads and memory
  std::optional<const ContextOptions> host;
#endif
  engine::Scratch scratch;
  engine::Team* team = nullptr;
  std::optional<engine::KernelChoice> last_call;
  std::optional<engine::LinearChoice> last_linear;

  explicit Internals(int threads) : scratch(threads) {}
#if !defined(__EMSCRIPTEN__)
  Internals(int threads, const ContextOptions& options);
  static const ContextOptions* host_of(const Context& context) {
    const Internals* const internals = context.internals_.get();
    return internals == nullptr || !internals->host ? nullptr : &*internals->host;
  }
#endif
  // Returns the internals; allocates new ones if `context` was moved from.
  static Internals& of(Context& context);
  static engine::Scratch& scratch_of(Context& context) { return of(context).scratch; }
  static std::optional<engine::KernelChoice>& last_call_of(Context& context) {
    return of(context).last_call;
  }
  static std::optional<engine::LinearChoice>& last_linear_of(Context& context) {
    return of(context).last_linear;
  }
  static engine::Team*& team_of(Context& context) { return of(context).team; }
};

namespace multihead::engine {

// Plan of the last call of attention().
inline std::optional<KernelChoice>& last_call_of(Context& context) {
  return Context::Internals::last_call_of(context);
}

// Kernel of the last product with a matrix of parameters.
inline std::optional<LinearChoice>& last_linear_of(Context& context) {
  return Context::Internals::last_linear_of(context);
}

inline Scratch& scratch_of(Context& context) { return Context::Internals::scratch_of(context); }

}  // namespace multihead::engine
