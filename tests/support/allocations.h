// Counts what the whole test program allocates, and lets it fail.
#pragma once

#include <cstdint>

namespace multihead::testing {

// Calls of operator new, of all threads, since the program began.
int64_t allocations();

// While it lives, requests for memory through operator new and std::aligned_alloc (engine::Buffer)
// are counted from 0 on, and number `first` fails, with `all` every later one too. One at a time;
// not in WebAssembly and under the thread sanitizer, where memory does not fail.
class FailingMemory {
 public:
  enum class Fail : uint8_t { kOnce, kAll };
  FailingMemory(int64_t first, Fail fail);
  ~FailingMemory();
  FailingMemory(const FailingMemory&) = delete;
  FailingMemory& operator=(const FailingMemory&) = delete;

  // Whether a request has failed.
  bool failed() const;
  // Requests after the first that failed.
  int64_t later() const;
};

}  // namespace multihead::testing
