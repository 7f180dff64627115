// Marks the internal functions that multihead::distributed, multihead::cuda, multihead::lab,
// multihead::safetensors and multihead::models call, so that a shared library exports them in
// addition to its public headers. They are not part of its interface and may change in every
// version, so these libraries are installed together. tests/packaging/cmake.test.mjs lists all of
// them.
#pragma once

#if defined(__GNUC__) && !defined(__EMSCRIPTEN__)
#define MULTIHEAD_SHARED [[gnu::visibility("default")]]
#else
#define MULTIHEAD_SHARED
#endif

// Marks functions that CUDA kernels call, too, and that cannot be constexpr because they call
// <cmath>. Constexpr functions need no mark: device code is compiled with --expt-relaxed-constexpr.
#if defined(__CUDACC__)
#define MULTIHEAD_HOST_DEVICE __host__ __device__
#else
#define MULTIHEAD_HOST_DEVICE
#endif
