// Distributes a call's jobs over threads. The build selects the implementation: threads_openmp.cc,
// threads_std.cc or threads_serial.cc.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "rules/integers.h"
#include "rules/shared.h"

namespace multihead::engine {

// Number of hardware threads of the machine.
int available_threads();

// The largest number of threads of a Context.
int most_threads();

// Returns how many of `threads` threads to use for `operations` operations. Waking a second thread
// costs up to 6 us; two threads broke even between 2.6e5 and 5e5 operations.
inline int threads_for(double operations, int threads) {
  constexpr double kLeast = 2.5e5;  // per thread
  return static_cast<int>(std::clamp(operations / kLeast, 1.0, static_cast<double>(threads)));
}

// Distance in bytes between variables that several threads write, to avoid false sharing. Two cache
// lines, because processors fetch lines in pairs.
inline constexpr size_t kInterferenceSize = 128;

// Calls run(state, job, thread) once for every job in [0, jobs), thread in [0, threads). Jobs begin
// in order: a free thread takes the next one. So a job may wait for an earlier job.
MULTIHEAD_SHARED void run_jobs(int threads, int64_t jobs,
                               void (*run)(void* state, int64_t job, int thread), void* state);

// If set, run_jobs() calls this instead, in builds with threads. multihead-bench --schedule uses it
// to run the jobs of one thread after another and to time each job.
using RunJobs = void (*)(int threads, int64_t jobs,
                         void (*run)(void* state, int64_t job, int thread), void* state);
extern RunJobs run_jobs_instead;

// Calls job(index, thread) for every index in [0, jobs), see run_jobs().
template <class Job>
void parallel_for(int threads, int64_t jobs, Job&& job) {
  run_jobs(
      threads, jobs,
      [](void* state, int64_t index, int thread) {
        (*static_cast<std::remove_reference_t<Job>*>(state))(index, thread);
      },
      &job);
}

// Calls run(first, end) for ranges that together are [0, count) and take `operations`, on up to
// `threads` threads. Each thread gets several ranges, because threads rarely start together.
template <class Run>
void over_ranges(double operations, int64_t count, int threads, Run&& run) {
  if (count == 0) return;
  constexpr int64_t kRangesPerThread = 8;
  const int team = threads_for(operations, threads);
  const int64_t ranges = team == 1 ? 1 : team * kRangesPerThread;
  const int64_t range = rules::ceil_div(count, ranges);
  parallel_for(team, rules::ceil_div(count, range),
               [&](int64_t job, int) { run(job * range, std::min(count, (job + 1) * range)); });
}

}  // namespace multihead::engine
