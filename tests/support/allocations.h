// Counts the allocations of the whole test program, and makes chosen ones fail.
#pragma once

#include <cstdint>

namespace multihead::testing {

// Number of calls of operator new, in all threads, since the program started.
int64_t allocations();

// While it exists, requests for memory through operator new and std::aligned_alloc (engine::Buffer)
// are counted from 0 on. Request number `first` fails; with Fail::kAll, every later one too. Only
// one may exist at a time. Not in WebAssembly and under the thread sanitizer, where memory cannot
// be made to fail.
class FailingMemory {
 public:
  enum class Fail : uint8_t { kOnce, kAll };
  FailingMemory(int64_t first, Fail fail);
  ~FailingMemory();
  FailingMemory(const FailingMemory&) = delete;
  FailingMemory& operator=(const FailingMemory&) = delete;

  // Whether a request has failed.
  bool failed() const;
  // Number of requests after the first one that failed.
  int64_t later() const;
};

}  // namespace multihead::testing
