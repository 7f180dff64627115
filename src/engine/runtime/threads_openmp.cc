#include <omp.h>

#if (defined(__unix__) || defined(__APPLE__)) && !defined(__clang__)
#include <pthread.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "engine/runtime/threads.h"
#include "hwy/base.h"

namespace multihead::engine {
namespace {

#if (defined(__unix__) || defined(__APPLE__)) && !defined(__clang__)
std::atomic<bool> is_forked_after_calls = false;

// GCC's OpenMP keeps its threads for the next region. After fork(), the child process has none of
// these threads, but its regions would wait for them forever. LLVM's OpenMP starts new ones.
bool has_lost_its_threads() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { is_forked_after_calls = true; });
  static_cast<void>(registered);
  return is_forked_after_calls;
}
#else
bool has_lost_its_threads() { return false; }
#endif

using Run = void (*)(void* state, int64_t job, int thread);

// Not inlined: a function with a region asks OpenMP for its thread when it begins.
HWY_NOINLINE void run_on_team(int team, int64_t jobs, Run run, void* state) {
  // schedule(dynamic) would not begin jobs in order: LLVM's library first gives each thread a
  // range. The counter has its own cache line.
  struct alignas(kInterferenceSize) {
    std::atomic<int64_t> next = 0;
  } counter;
#pragma omp parallel num_threads(team)
  {
    const int thread = omp_get_thread_num();
    for (int64_t job = counter.next++; job < jobs; job = counter.next++) run(state, job, thread);
  }
}

}  // namespace

int available_threads() { return std::max(1, omp_get_max_threads()); }

void run_jobs(int threads, int64_t jobs, Run run, void* state) {
  if (run_jobs_instead != nullptr) return run_jobs_instead(threads, jobs, run, state);
  const auto team = static_cast<int>(std::min<int64_t>(threads, jobs));
  // OpenMP's entry costs a microsecond even with one thread, which shows in a tiny call.
  if (team > 1 && !has_lost_its_threads()) return run_on_team(team, jobs, run, state);
  for (int64_t job = 0; job < jobs; ++job) run(state, job, 0);
}

}  // namespace multihead::engine
