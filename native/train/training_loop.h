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

// A model to train and its data.
class Learner {
 public:
  virtual ~Learner() = default;
  virtual Trainer& trainer() = 0;
  virtual std::string title() const = 0;  // title of the chart
  virtual std::vector<KeptOption> kept_options() const = 0;
  // Names for the entries of Measurement::jobs; empty if there is only one job.
  virtual std::vector<std::string> jobs() const = 0;
  virtual Status step(TrainingStep& result, Context& context) = 0;
  virtual Status measure(Measurement& result, Context& context) = 0;
  // Called after each step; may print.
  virtual void after_step(const TrainingStep&, Progress&, Context&) {}
};

struct Run {
  Curve curve;               // from step 1 on, unless the checkpoint had no curve
  int64_t resumed_from = 0;  // step of the checkpoint that the run resumed
  int64_t steps_done = 0;    // includes resumed_from
  double seconds = 0;
  bool interrupted = false;
};

// Call this before printing anything: refuses paths that cannot be written, loads options.resume,
// and returns the curve so far. Throws a Failure.
Curve prepare(Learner& learner, const RunOptions& options);

// Trains up to options.steps steps, counted from the beginning of the first run, and writes
// checkpoints. Throws a Failure.
Run train(Learner& learner, Curve so_far, const RunOptions& options, Context& context);

// Call this after all results are printed: tells how to continue an interrupted run, and writes the
// curve to the files of the options. Throws a Failure. Returns the exit code.
ExitCode end(const Run& run, const Learner& learner, const RunOptions& options);

}  // namespace multihead::train
