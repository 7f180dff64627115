// Semaphores of the backward: jobs add to the same numbers one after the other, in a fixed order.
//
// A semaphore is a counter: its low bits are the number of jobs that have added their part, and
// BackwardParams::kPartStored may be set beside them. A job waits until the counter has reached its
// own number, adds its part, and signals the next job.
#pragma once

#include <atomic>
#include <cstdint>
#if !defined(__EMSCRIPTEN__)
#include <thread>
#endif

#include "hwy/base.h"
#include "rules/backward_params.h"

namespace multihead::cpu {

inline int32_t parts_in(int32_t count) { return count & ~rules::BackwardParams::kPartStored; }

#if defined(__EMSCRIPTEN__)

// A WebAssembly instance has one thread, which runs the jobs in order: a job never has to wait.
inline int32_t wait_for_semaphore(const std::atomic<int32_t>& semaphore, int32_t number) {
  const int32_t now = semaphore.load(std::memory_order_relaxed);
  HWY_DASSERT(parts_in(now) == number);
  static_cast<void>(number);
  return now;
}

inline void signal_semaphore(std::atomic<int32_t>& semaphore, int32_t next) {
  semaphore.store(next, std::memory_order_relaxed);
}

#else

// If set, it is called before a job waits for a semaphore and after it has signaled it:
// multihead-bench --schedule times the parts of a job.
enum class SemaphoreStep : uint8_t { kWait, kSignal };
using ObserveSemaphore = void (*)(const std::atomic<int32_t>& semaphore, SemaphoreStep step);
extern ObserveSemaphore observe_semaphore;

// Most waits end within microseconds, sooner than a sleeping thread wakes up. The polls take at
// most about a millisecond.
inline constexpr int kSemaphorePolls = 2000;

// Returns the counter once `number` jobs have added their part. After `polls` polls the thread
// sleeps: the job before may need its core, which yield() does not give to a thread of a lower
// priority.
inline int32_t wait_for_semaphore(const std::atomic<int32_t>& semaphore, int32_t number,
                                  int polls = kSemaphorePolls) {
  if (observe_semaphore != nullptr) observe_semaphore(semaphore, SemaphoreStep::kWait);
  int32_t now = semaphore.load(std::memory_order_acquire);
  for (int poll = 0; poll < polls && parts_in(now) != number; ++poll) {
    std::this_thread::yield();
    now = semaphore.load(std::memory_order_acquire);
  }
  while (parts_in(now) != number) {
    semaphore.wait(now, std::memory_order_acquire);
    now = semaphore.load(std::memory_order_acquire);
  }
  return now;
}

// Sets the counter and wakes those that sleep: all of them, because each waits for another number.
// notify_all() calls the system only if some thread sleeps, which libstdc++ reads from a counter of
// its own. The store is sequentially consistent: with a weaker order, the processor could read that
// counter before the counter is stored, and miss a thread that is about to sleep.
inline void signal_semaphore(std::atomic<int32_t>& semaphore, int32_t next) {
  semaphore.store(next);
  semaphore.notify_all();
  if (observe_semaphore != nullptr) observe_semaphore(semaphore, SemaphoreStep::kSignal);
}

#endif

}  // namespace multihead::cpu
