#include "support/thread_ranks.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "distributed/communicator.h"

namespace multihead::testing {

void Mailboxes::put(int from, int to, const void* data, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const int64_t number = sent_[static_cast<size_t>(from)]++;
  if (from == options_.silent_rank && number >= options_.silent_after) return;
  const auto* const first = static_cast<const std::byte*>(data);
  box(from, to).push_back({{first, first + bytes}, Clock::now() + options_.delay});
}

Mailboxes::Taken Mailboxes::take(int from, int to, void* data, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  std::deque<Message>& messages = box(from, to);
  if (messages.empty() && left_[static_cast<size_t>(from)]) return Taken::kGone;
  if (messages.empty() || messages.front().due > Clock::now()) return Taken::kNothing;
  if (messages.front().bytes.size() != bytes) return Taken::kWrongSize;
  std::memcpy(data, messages.front().bytes.data(), bytes);
  messages.pop_front();
  return Taken::kMessage;
}

void Mailboxes::set_left(int rank, bool left) {
  const std::lock_guard lock(mutex_);
  left_[static_cast<size_t>(rank)] = left;
}

distributed::Transport::State ThreadTransport::poll() {
  if (is_new_) {
    is_overlapped_ = false;
    is_new_ = false;
  }
  if (!waiting() && !pending_.empty() && !is_overlapped_) {
    is_overlapped_ = true;
    ++overlapped_;
  }
  later_.assign(later_.size(), false);
  for (auto at = pending_.begin(); at != pending_.end() && !failed_;) {
    const Mailboxes::Taken taken = later_[static_cast<size_t>(at->from)]
                                       ? Mailboxes::Taken::kNothing
                                       : mailboxes_.take(at->from, rank(), at->data, at->bytes);
    failed_ = taken == Mailboxes::Taken::kWrongSize || taken == Mailboxes::Taken::kGone;
    if (taken == Mailboxes::Taken::kMessage) {
      at = pending_.erase(at);
    } else {
      later_[static_cast<size_t>(at->from)] = true;
      ++at;
    }
  }
  if (failed_) return State::kFailed;
  return pending_.empty() ? State::kDone : State::kBusy;
}

void in_ranks(int size, const ThreadRanksOptions& options,
              const std::function<void(distributed::Communicator&)>& rank) {
  Mailboxes mailboxes(size, options);
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(size));
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      distributed::Communicator communicator =
          distributed::communicator_over(std::make_unique<ThreadTransport>(r, size, mailboxes));
      rank(communicator);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace multihead::testing
