// Before anything is computed, all ranks compare what they were called with.
#pragma once

#include "distributed/call.h"
#include "distributed/communicator.h"
#include "engine/error/guard.h"
#include "multihead/status.h"

namespace multihead::distributed {

// Tells all ranks this one's rows and a digest of everything that must be the same, or that it has
// refused its arguments: `own` is the outcome of its own checks. All ranks return an error if any
// has one, if anything differs, or if the shards do not add up to the whole.
Status agree(const Call& call, const Status& own, Communicator::Internals& ranks, Shards& shards);

// The same for a step that needs no comparison, such as reserving memory.
Status agree(const Status& own, double time_limit, Communicator::Internals& ranks);

// After the last exchange, before results are written: `own` is the outcome of this rank. It may
// have all that it needs while another waits for a rank that has left. Nothing may fail afterwards.
Status agree_to_write(const Status& own, const Call& call, Communicator::Internals& ranks);

// Runs the work of a public call. If it fails on this rank alone, for want of memory, the others
// wait in vain, and messages may be on their way: the communicator is then broken.
template <class Work>
Status run_call(const Communicator& communicator, const Work& work) {
  Status status = engine::memory_guard(work);
  if (Communicator::Internals* const ranks = communicator.internals(); ranks != nullptr) {
    if (ranks->awaited) ranks->broken = true;
    ranks->awaited = false;
  }
  return status;
}

}  // namespace multihead::distributed
