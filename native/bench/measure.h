// Times a case, with Google Benchmark.
#pragma once

#include <benchmark/benchmark.h>

#include <string>

#include "cases.h"

namespace multihead::bench {

struct RunOptions {
  bool alone = false;        // skips Eigen and the machine's limits
  bool explain = false;      // label each case with the kernel that serves it
  std::string save_to = {};  // folder for outputs as raw floats, in STEM.f32; empty: none
};

// Google Benchmark calls this several times per case, with more and more iterations. The state of
// the case persists between the calls.
bool run_case(benchmark::State& state, const Case& which, const RunOptions& options);

// File name stem of a case: "forward-tiny-full-f32-threads:1".
std::string stem_of(const Case& which);

}  // namespace multihead::bench
