// Runs ranks as threads of one process, instead of MPI. Messages can be delayed, and ranks can stop
// sending.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <mutex>
#include <vector>

#include "distributed/transport.h"
#include "multihead/distributed.h"

namespace multihead::testing {

struct ThreadRanksOptions {
  std::chrono::microseconds delay{0};  // time from the start of a message to its arrival
  // Messages of rank silent_rank are lost from number silent_after on.
  int silent_rank = -1;
  int64_t silent_after = std::numeric_limits<int64_t>::max();
};

// The messages of all ranks.
class Mailboxes {
 public:
  using Clock = std::chrono::steady_clock;

  Mailboxes(int size, const ThreadRanksOptions& options)
      : options_(options),
        boxes_(static_cast<size_t>(size * size)),
        sent_(static_cast<size_t>(size)),
        left_(static_cast<size_t>(size)),
        size_(size) {}

  void put(int from, int to, const void* data, uint64_t bytes);
  enum class Taken : uint8_t { kNothing, kMessage, kWrongSize, kGone };
  // kGone: no further message will come, because the sending rank has left.
  Taken take(int from, int to, void* data, uint64_t bytes);
  void set_left(int rank, bool left);

 private:
  struct Message {
    std::vector<std::byte> bytes;
    Clock::time_point due;
  };
  std::deque<Message>& box(int from, int to) {
    return boxes_[static_cast<size_t>(from * size_ + to)];
  }

  const ThreadRanksOptions options_;
  std::mutex mutex_;
  std::vector<std::deque<Message>> boxes_;
  std::vector<int64_t> sent_;
  std::vector<bool> left_;
  const int size_;
};

class ThreadTransport : public distributed::Transport {
 public:
  ThreadTransport(int rank, int size, Mailboxes& mailboxes)
      : Transport(rank, size), mailboxes_(mailboxes), later_(static_cast<size_t>(size)) {}

  State poll() override;

  // After a rank has left, waiting for it fails at once, not after the time limit.
  void set_left(bool left) { mailboxes_.set_left(rank(), left); }

  // Returns the number of batches of transfers that a poll found unfinished before the wait.
  size_t overlapped_waits() const { return overlapped_; }

 protected:
  void start_send(int to, const void* data, uint64_t bytes) override {
    mailboxes_.put(rank(), to, data, bytes);
  }
  void start_receive(int from, void* data, uint64_t bytes) override {
    pending_.push_back({from, data, bytes});
    is_new_ = true;
  }

 private:
  struct Pending {
    int from;
    void* data;
    uint64_t bytes;
  };
  Mailboxes& mailboxes_;
  std::deque<Pending> pending_;
  bool failed_ = false;
  bool is_new_ = false;
  bool is_overlapped_ = false;  // true if the current batch is counted
  size_t overlapped_ = 0;
  // Ranks whose next message has not arrived. A member, so that poll() allocates nothing.
  std::vector<bool> later_;
};

// Runs `rank` once per rank, each in its own thread with its own communicator.
void in_ranks(int size, const ThreadRanksOptions& options,
              const std::function<void(distributed::Communicator&)>& rank);

}  // namespace multihead::testing
