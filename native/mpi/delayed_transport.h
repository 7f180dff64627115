// Transfers that take at least a given time. With them one machine can measure how much network
// time the computation hides.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "distributed/transport.h"

namespace multihead::mpi {

class DelayedTransport : public distributed::Transport {
 public:
  using Clock = std::chrono::steady_clock;

  DelayedTransport(std::unique_ptr<Transport> inner, std::chrono::duration<double> delay)
      : Transport(inner->rank(), inner->size()),
        inner_(std::move(inner)),
        delay_(std::chrono::duration_cast<Clock::duration>(delay)) {}

  // Seconds that calls waited only for the delay, with nothing left to compute.
  double exposed_seconds() const { return exposed_.count(); }

  State poll() override {
    const State state = inner_->poll();
    if (waiting() && is_new_) {
      is_new_ = false;
      exposed_ += std::max(due_ - Clock::now(), Clock::duration::zero());
    }
    return state == State::kDone && Clock::now() < due_ ? State::kBusy : state;
  }

 protected:
  void start_send(int to, const void* data, uint64_t bytes) override {
    inner_->send(to, data, bytes);
  }
  void start_receive(int from, void* data, uint64_t bytes) override {
    inner_->receive(from, data, bytes);
    due_ = Clock::now() + delay_;
    is_new_ = true;
  }

 private:
  std::unique_ptr<Transport> inner_;
  Clock::duration delay_;
  Clock::time_point due_{};
  bool is_new_ = false;  // there are transfers that nobody has waited for yet
  std::chrono::duration<double> exposed_{};
};

}  // namespace multihead::mpi
