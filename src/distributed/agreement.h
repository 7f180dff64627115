// Before they compute, all ranks compare their arguments.
#pragma once

#include "distributed/call.h"
#include "distributed/communicator.h"
#include "engine/error/guard.h"
#include "multihead/status.h"

namespace multihead::distributed {

// Sends this rank's number of rows and a digest of everything that must be the same, or that the
// rank refused its arguments; `own` is the result of its own checks. All ranks return an error if
// any rank has one, if anything differs, or if the shards do not add up to the whole problem.
Status agree(const Call& call, const Status& own, Communicator::Internals& ranks, Shards& shards);

// Agrees on the result of a step without a comparison, such as reserving memory.
Status agree(const Status& own, double time_limit, Communicator::Internals& ranks);

// Call this after the last exchange and before results are written; `own` is the result of this
// rank. A rank may have all its data while another rank waits for a rank that has left. Nothing may
// fail afterwards.
Status agree_to_write(const Status& own, const Call& call, Communicator::Internals& ranks);

// Runs the work of a public call. If it runs out of memory on this rank alone, the other ranks wait
// in vain, and messages may be on their way: the communicator is then broken.
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
