// Vector clocks: they tell which accesses of one thread are ordered before the current point of
// another.
//
// Lamport, "Time, clocks, and the ordering of events", 1978; race detection with vector clocks as
// in FastTrack (Flanagan and Freund, PLDI 2009).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace multihead::cuda::emulator {

// For each actor of a block: all its accesses up to this time are ordered before the clock's owner.
// An actor is a thread, or the asynchronous engine.
class Clock {
 public:
  Clock() = default;
  explicit Clock(int actors) : times_(static_cast<size_t>(actors)) {}

  uint32_t of(int actor) const {
    const auto index = static_cast<size_t>(actor);
    return index < times_.size() ? times_[index] : 0;
  }
  void set(int actor, uint32_t time) { times_[static_cast<size_t>(actor)] = time; }
  // Afterwards, all accesses that are ordered before `other` are also ordered before this.
  void join(const Clock& other) {
    if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
    for (size_t i = 0; i < other.times_.size(); ++i) {
      times_[i] = std::max(times_[i], other.times_[i]);
    }
  }
  void clear() { std::fill(times_.begin(), times_.end(), 0U); }

 private:
  std::vector<uint32_t> times_;
};

}  // namespace multihead::cuda::emulator
