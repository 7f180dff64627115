// The first parameters of a model.
#pragma once

#include "multihead/transformer.h"
#include "nn/parameters.h"

namespace multihead::nn {

// Errors: kOption for a factor that is not finite, or negative.
Status validate_initialisation(const Initialisation& initialisation);

// Each parameter has a stream of random numbers of its own, by its place in the list.
void initialise(const Initialisation& initialisation, Parameters& parameters);

}  // namespace multihead::nn
