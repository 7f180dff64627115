// Public calls report exhausted memory as a Status, even if the standard library throws.
#pragma once

#include <utility>

#if defined(__cpp_exceptions)
#include <new>
#include <stdexcept>
#endif

#include "multihead/status.h"

namespace multihead::engine {

// Runs `work`, which returns a Status; a failed allocation in it gives kMemory. If `work` throws,
// it must have left every object unchanged. In a build without exceptions (WebAssembly) a failed
// operator new ends the program before this.
template <class Work>
Status memory_guard(Work&& work) {
#if defined(__cpp_exceptions)
  try {
    return std::forward<Work>(work)();
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory();
  } catch (const std::length_error&) {  // a container exceeded its max_size()
    return Status::out_of_memory();
  }
#else
  return std::forward<Work>(work)();
#endif
}

}  // namespace multihead::engine
