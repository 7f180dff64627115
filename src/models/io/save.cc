// save_weights(): the weights of a model as a file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/error/error.h"
#include "models/parameters.h"
#include "models/stored_blocks.h"
#include "multihead/model_training.h"
#include "rules/element.h"

namespace multihead::models {
namespace {

// Rows of blocks with their scales in the order of files.
ConstAnyTensor in_order_of_files(ConstAnyTensor tensor, const WeightMatrix& matrix,
                                 std::vector<std::vector<std::byte>>& turned) {
  if (rules::kOrderOfFiles || tensor.dtype != DType::kInt8) return tensor;
  const auto* const from = static_cast<const std::byte*>(tensor.data);
  std::vector<std::byte>& bytes = turned.emplace_back(from, from + tensor.shape.elements());
  for (int64_t row = 0; row < tensor.shape[0]; ++row)
    turn_scales(matrix.type, bytes.data() + row * tensor.shape[1], matrix.columns);
  tensor.data = bytes.data();
  return tensor;
}

// `to`: a path, or bytes.
template <class To>
Status save(const Model& model, SafetensorsType type, To& to) {
  return engine::memory_guard([&]() -> Status {
    const Model::Internals* const m = Model::Internals::of(model);
    if (m == nullptr) return {StatusCode::kOption, "model", "one that was opened", "none"};
    if (m->architecture.has_towers) {
      return {StatusCode::kOption, "model", "one of one tower", m->info.model_type + ", with two"};
    }
    std::vector<std::vector<float>> values;
    std::vector<std::vector<std::byte>> turned;
    StateDict dict;
    for (const StoredParameter& stored : m->stored) {
      const bool is_dense = std::any_of(m->sentence.steps.begin(), m->sentence.steps.end(),
                                        [&](const SentenceStep& step) {
                                          // A projection of the model itself has no folder.
                                          return step.name.find('/') != std::string::npos &&
                                                 stored.name.starts_with(step.name + ".");
                                        });
      if (is_dense) continue;
      const bool keeps = type == SafetensorsType::kAsGiven;
      if (const ConstAnyTensor same = as_in_memory(stored); keeps && same.data != nullptr) {
        dict.emplace(stored.name, in_order_of_files(same, *stored.matrix, turned));
        continue;
      }
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
