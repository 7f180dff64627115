// The functions that JavaScript calls. embind.cpp is the table of them.
#pragma once

#include <cstdint>
#include <type_traits>

namespace multihead::bindings {

#define WIRE_FUNCTION(javascript, function, signature) std::type_identity_t<signature> function;
#include "wire.inc"

// Runs a prepared operation; an address of 0 is "not given". Not a WIRE_FUNCTION: Embind's
// conversion of six integers takes longer than all the rest of a call.
extern "C" int32_t multihead_run(int32_t handle, uint32_t q, uint32_t k, uint32_t v, uint32_t out,
                                 uint32_t lse);

}  // namespace multihead::bindings
