// Marks the internal functions that multihead::distributed, multihead::cuda and
// multihead::safetensors call, so that a shared multihead exports them beside its public headers. They are no part of its interface: they
// may change in every version, so these libraries are installed together. All of them are listed
// in tests/packaging/cmake.test.mjs.
#pragma once

#if defined(__GNUC__) && !defined(__EMSCRIPTEN__)
#define MULTIHEAD_SHARED [[gnu::visibility("default")]]
#else
#define MULTIHEAD_SHARED
#endif
