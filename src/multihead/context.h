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
  /// threads: how many may work on one call; 0 (the default) uses as many as the machine has. A
  /// build without threads (WebAssembly) always uses 1. The number of threads does not change a bit
  /// of the results.
  explicit Context(int threads = 0);
  ~Context();
  Context(Context&&) noexcept;             ///< Movable; what was moved from is like new.
  Context& operator=(Context&&) noexcept;  ///< Movable, not copyable.
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// How many threads may work on one call.
  int threads() const { return threads_; }
  /// Which kernel computed the last call of attention(), how the call was cut, and why other
  /// kernels did not serve it, among them the one for AMX (Intel's matrix instructions), in words;
  /// empty before the first call. Modules and caches count with their calls of attention(), packed
  /// sequences with the one of most work; attention_scores() and attention_backward() do not count.
  std::string last_kernel() const;
  /// Whether the last call of linear() multiplied numbers of bf16 on AMX, and if not, why, in
  /// words; empty before the first call. The products of modules, blocks and transformers with
  /// their matrices count, those of their backward() too.
  std::string last_linear_kernel() const;
  /// Bytes of scratch held now, over all threads.
  size_t scratch_bytes() const;

  struct Internals;  ///< the library's own

 private:
  int threads_;
  std::unique_ptr<Internals> internals_;
};

/// The SIMD target that calls run on here, by Highway's name ("AVX3_SPR", "AVX2", "WASM", ...).
const char* simd_target();

}  // namespace multihead
MULTIHEAD_PUBLIC_END
