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
