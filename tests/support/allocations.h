// Counts what is allocated through operator new, in the whole test program.
#pragma once

#include <cstdint>

namespace multihead::testing {

// Calls of operator new, of all threads, since the program began.
int64_t allocations();

}  // namespace multihead::testing
