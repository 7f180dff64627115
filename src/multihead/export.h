/// \file
/// What a shared library exports: the declarations between MULTIHEAD_PUBLIC_BEGIN and _END in the
/// public headers. Everything else is compiled with hidden visibility.
#pragma once

#if defined(__GNUC__) && !defined(__EMSCRIPTEN__)
#define MULTIHEAD_PUBLIC_BEGIN _Pragma("GCC visibility push(default)")
#define MULTIHEAD_PUBLIC_END _Pragma("GCC visibility pop")
#else
#define MULTIHEAD_PUBLIC_BEGIN
#define MULTIHEAD_PUBLIC_END
#endif

// Passes and returns the type in a register although it has a destructor. In WebAssembly this makes
// calls and checks of a Status a few bytes smaller each. On other platforms, compilers would
// disagree about the calling convention.
#if defined(__EMSCRIPTEN__)
#define MULTIHEAD_TRIVIAL_ABI [[clang::trivial_abi]]
#else
#define MULTIHEAD_TRIVIAL_ABI
#endif
