// Transfers of bytes between ranks. Implementations: transport_mpi.cc, and threads of one process
// in tests/support/thread_ranks.h.
#pragma once

#include <chrono>
#include <cstdint>

namespace multihead::distributed {

class Transport {
 public:
  enum class State : uint8_t { kBusy, kDone, kFailed };

  Transport(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Starts a transfer and returns at once; the memory must not change until finish(). Messages from
  // one rank to another arrive in the order of sending. A transfer of 0 bytes sends nothing.
  void send(int to, const void* data, uint64_t bytes) {
    if (bytes == 0) return;
    sent_ += bytes;
    start_send(to, data, bytes);
  }
  void receive(int from, void* data, uint64_t bytes) {
    if (bytes == 0) return;
    received_ += bytes;
    start_receive(from, data, bytes);
  }

  // Continues transfers. Only the calling thread calls this, also between tiles of a computation.
  virtual State poll() = 0;

  // Waits for all transfers. Returns false if one fails, or if they take longer than the limit.
  bool finish(std::chrono::duration<double> limit);

  uint64_t bytes_sent() const { return sent_; }
  uint64_t bytes_received() const { return received_; }
  std::chrono::duration<double> waited() const { return waited_; }

 protected:
  // True if the rank waits without computing.
  bool waiting() const { return waiting_; }
  virtual void start_send(int to, const void* data, uint64_t bytes) = 0;
  virtual void start_receive(int from, void* data, uint64_t bytes) = 0;

 private:
  int rank_, size_;
  uint64_t sent_ = 0, received_ = 0;
  bool waiting_ = false;
  std::chrono::duration<double> waited_{};
};

}  // namespace multihead::distributed
