// Checks of one rank's arguments, which all ranks then compare before they compute.
#pragma once

#include <string>
#include <string_view>

#include "distributed/call.h"
#include "distributed/communicator.h"
#include "engine/error/error.h"
#include "multihead/status.h"

namespace multihead::distributed {

// Builds a kOption error.
Status option(const char* name, const char* expected, std::string_view got);

// Formats a number with as many digits as it needs, in every locale.
std::string text_of(double number);

Status validate_communicator(const Communicator& communicator);
Status validate_sharding(const Sharding& sharding);

// Checks a shard's rows of q, k and v, and options that refer to whole sequences. Sets the shape.
Status validate_inputs(Call& call);

// Checks packed sequences: q, k and v are (T, H, d). Sets the call's tensors, (1, H, T, d).
Status validate_varlen_inputs(const ConstAnyTensor& q, const ConstAnyTensor& k,
                              const ConstAnyTensor& v, Call& call);

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
