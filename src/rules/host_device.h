// Marks functions that kernels call, too, and that cannot be constexpr because they call <cmath>.
// Constexpr functions need no mark: device code is compiled with --expt-relaxed-constexpr.
#pragma once

#if defined(__CUDACC__)
#define MULTIHEAD_HOST_DEVICE __host__ __device__
#else
#define MULTIHEAD_HOST_DEVICE
#endif
