// Threads of the standard library. Used if the compiler has no OpenMP (Apple's), and under the
// thread sanitizer, which cannot see into OpenMP's run-time library.
//
// Each calling thread has its own pool, as in OpenMP's libraries: threads are created when a call
// first needs them, sleep between calls, and end with the calling thread. Callers never wait for
// each other. The second thread starts to work after 22 us if it sleeps, after 57 us if it
// has to be created.
#if !defined(_WIN32)
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "engine/runtime/threads.h"

namespace multihead::engine {
namespace {

using Run = void (*)(void* state, int64_t job, int thread);

#if defined(_WIN32)
int process_id() { return 0; }  // there is no fork()
// Destructors of thread_local objects run under the loader's lock, which every thread takes to end:
// a thread that joined others there would wait forever.
constexpr bool kJoins = false;
#else
int process_id() { return getpid(); }
constexpr bool kJoins = true;
#endif

// True while this thread runs a job; nested calls then use no further threads.
thread_local bool runs_job = false;

class Pool {
 public:
  Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Ends the threads and frees the pool. Without joining, the last of them frees it.
  void end() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) kJoins ? thread.join() : thread.detach();
    leave();
  }

  void call(int team, int64_t jobs, Run run, void* state) {
    grow(static_cast<size_t>(team) - 1);
    const int helpers = std::min(team - 1, static_cast<int>(threads_.size()));
    {
      const std::lock_guard lock(mutex_);
      jobs_ = jobs;
      run_ = run;
      state_ = state;
      std::fegetenv(&mode_);
      next_ = 0;
      open_ = helpers;
    }
    for (int helper = 0; helper < helpers; ++helper) wake_.notify_one();
    work(0);
    // Threads that have not woken up yet are not waited for.
    std::unique_lock lock(mutex_);
    open_ = 0;
    done_.wait(lock, [this] { return busy_ == 0; });
  }

  // False in a child process: after fork() only the forking thread exists.
  bool is_of_this_process() const { return process_ == process_id(); }

 private:
  // If no thread can be created, the call continues with the existing ones.
  void grow(size_t wanted) {
    while (threads_.size() < wanted) {
      ++users_;
      try {
        threads_.emplace_back([this] {
          help();
          leave();
        });
      } catch (...) {
        --users_;
        return;
      }
    }
  }

  void leave() {
    if (--users_ == 0) delete this;
  }

  void help() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stopping_ || open_ > 0; });
      if (stopping_) return;
      const int thread = open_--;
      ++busy_;
      lock.unlock();
      std::fesetenv(&mode_);
      work(thread);
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  // A job that throws ends the process, as with OpenMP: other threads may be using the same state.
  void work(int thread) noexcept {
    runs_job = true;
    for (int64_t job = next_++; job < jobs_; job = next_++) run_(state_, job, thread);
    runs_job = false;
  }

  std::vector<std::thread> threads_;
  std::atomic<int> users_ = 1;  // the calling thread and its helpers
  const int process_ = process_id();
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  bool stopping_ = false;
  int open_ = 0;  // number of threads that may still join the call; also the next one's number
  int busy_ = 0;  // number of threads that have joined and not finished
  // The current call; not written while any thread works on it.
  int64_t jobs_ = 0;
  Run run_ = nullptr;
  void* state_ = nullptr;
  // The caller's rounding and flushing of subnormal numbers: with other modes in other threads, the
  // bits of a result would depend on the number of threads.
  std::fenv_t mode_ = {};
  // Written by all threads, so it has its own cache line.
  alignas(kInterferenceSize) std::atomic<int64_t> next_ = 0;
};

// Returns the calling thread's pool. Returns null if memory is exhausted, or if the thread is
// ending: destructors of static objects may still make calls then.
Pool* pool_of_this_thread() {
  thread_local bool has_ended = false;
  struct Owner {
    Pool* pool = nullptr;
    ~Owner() {
      leave_to_parent();
      if (pool != nullptr) pool->end();
      has_ended = true;
    }
    // A pool inherited by fork() has threads that do not exist here and cannot be joined.
    void leave_to_parent() {
      if (pool != nullptr && !pool->is_of_this_process()) pool = nullptr;
    }
  };
  thread_local Owner owner;
  if (has_ended) return nullptr;
  owner.leave_to_parent();
  if (owner.pool == nullptr) owner.pool = new (std::nothrow) Pool;
  return owner.pool;
}

}  // namespace

int available_threads() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void run_jobs(int threads, int64_t jobs, Run run, void* state) {
  if (run_jobs_instead != nullptr) return run_jobs_instead(threads, jobs, run, state);
  const auto team = static_cast<int>(std::min<int64_t>(threads, jobs));
  Pool* const pool = team > 1 && !runs_job ? pool_of_this_thread() : nullptr;
  if (pool != nullptr) return pool->call(team, jobs, run, state);
  for (int64_t job = 0; job < jobs; ++job) run(state, job, 0);
}

}  // namespace multihead::engine
