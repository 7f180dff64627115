// The namespace of a kernel file's functions, and of those that it has from the kernels' headers.
//
// Kernel files are compiled with flags of their own, so each has its own copy of the headers'
// functions. Natively the namespace has no name: functions have internal linkage. For WebAssembly
// src/CMakeLists.txt names it after the file, because Clang inlines a function with internal
// linkage into its only caller, whatever its size. That made the module 2 % larger, and attention
// with relaxed SIMD took 1.17 times as long in Node 20.
#pragma once

#ifndef MULTIHEAD_FILE
#define MULTIHEAD_FILE
#endif
