// Counts the allocations of the whole test program, and makes chosen ones fail.
#pragma once

#include <cstdint>

namespace multihead::testing {

// Number of calls of operator new, in all threads, since the program started.
int64_t allocations();

// While this object exists, requests for memory through operator new and std::aligned_alloc
// (engine::Buffer) are counted from 0. Request number `first` fails; with Fail::kAll, all later
// requests fail, too. Only one object may exist at a time. Does not work in WebAssembly and under
// the thread sanitizer, where memory cannot be made to fail.
class FailingMemory {
 public:
  enum class Fail : uint8_t { kOnce, kAll };
  FailingMemory(int64_t first, Fail fail);
  ~FailingMemory();
  FailingMemory(const FailingMemory&) = delete;
  FailingMemory& operator=(const FailingMemory&) = delete;

  // True if a request has failed.
  bool failed() const;
  // Returns the number of requests after the first failed request.
  int64_t later() const;
};

}  // namespace multihead::testing
