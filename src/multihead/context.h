/// \file
/// Resources that calls share: threads and scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "multihead/export.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

/// Functions by which a program gives a Context its own threads and memory, cancels calls, or
/// measures their steps. The functions may not throw, and get `user` as their first argument.
/// WebAssembly has no such contexts.
///
/// ```
/// Context context({.threads = 8, .parallel_for = run_on_pool, .user = &pool});
/// ```
struct ContextOptions {
  /// The most threads that may work on one call; 0: all threads of the machine.
  int threads = 0;

  /// Calls run(state, worker) once for each worker in [0, workers), and returns when all have
  /// returned. The workers may run at once on any threads, the caller's included, in any order, or
  /// one after another: a worker takes jobs until none is left, so the first ones may leave nothing
  /// for the others. A worker that has begun must go on while others run: it may wait for a job of
  /// another worker. Called from the calling thread, never from a worker, and only if a call is
  /// worth 2 workers or more. The workers use the caller's floating-point mode. Null: the library's
  /// own threads.
  void (*parallel_for)(void* user, int workers, void (*run)(void* state, int worker),
                       void* state) = nullptr;

  /// Returns `bytes` bytes whose address is a multiple of `alignment` (a power of 2, at most 128),
  /// or null. The call then reports kMemory before it writes anything. Scratch memory comes from
  /// this function, and the Context's destructor gives it all back. Caches, modules and a few bytes
  /// of bookkeeping use the library's own memory. Called from the calling thread only. Read only if
  /// `deallocate` is also given.
  void* (*allocate)(void* user, size_t bytes, size_t alignment) = nullptr;
  /// Takes back what allocate() returned for the same `bytes` and `alignment`.
  void (*deallocate)(void* user, void* memory, size_t bytes, size_t alignment) = nullptr;

  /// If it returns true, the call ends with a kAborted error. Each thread asks before each job of
  /// attention, its gradients, and matrix products; most jobs take less than a millisecond.
  /// Outputs, and gradients that are added up, are then unspecified; a cache has the tokens of
  /// before, and the next call works. What only changes state (KVCache::append(), the update of
  /// parameters) is not ended. Called by several threads at once; it may read a std::atomic<bool>,
  /// or a clock.
  bool (*cancelled)(void* user) = nullptr;

  /// Called after each step of a call, from the calling thread: its name ("attention", "linear",
  /// "decode"; a literal), begin and end in nanoseconds of std::chrono::steady_clock. Steps do not
  /// overlap. Between them are checks, plans, and work of a few microseconds.
  void (*profile)(void* user, const char* step, int64_t begin, int64_t end) = nullptr;

  void* user = nullptr;  ///< the first argument of these functions
};

/// Owns the scratch memory of every thread. It grows to the largest call seen and is kept, so a
/// repeated call allocates nothing. A Context serves one call at a time; use one for each thread
/// that calls.
class Context {
 public:
  /// `threads`: the most threads that may work on one call; 0 (the default) uses all threads of the
  /// machine. A build without threads (WebAssembly) always uses 1. Results are bit-identical for
  /// any number of threads. All threads of a call use the caller's floating-point mode (rounding,
  /// flushing of subnormal numbers), except with GCC's OpenMP, whose threads keep the mode in which
  /// they were created.
  explicit Context(int threads = 0);
  /// A context that uses its host's threads or memory, can be cancelled, or reports its steps.
  explicit Context(const ContextOptions& options);
  ~Context();
  /// Movable; a moved-from context is like a new one of as many threads, without further options.
  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;  ///< Movable, not copyable.
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// Number of threads that may work on one call.
  int threads() const { return threads_; }
  /// Describes the last call of attention() in words: its kernel, how it was divided into jobs, and
  /// why other kernels could not compute it, among them the AMX kernel (Intel's matrix
  /// instructions). Empty before the first call. Modules and caches report their call of
  /// attention(), packed sequences the call with the most work. attention_scores() and
  /// attention_backward() are not reported.
  std::string last_kernel() const;
  /// Tells in words if the last call of linear() multiplied bf16 numbers on AMX, and if not, why.
  /// Empty before the first call. Products of modules, blocks and transformers with their matrices
  /// are included, also in backward().
  std::string last_linear_kernel() const;
  /// Bytes of scratch memory held now, over all threads.
  size_t scratch_bytes() const;

  struct Internals;  ///< for the library's own use

 private:
  int threads_;
  std::unique_ptr<Internals> internals_;
};

/// Highway's name of the SIMD target that calls use on this CPU ("AVX3_SPR", "AVX2", "WASM", ...).
const char* simd_target();

}  // namespace multihead
MULTIHEAD_PUBLIC_END
