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
  // Everything that is sent or received lies here, not in the caller's memory: after a failure, a
  // late message must find it still there. `notes` are of agree().
  engine::Buffer memory, notes;
  bool broken = false;
  // From the first exchange of a call until all ranks know its outcome. A rank that leaves a call
  // meanwhile breaks the communicator, because the others and their messages are on their way.
  bool awaited = false;

  Internals* kept = nullptr;  // after the end of their Communicator: the next ones

  explicit Internals(std::unique_ptr<Transport> over) : transport(std::move(over)) {}
  Internals(const Internals&) = delete;
  Internals& operator=(const Internals&) = delete;

  // Waits for all transfers. kExchange if they fail; the communicator is then broken.
  Status finish(double seconds);
};

namespace multihead::distributed {

// A communicator over any transport.
inline Communicator communicator_over(std::unique_ptr<Transport> transport) {
  return Communicator(std::make_unique<Communicator::Internals>(std::move(transport)));
}

}  // namespace multihead::distributed
