// Checks of one rank's arguments, before the ranks agree.
#pragma once

#include <string>
#include <string_view>

#include "distributed/call.h"
#include "multihead/distributed.h"
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

}  // namespace multihead::distributed
