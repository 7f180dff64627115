// Launches that are kept instead of enqueued, see PreparedCalls.
#pragma once

#include <functional>
#include <vector>

namespace multihead::cuda {

// Each enqueues a launch on a stream, and returns CUDA's error code, or 0.
using RecordedLaunches = std::vector<std::function<int(void*)>>;

// Where this thread keeps launches; null: it enqueues them.
inline RecordedLaunches*& recorded_launches() {
  static thread_local RecordedLaunches* recorded = nullptr;
  return recorded;
}

}  // namespace multihead::cuda
