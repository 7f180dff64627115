#include "curve.h"

#include <cstdio>
#include <string>

namespace multihead::train {
namespace {

// With enough digits to tell apart any two results of a computation in f32.
std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.9g", value);
  return text;
}

}  // namespace

std::string csv(const Curve& curve) {
  std::string text =
      "step,loss,accuracy,gradient_norm,learning_rate,held_out_loss,held_out_accuracy";
  for (const std::string& job : curve.jobs) text += ",held_out_accuracy: " + job;
  text += "\n";
  for (const CurvePoint& point : curve.points) {
    text += std::to_string(point.step.step);
    for (const double value : {point.step.loss, point.accuracy(), point.step.gradient_norm,
                               static_cast<double>(point.step.learning_rate)}) {
      text += "," + number(value);
    }
    if (point.held_out) {
      text += "," + number(point.held_out->loss) + "," + number(point.held_out->accuracy);
      for (const double accuracy : point.held_out->jobs) text += "," + number(accuracy);
    } else {
      text += std::string(2 + curve.jobs.size(), ',');
    }
    text += "\n";
  }
  return text;
}

}  // namespace multihead::train
