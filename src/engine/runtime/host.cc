// Contexts that run on their host's threads and memory, can be cancelled, or report their steps.
// Not in WebAssembly, whose modules have one thread and one heap.
#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "engine/runtime/jobs.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/threads.h"
#include "multihead/context.h"

namespace multihead {
namespace engine {
namespace {

// The jobs of one call of run_jobs(), drawn in order.
class Queue {
 public:
  Queue(const Jobs& jobs, const ContextOptions& host) : jobs_(jobs), host_(host) {
    std::fegetenv(&mode_);
  }

  // Runs the next job; returns false if there is none, or if the call is cancelled. A job that was
  // drawn runs in any case: a later one may be waiting for it.
  bool run_next(int thread) {
    if (next_ >= jobs_.count || is_cancelled()) return false;
    const int64_t job = next_++;
    if (job >= jobs_.count) return false;
    jobs_.run(jobs_.state, job, thread);
    return true;
  }

  // Runs jobs on a thread of the host, with the caller's rounding and flushing of subnormal
  // numbers.
  void work(int thread) noexcept {
    std::fenv_t own;
    std::fegetenv(&own);
    std::fesetenv(&mode_);
    while (run_next(thread)) {
    }
    std::fesetenv(&own);
  }

  bool has_run_all() const { return next_ >= jobs_.count; }

 private:
  bool is_cancelled() {
    if (!jobs_.can_end || host_.cancelled == nullptr) return false;
    if (!is_cancelled_ && host_.cancelled(host_.user)) is_cancelled_ = true;
    return is_cancelled_;
  }

  const Jobs& jobs_;
  const ContextOptions& host_;
  std::fenv_t mode_ = {};
  std::atomic<bool> is_cancelled_ = false;
  // Written by all threads, so it has its own cache line.
  alignas(kInterferenceSize) std::atomic<int64_t> next_ = 0;
};

bool run_on_host(const ContextOptions& host, const Jobs& jobs) {
  const auto workers = static_cast<int>(std::min<int64_t>(jobs.threads, jobs.count));
  Queue queue(jobs, host);
  if (workers > 1 && host.parallel_for != nullptr) {
    host.parallel_for(
        host.user, workers,
        [](void* state, int worker) { static_cast<Queue*>(state)->work(worker); }, &queue);
  } else if (workers > 1) {
    // Each of these jobs draws one from the queue.
    run_jobs(
        workers, jobs.count,
        [](void* state, int64_t, int thread) { static_cast<Queue*>(state)->run_next(thread); },
        &queue);
  }
  while (queue.run_next(0)) {  // jobs are left if the host has called no worker
  }
  return queue.has_run_all();
}

int64_t now() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

bool run_jobs(const Context& context, const Jobs& jobs) {
  const ContextOptions* const host = Context::Internals::host_of(context);
  if (host == nullptr) {
    run_jobs(jobs.threads, jobs.count, jobs.run, jobs.state);
    return true;
  }
  if (host->profile == nullptr) return run_on_host(*host, jobs);
  const int64_t begin = now();
  const bool has_run_all = run_on_host(*host, jobs);
  host->profile(host->user, jobs.step, begin, now());
  return has_run_all;
}

Status call_cancelled() { return {StatusCode::kAborted, "context", "to be continued", "aborted"}; }

}  // namespace engine

namespace {

// False for options that only state a number of threads.
bool has_host(const ContextOptions& options) {
  return options.parallel_for != nullptr || options.allocate != nullptr ||
         options.cancelled != nullptr || options.profile != nullptr;
}

}  // namespace

Context::Internals::Internals(int threads, const ContextOptions& options)
    : host(has_host(options) ? std::optional<const ContextOptions>(options) : std::nullopt),
      scratch(options.allocate == nullptr || options.deallocate == nullptr
                  ? engine::Scratch(threads)
                  : engine::Scratch(threads, *host)) {}

Context::Context(const ContextOptions& options)
    : threads_(engine::threads_of_context(options.threads)),
      internals_(std::make_unique<Internals>(threads_, options)) {}

}  // namespace multihead
