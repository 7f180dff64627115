// Distributes a call's jobs over threads. The build chooses the implementation: threads_openmp.cc,
// threads_std.cc or threads_serial.cc.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "rules/shared.h"

namespace multihead::engine {

// Hardware threads of the machine.
int available_threads();

// The largest number of threads of a Context.
int most_threads();

// How many of `threads` are worth waking for so many operations: a second costs up to 6 us; two
// broke even between 2.6e5 and 5e5 operations.
inline int threads_for(double operations, int threads) {
  constexpr double kLeast = 2.5e5;  // for each
  return static_cast<int>(std::clamp(operations / kLeast, 1.0, static_cast<double>(threads)));
}

// Numbers that several threads write lie this many bytes apart, so that they do not take a cache
// line from each other: two lines, because processors fetch pairs of them.
inline constexpr size_t kCacheLine = 128;

// Calls run(state, job, thread) once for every job in [0, jobs), thread in [0, threads).
// Jobs begin in order, the next one on whichever thread is free: a job may wait for an earlier one.
MULTIHEAD_SHARED void run_jobs(int threads, int64_t jobs,
                               void (*run)(void* state, int64_t job, int thread), void* state);

// If set, run_jobs() calls this instead, in builds that have threads: multihead-bench --schedule
// runs the jobs of one thread after the other and times each.
using RunJobs = void (*)(int threads, int64_t jobs,
                         void (*run)(void* state, int64_t job, int thread), void* state);
extern RunJobs run_jobs_instead;

// The same as run_jobs() for a callable taking (job, thread).
template <class Job>
void parallel_for(int threads, int64_t jobs, Job&& job) {
  run_jobs(
      threads, jobs,
      [](void* state, int64_t index, int thread) {
        (*static_cast<std::remove_reference_t<Job>*>(state))(index, thread);
      },
      &job);
}

}  // namespace multihead::engine
