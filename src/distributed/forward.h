// The methods of attention over several ranks, after the ranks agreed on the call.
#pragma once

#include "distributed/call.h"
#include "distributed/communicator.h"
#include "distributed/rectangles.h"

namespace multihead::distributed {

// The methods. Each writes the rank's rows to `total`, in the communicator's memory and without the
// sinks.
Status ring_attention(const Call& call, const Shards& shards, Communicator::Internals& ranks,
                      Context& context, PartialResult& total);
Status gathered_attention(const Call& call, const Shards& shards, Communicator::Internals& ranks,
                          Context& context, PartialResult& total);
Status heads_attention(const Call& call, const Shards& shards, Communicator::Internals& ranks,
                       Context& context, PartialResult& total);
Status decode_attention(const Call& call, const Shards& shards, Communicator::Internals& ranks,
                        Context& context, PartialResult& total);

}  // namespace multihead::distributed
