// Initial parameter values.
#pragma once

#include "multihead/transformer.h"
#include "nn/parameters.h"

namespace multihead::nn {

// Errors: kOption for a factor that is negative or not finite.
Status validate_initialization(const Initialization& initialization);

// Each parameter has its own stream of random numbers, selected by its index in the list.
void initialize(const Initialization& initialization, Parameters& parameters);

}  // namespace multihead::nn
