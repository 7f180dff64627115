/// \file
/// Resources that calls share: threads and scratch memory.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "multihead/export.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

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
  ~Context();
  Context(Context&&) noexcept;             ///< Movable; a moved-from context is like a new one.
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
