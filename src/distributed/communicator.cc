#include "distributed/communicator.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "distributed/agreement.h"
#include "distributed/transport.h"
#include "multihead/distributed.h"
#include "multihead/status.h"

namespace multihead::distributed {

bool Transport::finish(std::chrono::duration<double> limit) {
  using Clock = std::chrono::steady_clock;
  // Poll during a short wait, sleep between polls of a long one.
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

namespace {

// Destroys a communicator. A broken communicator is kept until the process ends: a late message may
// still be written to its memory, and MPI would wait for the rank that has left.
void end(std::unique_ptr<Communicator::Internals> internals) {
  if (internals == nullptr || !internals->broken) return;
  static std::atomic<Communicator::Internals*> newest{nullptr};
  internals->kept = newest.load();
  while (!newest.compare_exchange_weak(internals->kept, internals.get())) {
  }
  static_cast<void>(internals.release());
}

}  // namespace

Status Communicator::Internals::finish(double seconds) {
  if (transport->finish(std::chrono::duration<double>(seconds))) return {};
  broken = true;
  return {StatusCode::kExchange, "communicator",
          "an answer of every rank within " + text_of(seconds) + " s", "none from at least one"};
}

Communicator::Communicator() = default;
Communicator::~Communicator() { end(std::move(internals_)); }
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&& other) noexcept {
  if (this != &other) end(std::exchange(internals_, std::move(other.internals_)));
  return *this;
}
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
