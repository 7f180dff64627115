// Decides if linear() multiplies with AMX: if bf16 was requested and this processor supports it.
#pragma once

#include <cstdint>

#include "engine/runtime/path_choice.h"
#include "multihead/precision.h"
#include "multihead/tensor.h"

namespace multihead::engine {

// Returns why this process cannot use AMX; kNone if it can. Requests permission from the operating
// system.
Objection objection_to_amx_here();

// Selects the kernel for a product of `rows` rows with a weight of type `weight`, and for its
// backward.
LinearChoice choose_linear(Precision precision, int64_t rows, DType weight);

}  // namespace multihead::engine
