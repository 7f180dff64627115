// The loop around a trainer: progress, measurements, checkpoints, and a clean end on Ctrl-C.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint.h"
#include "curve.h"
#include "multihead/context.h"
#include "multihead/status.h"
#include "multihead/training.h"
#include "progress.h"
#include "run_options.h"

namespace multihead::train {

// What is trained.
class Learner {
 public:
  virtual ~Learner() = default;
  virtual Trainer& trainer() = 0;
  virtual std::string title() const = 0;  // of the chart
  virtual std::vector<KeptOption> kept_options() const = 0;
  // Names for Measurement::jobs, if there are several.
  virtual std::vector<std::string> jobs() const = 0;
  virtual Status step(TrainingStep& result, Context& context) = 0;
  virtual Status measure(Measurement& result, Context& context) = 0;
  // Called after each step, to print something.
  virtual void after_step(const TrainingStep&, Progress&, Context&) {}
};

struct Run {
  Curve curve;               // from the first step on, unless the checkpoint had none
  int64_t resumed_from = 0;  // steps of the checkpoint that it began with
  int64_t steps_done = 0;    // those included
  double seconds = 0;
  bool interrupted = false;
};

// Before anything is printed: refuses paths that cannot be written, loads options.resume, and gives
// the curve so far. Throws a Failure.
Curve prepare(Learner& learner, const RunOptions& options);

// Trains up to options.steps steps, counted from the beginning of the first run, and writes
// checkpoints. Throws a Failure.
Run train(Learner& learner, Curve so_far, const RunOptions& options, Context& context);

// After all results are printed: tells how to continue an interrupted run, and writes the curve to
// the files of the options. Throws a Failure. Returns the exit code.
ExitCode end(const Run& run, const Learner& learner, const RunOptions& options);

}  // namespace multihead::train
