// Highway for a build with one SIMD target, such as WebAssembly's, to be precompiled for all
// kernels. With several targets each kernel file reads Highway once for each of them.
#pragma once

#define HWY_TARGET_INCLUDE "none: there is one target"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#undef HWY_TARGET_INCLUDE
