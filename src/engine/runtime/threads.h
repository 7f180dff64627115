// Distributes a call's jobs over threads. The build selects the implementation: threads_openmp.cc,
// threads_std.cc or threads_serial.cc.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace multihead::engine {

// Number of hardware threads of the machine.
int available_threads();

// The largest number of threads of a Context.
#if defined(__EMSCRIPTEN__)
inline constexpr int kMostThreads = 1;
#else
inline constexpr int kMostThreads = 1024;
#endif

// The threads of a Context for which `asked` were asked; 0: all.
inline int threads_of_context(int asked) {
  return std::clamp(asked > 0 ? asked : available_threads(), 1, kMostThreads);
}

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
// in order: a free thread takes the next one. So a job may wait for an earlier job. Calls use
// parallel_for() of jobs.h instead.
void run_jobs(int threads, int64_t jobs, void (*run)(void* state, int64_t job, int thread),
              void* state);

// If set, run_jobs() calls this instead, in builds with threads. multihead-bench --schedule uses it
// to run the jobs of one thread after another and to time each job.
using RunJobs = void (*)(int threads, int64_t jobs,
                         void (*run)(void* state, int64_t job, int thread), void* state);
inline RunJobs run_jobs_instead = nullptr;

}  // namespace multihead::engine
