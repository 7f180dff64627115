// Public calls report exhausted memory as a Status, also where the standard library throws.
#pragma once

#include <utility>

#if defined(__cpp_exceptions)
#include <new>
#include <stdexcept>
#endif

#include "multihead/status.h"

namespace multihead::engine {

// Runs `work`, which returns a Status; an allocation that fails in it is kMemory. `work` must leave
// every object as it was when it throws. A build without exceptions (WebAssembly) cannot get here
// with a failed allocation: operator new ends the program.
template <class Work>
Status memory_guard(Work&& work) {
#if defined(__cpp_exceptions)
  try {
    return std::forward<Work>(work)();
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory();
  } catch (const std::length_error&) {  // a container asked for more than its max_size()
    return Status::out_of_memory();
  }
#else
  return std::forward<Work>(work)();
#endif
}

}  // namespace multihead::engine
