// How a call's jobs reach the threads. The build chooses the source: threads_openmp.cc,
// threads_std.cc or threads_serial.cc.
#pragma once

#include <cstdint>
#include <type_traits>

namespace multihead::engine {

// Hardware threads of the machine.
int available_threads();

// The most that a Context may ask for.
int most_threads();

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
