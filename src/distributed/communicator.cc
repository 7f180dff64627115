#include "distributed/communicator.h"

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "distributed/transport.h"
#include "multihead/distributed.h"
#include "multihead/status.h"

namespace multihead::distributed {

bool Transport::finish(std::chrono::duration<double> limit) {
  using Clock = std::chrono::steady_clock;
  // A short wait is spent polling, a long one mostly asleep.
  constexpr std::chrono::microseconds kPolling{200}, kSleep{50};
  const Clock::time_point start = Clock::now();
  waiting_ = true;
  State state = poll();
  while (state == State::kBusy) {
    const Clock::duration elapsed = Clock::now() - start;
    if (elapsed > limit) break;
    if (elapsed > kPolling) {
      std::this_thread::sleep_for(kSleep);
    } else {
      std::this_thread::yield();
    }
    state = poll();
  }
  waiting_ = false;
  waited_ += Clock::now() - start;
  return state == State::kDone;
}

Communicator::Internals::~Internals() {
  if (!broken) return;
  // A message that arrives late may still be written there, until the process ends.
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::unique_ptr<engine::Buffer>>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(memory));
  kept->push_back(std::move(notes));
}

Status Communicator::Internals::finish(double seconds) {
  if (transport->finish(std::chrono::duration<double>(seconds))) return {};
  broken = true;
  return {StatusCode::kExchange, "communicator",
          "an answer of every rank within " + std::to_string(seconds) + " s",
          "none from at least one"};
}

Communicator::Communicator() = default;
Communicator::~Communicator() = default;
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;
Communicator::Communicator(std::unique_ptr<Internals> internals)
    : internals_(std::move(internals)) {}

int Communicator::rank() const { return internals_ == nullptr ? 0 : internals_->transport->rank(); }
int Communicator::size() const { return internals_ == nullptr ? 0 : internals_->transport->size(); }

Communicator::Traffic Communicator::traffic() const {
  if (internals_ == nullptr) return {};
  const Transport& transport = *internals_->transport;
  return {.bytes_sent = transport.bytes_sent(),
          .bytes_received = transport.bytes_received(),
          .seconds_waited = transport.waited().count()};
}

}  // namespace multihead::distributed
