// Times a case on a GPU, with Google Benchmark.
#pragma once

#include <benchmark/benchmark.h>

#include "cases.h"
#include "measure.h"

namespace multihead::bench {

// Runs a case of all_device_cases() like run_case(). With options.alone, it does not compare the
// output with the CPU, and does not measure the device's copy speed.
bool run_device_case(benchmark::State& state, const Case& which, const RunOptions& options);

}  // namespace multihead::bench
