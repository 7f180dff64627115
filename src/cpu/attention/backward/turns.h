// How jobs of the backward add to the same numbers one after the other, in a fixed order.
//
// A turn is a counter: the low bits say how many jobs have added their part, and
// BackwardParams::kPartStored may be set beside them. A job waits until the counter has reached its
// own number, adds its part, and passes the turn.
#pragma once

#include <atomic>
#include <cstdint>
#if !defined(__EMSCRIPTEN__)
#include <thread>
#endif

#include "hwy/base.h"
#include "rules/backward_params.h"

namespace multihead::cpu {

inline int32_t parts_of(int32_t turn) { return turn & ~rules::BackwardParams::kPartStored; }

#if defined(__EMSCRIPTEN__)

// A WebAssembly instance has one thread, which runs the jobs in order: it is always its own turn.
inline int32_t wait_for_turn(const std::atomic<int32_t>& turn, int32_t number) {
  const int32_t now = turn.load(std::memory_order_relaxed);
  HWY_DASSERT(parts_of(now) == number);
  static_cast<void>(number);
  return now;
}

inline void pass_turn(std::atomic<int32_t>& turn, int32_t next) {
  turn.store(next, std::memory_order_relaxed);
}

#else

// If set, it is called before a job waits for its turn and after it has passed it on:
// multihead-bench --schedule times the parts of a job.
enum class TurnStep : uint8_t { kWait, kPass };
using ObserveTurn = void (*)(const std::atomic<int32_t>& turn, TurnStep step);
extern ObserveTurn observe_turn;

// Most turns come within microseconds, sooner than a sleeping thread wakes up. The polls take at
// most about a millisecond.
inline constexpr int kTurnPolls = 2000;

// Returns the counter once `number` jobs have added their part. After `polls` polls the thread
// sleeps: the job before may need its core, which yield() does not give to a thread of a lower
// priority.
inline int32_t wait_for_turn(const std::atomic<int32_t>& turn, int32_t number,
                             int polls = kTurnPolls) {
  if (observe_turn != nullptr) observe_turn(turn, TurnStep::kWait);
  int32_t now = turn.load(std::memory_order_acquire);
  for (int poll = 0; poll < polls && parts_of(now) != number; ++poll) {
    std::this_thread::yield();
    now = turn.load(std::memory_order_acquire);
  }
  while (parts_of(now) != number) {
    turn.wait(now, std::memory_order_acquire);
    now = turn.load(std::memory_order_acquire);
  }
  return now;
}

// Sets the counter and wakes those that sleep: all of them, because each waits for another number.
// notify_all() calls the system only if some thread sleeps, which libstdc++ reads from a counter of
// its own. The store is sequentially consistent: with a weaker order, the processor could read that
// counter before the turn is stored, and miss a thread that is about to sleep.
inline void pass_turn(std::atomic<int32_t>& turn, int32_t next) {
  turn.store(next);
  turn.notify_all();
  if (observe_turn != nullptr) observe_turn(turn, TurnStep::kPass);
}

#endif

}  // namespace multihead::cpu
