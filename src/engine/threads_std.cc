// Threads of the standard library, where the compiler has no OpenMP (Apple's), and under the
// thread sanitizer, which cannot see into OpenMP's run-time library.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "engine/threads.h"

namespace multihead::engine {

int available_threads() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int most_threads() { return 1024; }

void run_jobs(int threads, int64_t jobs, void (*run)(void* state, int64_t job, int thread),
              void* state) {
  const auto team = static_cast<int>(std::min<int64_t>(threads, jobs));
  std::atomic<int64_t> next{0};
  const auto work = [&](int thread) {
    for (int64_t job = next++; job < jobs; job = next++) run(state, job, thread);
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < team; ++thread) others.emplace_back(work, thread);
  work(0);
  for (std::thread& other : others) other.join();
}

}  // namespace multihead::engine
