// What generate() and BeamSearch make of their options.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "multihead/models.h"

namespace multihead::models {

struct GenerationPlan {
  std::vector<int32_t> first;  // tokens before the first new one
  int64_t most = 0;            // new tokens
  SessionOptions session;
  SamplingOptions sampling;
  TokenRules rules;
  int64_t beams = 1;
  std::vector<int32_t> stops;
};

// Errors: kOption.
Status plan_generation(const Model& model, std::span<const int32_t> prompt,
                       const GenerateOptions& options, GenerationPlan& plan);

}  // namespace multihead::models
