// Whether AMX multiplies: asked for, and possible on this processor.
#pragma once

#include <cstdint>

#include "engine/runtime/path_choice.h"
#include "multihead/precision.h"
#include "multihead/tensor.h"

namespace multihead::engine {

// Of this process; kNone if it can use AMX. Asks the operating system for it.
Objection objection_to_amx_here();

// For a product of so many rows with a weight of that type, and for its backward.
LinearChoice choose_linear(Precision precision, int64_t rows, DType weight);

}  // namespace multihead::engine
