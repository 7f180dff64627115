#include "curve.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace multihead::train {
namespace {

constexpr size_t kOfStep = 4, kOfMeasurement = 2;

// Prints 9 digits: enough to distinguish any two f32 numbers.
std::string number(float value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.9g", static_cast<double>(value));
  return text;
}

}  // namespace

CurvePoint point_of(const TrainingStep& step) {
  const double accuracy =
      step.counted == 0 ? 0 : static_cast<double>(step.correct) / static_cast<double>(step.counted);
  return {.step = step.step,
          .loss = static_cast<float>(step.loss),
          .accuracy = static_cast<float>(accuracy),
          .gradient_norm = static_cast<float>(step.gradient_norm),
          .learning_rate = step.learning_rate,
          .held_out = {}};
}

int64_t packed_width(const Curve& curve) {
  return static_cast<int64_t>(kOfStep + kOfMeasurement + curve.jobs.size());
}

std::vector<float> packed(const Curve& curve) {
  std::vector<float> rows;
  rows.reserve(curve.points.size() * static_cast<size_t>(packed_width(curve)));
  for (const CurvePoint& point : curve.points) {
    rows.insert(rows.end(), {point.loss, point.accuracy, point.gradient_norm, point.learning_rate});
    if (point.held_out) {
      rows.insert(rows.end(), {point.held_out->loss, point.held_out->accuracy});
      rows.insert(rows.end(), point.held_out->jobs.begin(), point.held_out->jobs.end());
    } else {
      rows.insert(rows.end(), kOfMeasurement + curve.jobs.size(),
                  std::numeric_limits<float>::quiet_NaN());
    }
  }
  return rows;
}

void unpack(std::span<const float> rows, int64_t last_step, Curve& curve) {
  const auto width = static_cast<size_t>(packed_width(curve));
  const size_t count = rows.size() / width;
  for (size_t i = 0; i < count; ++i) {
    const float* const row = &rows[i * width];
    CurvePoint point = {.step = last_step - static_cast<int64_t>(count - 1 - i),
                        .loss = row[0],
                        .accuracy = row[1],
                        .gradient_norm = row[2],
                        .learning_rate = row[3],
                        .held_out = {}};
    const float* const measured = row + kOfStep;
    if (!std::isnan(measured[0])) {
      point.held_out =
          Measurement{measured[0], measured[1], {measured + kOfMeasurement, row + width}};
    }
    curve.points.push_back(std::move(point));
  }
}

std::string csv(const Curve& curve) {
  std::string text =
      "step,loss,accuracy,gradient_norm,learning_rate,held_out_loss,held_out_accuracy";
  for (const std::string& job : curve.jobs) text += ",held_out_accuracy: " + job;
  text += "\n";
  for (const CurvePoint& point : curve.points) {
    text += std::to_string(point.step);
    for (const float value :
         {point.loss, point.accuracy, point.gradient_norm, point.learning_rate}) {
      text += "," + number(value);
    }
    if (point.held_out) {
      text += "," + number(point.held_out->loss) + "," + number(point.held_out->accuracy);
      for (const float accuracy : point.held_out->jobs) text += "," + number(accuracy);
    } else {
      text += std::string(2 + curve.jobs.size(), ',');
    }
    text += "\n";
  }
  return text;
}

}  // namespace multihead::train
