// The members of a Communicator, hidden from the public header.
#pragma once

#include <memory>
#include <utility>

#include "distributed/transport.h"
#include "engine/runtime/scratch.h"
#include "multihead/distributed.h"
#include "multihead/status.h"

struct multihead::distributed::Communicator::Internals {
  std::unique_ptr<Transport> transport;
  // Memory of everything that is sent or received. It is not the caller's memory, because after a
  // failure a late message may still be written to it. `notes` belongs to agree().
  engine::Buffer memory, notes;
  bool broken = false;
  // True from the first exchange of a call until all ranks know its result. A rank that leaves a
  // call during this time breaks the communicator, because the other ranks and their messages still
  // expect it.
  bool awaited = false;

  Internals* kept = nullptr;  // list of broken communicators that are kept

  explicit Internals(std::unique_ptr<Transport> over) : transport(std::move(over)) {}
  Internals(const Internals&) = delete;
  Internals& operator=(const Internals&) = delete;

  // Waits for all transfers. Returns kExchange if they fail; the communicator is then broken.
  Status finish(double seconds);
};

namespace multihead::distributed {

// Creates a communicator over any transport.
inline Communicator communicator_over(std::unique_ptr<Transport> transport) {
  return Communicator(std::make_unique<Communicator::Internals>(std::move(transport)));
}

}  // namespace multihead::distributed
