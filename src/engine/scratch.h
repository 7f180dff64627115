// Scratch memory that a Context keeps between calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "multihead/status.h"

namespace multihead::engine {

// Memory aligned for the kernels, for std::free(): null where it is exhausted, or where `bytes` is
// more than an object can have on this machine.
void* allocate(uint64_t bytes);

// Memory that is null, not an exception, when there is none: a build without
// exceptions (WebAssembly) can report it too.
class Buffer {
 public:
  // Contents are lost when it grows. Returns false where allocate() has none.
  bool reserve(uint64_t bytes);
  void* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> data_;
  size_t bytes_ = 0;
};

class Scratch {
 public:
  explicit Scratch(int threads) : of_thread_(static_cast<size_t>(threads)) {}

  // At least `bytes` for each of the first `threads` threads.
  Status reserve(int threads, uint64_t bytes);
  void* of_thread(int thread) const { return of_thread_[static_cast<size_t>(thread)].data(); }
  size_t bytes() const;

  // One buffer shared by the steps of a module's call, apart from the kernels' scratch.
  Buffer& workspace() { return workspace_; }
  // Queries and keys after QK-norm and RoPE.
  Buffer& transformed() { return transformed_; }
  // Of packed sequences, one each.
  Buffer& plans() { return plans_; }
  // Results of decoding's pieces, until they are merged.
  Buffer& partials() { return partials_; }
  // Of a module that calls what uses workspace(), and of a stack that calls modules.
  Buffer& module() { return module_; }
  Buffer& stack() { return stack_; }

 private:
  std::vector<Buffer> of_thread_;
  Buffer workspace_;
  Buffer transformed_;
  Buffer plans_;
  Buffer partials_;
  Buffer module_;
  Buffer stack_;
};

}  // namespace multihead::engine
