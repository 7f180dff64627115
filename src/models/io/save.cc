// save_weights(): the weights of a model as a file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "engine/error/error.h"
#include "models/parameters.h"
#include "multihead/model_training.h"

namespace multihead::models {
namespace {

// The numbers of a tensor, as it is stored.
Status read_stored(const StoredParameter& stored, std::vector<float>& values) {
  const auto count = static_cast<size_t>(stored.shape.elements());
  values.resize(count);
  if (stored.vector != nullptr) {
    std::copy_n(stored.vector->data + stored.first, count, values.begin());
    for (float& value : values) value -= stored.plus_one ? 1.0F : 0.0F;
    return {};
  }
  const int64_t columns = stored.matrix->columns;
  const auto outputs = static_cast<int64_t>(count) / columns;
  std::vector<int32_t> rows(static_cast<size_t>(outputs));
  std::iota(rows.begin(), rows.end(), static_cast<int32_t>(stored.first));
  MULTIHEAD_TRY(dequantize(*stored.matrix, rows, {values.data(), {outputs, columns}}));
  if (!stored.transposed) return {};
  const std::vector<float> turned = values;
  for (int64_t row = 0; row < columns; ++row) {
    for (int64_t out = 0; out < outputs; ++out) {
      values[static_cast<size_t>(row * outputs + out)] =
          turned[static_cast<size_t>(out * columns + row)];
    }
  }
  return {};
}

}  // namespace

Status save_weights(const Model& model, SafetensorsType type, const std::string& path) {
  return engine::memory_guard([&]() -> Status {
    const Model::Internals* const m = Model::Internals::of(model);
    if (m == nullptr) return {StatusCode::kOption, "model", "one that was opened", "none"};
    std::vector<std::vector<float>> values(m->stored.size());
    StateDict dict;
    for (size_t at = 0; at < m->stored.size(); ++at) {
      MULTIHEAD_TRY(read_stored(m->stored[at], values[at]));
      dict.emplace(m->stored[at].name, ConstTensor(values[at].data(), m->stored[at].shape));
    }
    return write_safetensors(dict, type, path);
  });
}

}  // namespace multihead::models
