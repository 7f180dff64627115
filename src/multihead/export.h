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

// Passed and returned in a register although it has a destructor: in WebAssembly that makes calls
// and checks of a Status a few bytes each. Elsewhere the compilers would disagree about it.
#if defined(__EMSCRIPTEN__)
#define MULTIHEAD_TRIVIAL_ABI [[clang::trivial_abi]]
#else
#define MULTIHEAD_TRIVIAL_ABI
#endif
