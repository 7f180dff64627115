// The optional OpenBLAS peer: products on one thread.
#pragma once

#include "eigen_peer.h"

namespace multihead::bench {

bool has_openblas();
void openblas_linear(const PeerLinear& problem);

}  // namespace multihead::bench
