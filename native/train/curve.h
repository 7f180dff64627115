// The course of a run: what each step and each measurement on held-out data gave.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "multihead/training.h"

namespace multihead::train {

// On held-out data.
struct Measurement {
  double loss = 0, accuracy = 0;
  std::vector<double> jobs;  // the accuracy of each job, if there are several
};

struct CurvePoint {
  TrainingStep step;
  std::optional<Measurement> held_out;  // not measured after every step

  double accuracy() const {
    return step.counted == 0
               ? 0.0
               : static_cast<double>(step.correct) / static_cast<double>(step.counted);
  }
};

struct Curve {
  std::vector<std::string> jobs;  // names, or empty
  std::vector<CurvePoint> points;
};

// One row for each step, with empty cells where nothing was measured.
std::string csv(const Curve& curve);

// Two panels, loss and accuracy, over the steps. Readable on light and on dark pages.
std::string chart(const Curve& curve, const std::string& title);

}  // namespace multihead::train
