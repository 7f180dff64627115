// MPI's non-blocking messages, on a duplicate of the caller's communicator.
#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "distributed/communicator.h"
#include "distributed/transport.h"
#include "engine/error/error.h"
#include "multihead/distributed.h"

namespace multihead::distributed {
namespace {

// MPI counts bytes in an int, so longer messages are sent in pieces, which arrive in order.
constexpr uint64_t kMostBytes = uint64_t{1} << 30;

class MpiTransport : public Transport {
 public:
  MpiTransport(MPI_Comm comm, int rank, int size) : Transport(rank, size), comm_(comm) {
    // Reserve one send and one receive per rank. agree() needs no more, so it never allocates
    // midway and cannot fail there.
    requests_.reserve(2 * static_cast<size_t>(size));
  }

  ~MpiTransport() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized == 0) MPI_Comm_free(&comm_);
  }

  State poll() override {
    if (failed_) return State::kFailed;
    if (requests_.empty()) return State::kDone;
    int done = 0;
    failed_ = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done,
                          MPI_STATUSES_IGNORE) != MPI_SUCCESS;
    if (failed_) return State::kFailed;
    if (done == 0) return State::kBusy;
    requests_.clear();
    return State::kDone;
  }

 protected:
  void start_send(int to, const void* data, uint64_t bytes) override {
    in_pieces(bytes, [&](uint64_t first, int count, MPI_Request* request) {
      return MPI_Isend(static_cast<const char*>(data) + first, count, MPI_BYTE, to, 0, comm_,
                       request);
    });
  }
  void start_receive(int from, void* data, uint64_t bytes) override {
    in_pieces(bytes, [&](uint64_t first, int count, MPI_Request* request) {
      return MPI_Irecv(static_cast<char*>(data) + first, count, MPI_BYTE, from, 0, comm_, request);
    });
  }

 private:
  template <class Start>
  void in_pieces(uint64_t bytes, const Start& start) {
    for (uint64_t first = 0; first < bytes && !failed_; first += kMostBytes) {
      const auto count = static_cast<int>(std::min(kMostBytes, bytes - first));
      // Add the request before the transfer starts, because this may fail: a started request that
      // is not in the list would write to freed memory.
      requests_.push_back(MPI_REQUEST_NULL);
      failed_ = start(first, count, &requests_.back()) != MPI_SUCCESS;
    }
  }

  MPI_Comm comm_;
  std::vector<MPI_Request> requests_;
  bool failed_ = false;
};

Status over(MPI_Comm comm, Communicator& communicator) {
  MPI_Comm own = MPI_COMM_NULL;
  int rank = 0, size = 0;
  // Make the duplicate return errors instead of ending the program.
  const bool made = MPI_Comm_dup(comm, &own) == MPI_SUCCESS &&
                    MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN) == MPI_SUCCESS &&
                    MPI_Comm_rank(own, &rank) == MPI_SUCCESS &&
                    MPI_Comm_size(own, &size) == MPI_SUCCESS;
  if (!made) {
    return {StatusCode::kExchange, "communicator", "one that MPI_Comm_dup() can duplicate",
            "another"};
  }
  communicator = communicator_over(std::make_unique<MpiTransport>(own, rank, size));
  return {};
}

Status check_initialized() {
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized != 0 && finalized == 0) return {};
  return {StatusCode::kOption, "communicator", "MPI between MPI_Init() and MPI_Finalize()",
          initialized == 0 ? "MPI that is not initialized" : "MPI that is finalized"};
}

}  // namespace

Status Communicator::over_mpi(Communicator& communicator) {
  MULTIHEAD_TRY(check_initialized());
  return engine::memory_guard([&] { return over(MPI_COMM_WORLD, communicator); });
}

Status Communicator::over_mpi(int fortran_handle, Communicator& communicator) {
  MULTIHEAD_TRY(check_initialized());
  const MPI_Comm comm = MPI_Comm_f2c(fortran_handle);
  if (comm == MPI_COMM_NULL) {
    return {StatusCode::kOption, "fortran_handle", "that of a communicator: MPI_Comm_c2f(comm)",
            "that of MPI_COMM_NULL"};
  }
  return engine::memory_guard([&] { return over(comm, communicator); });
}

}  // namespace multihead::distributed
