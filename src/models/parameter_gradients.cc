// parameters() and parameter_gradients(): the tensors of the files, and gradients with respect to
// them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/error/error.h"
#include "engine/runtime/scratch.h"
#include "models/metric.h"
#include "nn/call_memory.h"

namespace multihead::models {
namespace {

// Memory for the gradients of chosen parameters, in the form of the parameters.
class Gradients {
 public:
  // Takes memory for the parameters of these tensors. Errors: kMemory.
  Status allocate(const Model::Internals& model,
                  const std::vector<const StoredParameter*>& chosen) {
    of_ = model.parameters;
    return nn::reserve(memory_, [&](rules::Arena& take) {
      over_parameters(model.parameters, of_, [&](const auto& own, auto& gradient) {
        allocate(own, gradient, chosen, take);
      });
      bytes_ = take.bytes();
    });
  }
  void clear() { std::fill_n(static_cast<std::byte*>(memory_.data()), bytes_, std::byte{0}); }
  const Parameters& parameters() const { return of_; }

  // The rows of a tensor, as it is stored.
  void copy(const StoredParameter& stored, float* to) const {
    const int64_t count = stored.shape.elements();
    if (stored.vector != nullptr) {
      std::copy_n(places_.at(stored.vector) + stored.first, count, to);
      return;
    }
    const float* const from = places_.at(stored.matrix);
    const int64_t columns = stored.matrix->columns;
    if (!stored.transposed) {
      std::copy_n(from + stored.first * columns, count, to);
      return;
    }
    const int64_t outputs = count / stored.rows;
    for (int64_t row = 0; row < stored.rows; ++row) {
      for (int64_t out = 0; out < outputs; ++out)
        to[row * outputs + out] = from[out * columns + row];
    }
  }

 private:
  static bool is_chosen(const void* own, const std::vector<const StoredParameter*>& chosen) {
    return std::any_of(chosen.begin(), chosen.end(), [&](const StoredParameter* stored) {
      return stored->matrix == own || stored->vector == own;
    });
  }
  float* take_floats(const void* own, int64_t count, rules::Arena& take) {
    float* floats = nullptr;
    take(floats, static_cast<uint64_t>(count));
    places_[own] = floats;
    return floats;
  }
  void allocate(const Vector& own, Vector& gradient,
                const std::vector<const StoredParameter*>& chosen, rules::Arena& take) {
    gradient = {};
    if (is_chosen(&own, chosen)) gradient = {take_floats(&own, own.size, take), own.size};
  }
  void allocate(const WeightMatrix& own, WeightMatrix& gradient,
                const std::vector<const StoredParameter*>& chosen, rules::Arena& take) {
    gradient = {.rows = own.rows, .columns = own.columns};
    if (is_chosen(&own, chosen)) gradient.data = take_floats(&own, own.rows * own.columns, take);
  }

  Parameters of_;
  engine::Buffer memory_;
  uint64_t bytes_ = 0;
  std::map<const void*, float*> places_;  // by the model's vector or matrix
};

}  // namespace

std::vector<StoredTensor> parameters(const Model& model) {
  const Model::Internals* const m = Model::Internals::of(model);
  std::vector<StoredTensor> tensors;
  if (m == nullptr) return tensors;
  for (const StoredParameter& stored : m->stored)
    tensors.push_back({stored.name, {}, stored.shape});
  return tensors;
}

Status parameter_gradients(const Model& model, const ModelInputs& inputs, const Metric& metric,
                           std::span<const ParameterGradient> outputs, Context& context) {
  return engine::memory_guard([&]() -> Status {
    Question question;
    MULTIHEAD_TRY(ask_one(model, inputs, metric, question));
    const Model::Internals& m = *question.model;
    std::vector<const StoredParameter*> chosen;
    for (size_t at = 0; at < outputs.size(); ++at) {
      const auto& [name, out] = outputs[at];
      const std::string argument = "outputs[" + std::to_string(at) + "]";
      const auto found = std::find_if(m.stored.begin(), m.stored.end(),
                                      [&](const auto& stored) { return stored.name == name; });
      if (found == m.stored.end()) {
        return {StatusCode::kOption, argument + ".name", "a tensor that the model uses", name};
      }
      if (out.data == nullptr || !(out.shape == found->shape) ||
          !(out.strides == contiguous_strides(found->shape))) {
        return {StatusCode::kShape, argument + ".out", found->shape.to_string() + ", contiguous",
                out.data == nullptr ? "none" : out.shape.to_string()};
      }
      chosen.push_back(&*found);
    }
    Gradients gradients;
    MULTIHEAD_TRY(gradients.allocate(m, chosen));
    gradients.clear();
    const Parameters& d = gradients.parameters();
    const Projection output = m.parameters.output.given()
                                  ? d.output
                                  : Projection{.weight = d.embedding, .bias = d.output.bias};
    MULTIHEAD_TRY(differentiate(
        m, question.pass,
        [&](const Tensor& state, const Tensor& gradient) {
          return question.metric.differentiate(state, inputs.ids, gradient, context, output);
        },
        {}, context, &d));
    for (size_t at = 0; at < chosen.size(); ++at) gradients.copy(*chosen[at], outputs[at].out.data);
    return {};
  });
}

}  // namespace multihead::models
