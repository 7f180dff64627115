// The methods of attention over several ranks, of an agreed call.
#pragma once

#include "distributed/call.h"
#include "distributed/communicator.h"
#include "distributed/rectangles.h"

namespace multihead::distributed {

// Where a method leaves the rank's rows, in the communicator's memory.
// `total` has not yet seen the sinks.
Status ring_attention(const Call& call, const Shards& shards, Communicator::Internals& ranks,
                      Context& context, PartialResult& total);
Status gathered_attention(const Call& call, const Shards& shards, Communicator::Internals& ranks,
                          Context& context, PartialResult& total);
Status heads_attention(const Call& call, const Shards& shards, Communicator::Internals& ranks,
                       Context& context, PartialResult& total);
Status decode_attention(const Call& call, const Shards& shards, Communicator::Internals& ranks,
                        Context& context, PartialResult& total);

}  // namespace multihead::distributed
