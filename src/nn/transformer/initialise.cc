#include "nn/transformer/initialise.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "engine/error.h"
#include "rules/random_normal.h"

namespace multihead::nn {
namespace {

// The standard deviation of a parameter's elements, times sqrt(columns); 0 for parameters that are
// not random.
float factor_of(ParameterRole role, const Initialisation& initialisation) {
  switch (role) {
    case ParameterRole::kEmbedding:
      return initialisation.embedding;
    case ParameterRole::kWeight:
    case ParameterRole::kAppended:
      return initialisation.weight;
    case ParameterRole::kResidualWeight:
      return initialisation.residual;
    case ParameterRole::kOutput:
      return initialisation.output;
    case ParameterRole::kBias:
    case ParameterRole::kGain:
    case ParameterRole::kSink:
      break;
  }
  return 0.0F;
}

}  // namespace

Status validate_initialisation(const Initialisation& initialisation) {
  using engine::Name;
  for (const auto& [name, factor] : {std::pair{Name::kEmbedding, initialisation.embedding},
                                     {Name::kWeight, initialisation.weight},
                                     {Name::kResidual, initialisation.residual},
                                     {Name::kOutput, initialisation.output}}) {
    if (factor >= 0.0F && !std::isinf(factor)) continue;
    return engine::real_error(name, engine::Message::kFiniteNotNegative,
                              static_cast<double>(factor));
  }
  return {};
}

void initialise(const Initialisation& initialisation, Parameters& parameters) {
  uint64_t stream = 0;
  for (const Parameter& parameter : parameters.list()) {
    const int64_t count = parameter.shape.elements();
    float* const values = parameters.values() + parameter.offset;
    const auto factor = static_cast<double>(factor_of(parameter.role, initialisation));
    if (factor > 0.0) {
      const double deviation = factor / std::sqrt(static_cast<double>(parameter.columns()));
      rules::fill_normal(initialisation.seed, stream, deviation, values, count);
    } else {
      std::fill_n(values, count, parameter.role == ParameterRole::kGain ? 1.0F : 0.0F);
    }
    ++stream;
  }
}

}  // namespace multihead::nn
