// Times a case on a GPU, with Google Benchmark.
#pragma once

#include <benchmark/benchmark.h>

#include "cases.h"
#include "measure.h"

namespace multihead::bench {

// As run_case(), of a case of all_device_cases(). With options.alone, the output is not compared
// with the CPU's, and the device's copy speed is not measured.
bool run_device_case(benchmark::State& state, const Case& which, const RunOptions& options);

}  // namespace multihead::bench
