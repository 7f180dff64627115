// MULTIHEAD_PUBLIC marks namespace multihead in the public headers: a shared library exports what
// they declare. Everything else is compiled with hidden visibility; internal types that a public
// header names are declared in front of the marked namespace, which would export them.
#pragma once

#if defined(__GNUC__) && !defined(__EMSCRIPTEN__)
#define MULTIHEAD_PUBLIC [[gnu::visibility("default")]]
#else
#define MULTIHEAD_PUBLIC
#endif
