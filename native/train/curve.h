// The course of a run: the results of each step and of each measurement on held-out data.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "multihead/training.h"

namespace multihead::train {

// A measurement on held-out data.
struct Measurement {
  float loss = 0, accuracy = 0;
  std::vector<float> jobs;  // accuracy of each job, if there are several
};

// Results of one step, in f32 like in checkpoints.
struct CurvePoint {
  int64_t step = 0;
  float loss = 0, accuracy = 0, gradient_norm = 0, learning_rate = 0;
  std::optional<Measurement> held_out;  // only after some steps
};

CurvePoint point_of(const TrainingStep& step);

struct Curve {
  std::vector<std::string> jobs;   // names, or empty
  std::vector<CurvePoint> points;  // one per step, without gaps
};

// packed(): one row of packed_width() numbers per point, without the step. NaN stands for values
// that were not measured.
std::vector<float> packed(const Curve& curve);
int64_t packed_width(const Curve& curve);

// Adds points from packed rows. The last row belongs to `last_step`.
void unpack(std::span<const float> rows, int64_t last_step, Curve& curve);

// One row per step, with empty cells for values that were not measured.
std::string csv(const Curve& curve);

// Draws two panels, loss and accuracy over the steps, readable on light and dark pages.
std::string chart(const Curve& curve, const std::string& title);

}  // namespace multihead::train
