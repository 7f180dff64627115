// The course of a run: what each step and each measurement on held-out data gave.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "multihead/training.h"

namespace multihead::train {

// On held-out data.
struct Measurement {
  float loss = 0, accuracy = 0;
  std::vector<float> jobs;  // the accuracy of each job, if there are several
};

// In f32, as checkpoints hold it.
struct CurvePoint {
  int64_t step = 0;
  float loss = 0, accuracy = 0, gradient_norm = 0, learning_rate = 0;
  std::optional<Measurement> held_out;  // not measured after every step
};

CurvePoint point_of(const TrainingStep& step);

struct Curve {
  std::vector<std::string> jobs;   // names, or empty
  std::vector<CurvePoint> points;  // of consecutive steps
};

// A row of numbers for each point, without the step, and how many a row has. NaN where nothing was
// measured.
std::vector<float> packed(const Curve& curve);
int64_t packed_width(const Curve& curve);

// Adds points from packed rows, the last of which is of `last_step`.
void unpack(std::span<const float> rows, int64_t last_step, Curve& curve);

// One row for each step, with empty cells where nothing was measured.
std::string csv(const Curve& curve);

// Two panels, loss and accuracy, over the steps. Readable on light and on dark pages.
std::string chart(const Curve& curve, const std::string& title);

}  // namespace multihead::train
