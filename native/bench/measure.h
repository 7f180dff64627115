// How a case is timed, on Google Benchmark.
#pragma once

#include <benchmark/benchmark.h>

#include <string>

#include "cases.h"

namespace multihead::bench {

// Keeps what belongs to the case between the calls that Google Benchmark makes with ever more
// iterations. With `save_to`, the output is left there as raw floats, see file_name().
void run_case(benchmark::State& state, const Case& which, const std::string& save_to);

// "forward-tiny-full-f32-threads:1.f32"
std::string file_name(const Case& which);

}  // namespace multihead::bench
