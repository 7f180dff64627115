// save_weights(): the weights of a model as a file.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "engine/error/error.h"
#include "models/parameters.h"
#include "multihead/model_training.h"

namespace multihead::models {
namespace {

// `to`: a path, or bytes.
template <class To>
Status save(const Model& model, SafetensorsType type, To& to) {
  return engine::memory_guard([&]() -> Status {
    const Model::Internals* const m = Model::Internals::of(model);
    if (m == nullptr) return {StatusCode::kOption, "model", "one that was opened", "none"};
    std::vector<std::vector<float>> values;
    StateDict dict;
    for (const StoredParameter& stored : m->stored) {
      const bool is_dense = std::any_of(m->sentence.steps.begin(), m->sentence.steps.end(),
                                        [&](const SentenceStep& step) {
                                          // A projection of the model itself has no folder.
                                          return step.name.find('/') != std::string::npos &&
                                                 stored.name.starts_with(step.name + ".");
                                        });
      if (is_dense) continue;
      float* const to_values =
          values.emplace_back(static_cast<size_t>(stored.shape.elements())).data();
      MULTIHEAD_TRY(read_stored(stored, to_values));
      dict.emplace(stored.name, ConstTensor(to_values, stored.shape));
    }
    return write_safetensors(dict, type, to);
  });
}

}  // namespace

Status save_weights(const Model& model, SafetensorsType type, const std::string& path) {
  return save(model, type, path);
}

Status save_weights(const Model& model, SafetensorsType type, std::vector<std::byte>& bytes) {
  return save(model, type, bytes);
}

}  // namespace multihead::models
