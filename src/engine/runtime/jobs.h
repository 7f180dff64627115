// Runs the jobs of a call on the threads of its Context: the library's own, or those that its
// ContextOptions give.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/runtime/threads.h"
#include "multihead/context.h"
#include "multihead/status.h"
#include "rules/integers.h"
#include "rules/shared.h"

namespace multihead::engine {

struct Jobs {
  const char* step;  // name in a profile
  int threads;       // the most threads to use
  int64_t count;
  void (*run)(void* state, int64_t job, int thread);
  void* state;
  // True if ContextOptions::cancelled may end the jobs. Their results are then incomplete, so no
  // state may depend on them.
  bool can_end = false;
};

// Calls run(state, job, thread) once for every job in [0, count), thread in [0, threads), as
// run_jobs() of threads.h does. Returns false if the call is cancelled: the jobs that had not begun
// did not run.
#if defined(__EMSCRIPTEN__)  // has no hosts
inline bool run_jobs(const Context& /*context*/, const Jobs& jobs) {
  run_jobs(jobs.threads, jobs.count, jobs.run, jobs.state);
  return true;
}
inline Status call_cancelled() { return {}; }
#else
MULTIHEAD_SHARED bool run_jobs(const Context& context, const Jobs& jobs);
Status call_cancelled();  // the error of such a call
#endif

template <class Job>
Jobs jobs_of(const char* step, int threads, int64_t count, Job& job) {
  const auto run = [](void* state, int64_t index, int thread) {
    (*static_cast<Job*>(state))(index, thread);
  };
  return {step, threads, count, run, &job};
}

// Calls job(index, thread) for every index in [0, count).
template <class Job>
void parallel_for(const Context& context, const char* step, int threads, int64_t count, Job&& job) {
  run_jobs(context, jobs_of(step, threads, count, job));
}

// Calls job(index, thread) for every index in [0, count), unless ContextOptions::cancelled ends the
// call. Errors: kAborted.
template <class Job>
[[nodiscard]] Status parallel_for_or_abort(const Context& context, const char* step, int threads,
                                           int64_t count, Job&& job) {
  Jobs jobs = jobs_of(step, threads, count, job);
  jobs.can_end = true;
  return run_jobs(context, jobs) ? Status() : call_cancelled();
}

// Calls run(first, end) for ranges that together are [0, count) and take `operations`. Each thread
// gets several ranges, because threads rarely start together. Without a context the calling thread
// runs all.
template <class Run>
void over_ranges(const Context* context, const char* step, double operations, int64_t count,
                 Run&& run) {
  if (count == 0) return;
  if (context == nullptr) return run(int64_t{0}, count);
  constexpr int64_t kRangesPerThread = 8;
  const int team = threads_for(operations, context->threads());
  const int64_t ranges = team == 1 ? 1 : team * kRangesPerThread;
  const int64_t range = rules::ceil_div(count, ranges);
  parallel_for(*context, step, team, rules::ceil_div(count, range),
               [&](int64_t job, int) { run(job * range, std::min(count, (job + 1) * range)); });
}

}  // namespace multihead::engine
