// For the end of a file of kernels, in HWY_ONCE: defines void function(params, first, end), which
// runs `kernel` of this processor's target on rows or numbers first to end - 1.
#pragma once

#include <cstdint>

#define MULTIHEAD_EXPORT_RANGE(function, kernel, Params)            \
  HWY_EXPORT(kernel);                                               \
  void function(const Params& params, int64_t first, int64_t end) { \
    HWY_DASSERT(0 <= first && first <= end);                        \
    HWY_DYNAMIC_DISPATCH(kernel)(params, first, end);               \
  }
