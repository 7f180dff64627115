// Distributes a call's jobs over threads. The build chooses the implementation: threads_openmp.cc,
// threads_std.cc or threads_serial.cc.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

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

// Calls run(state, job, thread) once for every job in [0, jobs), thread in [0, threads).
// Jobs are handed out in order, the next one to whichever thread is free.
void run_jobs(int threads, int64_t jobs, void (*run)(void* state, int64_t job, int thread),
              void* state);

// The same for a callable taking (job, thread).
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
