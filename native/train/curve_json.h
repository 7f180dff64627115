// The curve of a run as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <utility>

#include "curve.h"

namespace multihead::train {

inline nlohmann::ordered_json json_of(const Curve& curve) {
  nlohmann::ordered_json points = nlohmann::ordered_json::array();
  for (const CurvePoint& point : curve.points) {
    nlohmann::ordered_json one = {{"step", point.step},
                                  {"loss", point.loss},
                                  {"accuracy", point.accuracy},
                                  {"gradient_norm", point.gradient_norm},
                                  {"learning_rate", point.learning_rate}};
    if (point.held_out) {
      one["held_out"] = {{"loss", point.held_out->loss}, {"accuracy", point.held_out->accuracy}};
      if (!curve.jobs.empty()) one["held_out"]["jobs"] = point.held_out->jobs;
    }
    points.push_back(std::move(one));
  }
  return points;
}

}  // namespace multihead::train
