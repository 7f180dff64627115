// What calls share: threads and scratch memory.
#pragma once

#include <cstddef>
#include <memory>

#include "multihead/export.h"

namespace multihead::engine {
class Scratch;
}

namespace MULTIHEAD_PUBLIC multihead {

// Owns the scratch memory of every thread. It grows to the largest call seen
// and is kept, so a repeated call allocates nothing.
// A Context serves one call at a time; use one for each thread that calls.
class Context {
 public:
  // threads: how many may work on one call; 0 (the default) takes what the
  // machine offers. A build without threads (WebAssembly) always uses 1.
  // Results are the same bits whatever the number.
  explicit Context(int threads = 0);
  ~Context();
  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  int threads() const { return threads_; }
  // Bytes of scratch held now, over all threads.
  size_t scratch_bytes() const;
  engine::Scratch& scratch() { return *scratch_; }

 private:
  int threads_;
  std::unique_ptr<engine::Scratch> scratch_;
};

// The SIMD target that calls run on here, by Highway's name ("AVX3_SPR", "AVX2", "WASM", ...).
const char* simd_target();

}  // namespace multihead
