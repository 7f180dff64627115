// Replaces the C library's functions of the same names in the WebAssembly module.
#include "small_math.h"

using multihead::bindings::small_cos;
using multihead::bindings::small_exp;
using multihead::bindings::small_exp2;
using multihead::bindings::small_log;
using multihead::bindings::small_pow;
using multihead::bindings::small_sin;

extern "C" {
double exp(double x) { return small_exp(x); }
float expf(float x) { return static_cast<float>(small_exp(static_cast<double>(x))); }
double exp2(double x) { return small_exp2(x); }
double sin(double x) { return small_sin(x); }
double cos(double x) { return small_cos(x); }
double log(double x) { return small_log(x); }
// The core computes powers only for the frequencies of RoPE, whose base is positive.
double pow(double x, double y) { return small_pow(x, y); }
}
