// multihead-train four-jobs, multihead-train induction
#pragma once

#include "exit_code.h"
#include "multihead/experiments.h"
#include "run_options.h"

namespace multihead::train {

// Trains, then prints which head does which job, and the accuracy without each head. `options` has
// the numbers of heads and layers; `run` has all other options. Throws a Failure.
ExitCode run_experiment(ExperimentOptions options, RunOptions run);

}  // namespace multihead::train
