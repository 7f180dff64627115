// How a case is timed, on Google Benchmark.
#pragma once

#include <benchmark/benchmark.h>

#include <string>

#include "cases.h"

namespace multihead::bench {

struct RunOptions {
  bool alone = false;        // without Eigen, and without shares of the machine's limits
  bool explain = false;      // label each case with the path that serves it
  std::string save_to = {};  // a folder for the output as raw floats, see file_name(); or nowhere
};

// Keeps what belongs to the case between the calls that Google Benchmark makes with ever more
// iterations.
bool run_case(benchmark::State& state, const Case& which, const RunOptions& options);

// "forward-tiny-full-f32-threads:1.f32"
std::string file_name(const Case& which);

}  // namespace multihead::bench
