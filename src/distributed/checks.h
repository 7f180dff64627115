// Checks of what one rank was called with, before the ranks agree.
#pragma once

#include <string>
#include <string_view>

#include "distributed/call.h"
#include "multihead/distributed.h"
#include "multihead/status.h"

namespace multihead::distributed {

// kOption.
Status option(const char* name, const char* expected, std::string_view got);

// A number with as many digits as it needs, in every locale.
std::string text_of(double number);

Status validate_communicator(const Communicator& communicator);
Status validate_sharding(const Sharding& sharding);

// A shard's rows of q, k and v, and options that count in whole sequences. Sets the shape.
Status validate_inputs(Call& call);

// The same of packed sequences: q, k and v are (T, H, d). Sets the call's, (1, H, T, d).
Status validate_packed_inputs(const ConstAnyTensor& q, const ConstAnyTensor& k,
                              const ConstAnyTensor& v, Call& call);

}  // namespace multihead::distributed
