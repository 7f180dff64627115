#include "nn/transformer/initialize.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "engine/error/error.h"
#include "rules/random_normal.h"

namespace multihead::nn {
namespace {

// Standard deviation of a parameter's elements times sqrt(columns); 0 for parameters that are not
// random.
float factor_of(ParameterRole role, const Initialization& initialization) {
  switch (role) {
    case ParameterRole::kEmbedding:
      return initialization.embedding;
    case ParameterRole::kWeight:
    case ParameterRole::kAppended:
      return initialization.weight;
    case ParameterRole::kResidualWeight:
      return initialization.residual;
    case ParameterRole::kOutput:
      return initialization.output;
    case ParameterRole::kBias:
    case ParameterRole::kGain:
    case ParameterRole::kSink:
      break;
  }
  return 0.0F;
}

}  // namespace

Status validate_initialization(const Initialization& initialization) {
  for (const auto& [name, factor] : {std::pair{Name::kEmbedding, initialization.embedding},
                                     {Name::kWeight, initialization.weight},
                                     {Name::kResidual, initialization.residual},
                                     {Name::kOutput, initialization.output}}) {
    if (factor >= 0.0F && !std::isinf(factor)) continue;
    return engine::real_error(name, engine::Message::kFiniteNotNegative,
                              static_cast<double>(factor));
  }
  return {};
}

void initialize(const Initialization& initialization, Parameters& parameters) {
  const auto list = parameters.list();
  std::optional<rules::NormalStream> numbers;
  size_t stream_parameter = list.size();
  int64_t before = 0;  // numbers already taken from the stream
  for (const ParameterRows& rows : parameters.rows()) {
    const Parameter& parameter = list[rows.parameter];
    float* const values = parameters.values() + rows.offset;
    const auto factor = static_cast<double>(factor_of(parameter.role, initialization));
    if (factor == 0.0) {
      std::fill_n(values, rows.elements(), parameter.role == ParameterRole::kGain ? 1.0F : 0.0F);
      continue;
    }
    if (rows.parameter != stream_parameter) {
      numbers.emplace(initialization.seed, rows.parameter);
      stream_parameter = rows.parameter;
      before = 0;
    }
    const int64_t first = rows.first * rows.columns;
    numbers->skip(first - before);
    const double deviation = factor / std::sqrt(static_cast<double>(parameter.columns()));
    numbers->fill(deviation, values, rows.elements());
    before = first + rows.elements();
  }
}

}  // namespace multihead::nn
