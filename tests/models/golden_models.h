// The golden models of tests/conformance/models, for tests of the library multihead::models.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "multihead/models.h"
#include "multihead/safetensors.h"

namespace multihead::testing {

inline std::string model_folder(const std::string& name) {
  return std::string(MULTIHEAD_CONFORMANCE_FOLDER) + "/models/" + name;
}

inline models::Model open_golden(const std::string& name, const models::OpenOptions& options = {}) {
  models::Model model;
  const Status status = models::open(model_folder(name), options, model);
  if (!status.ok()) ADD_FAILURE() << name << ": " << status.message();
  return model;
}

// The ids of a case of a golden model.
inline std::vector<int32_t> golden_ids(const std::string& name, const std::string& tensor) {
  Safetensors file;
  if (!Safetensors::read(model_folder(name) + "/expected.safetensors", file).ok()) return {};
  const SafetensorsEntry* const entry = file.find(tensor);
  if (entry == nullptr) return {};
  std::vector<int32_t> ids(entry->data.size() / sizeof(int32_t));
  if (!ids.empty()) std::memcpy(ids.data(), entry->data.data(), entry->data.size());
  return ids;
}

// Logits of a language model (N, vocab_size).
inline std::vector<float> logits_of(const models::Model& model, const std::vector<int32_t>& ids,
                                    Context& context) {
  const auto tokens = static_cast<int64_t>(ids.size());
  std::vector<float> logits(static_cast<size_t>(tokens * model.info().vocab_size));
  const Status status = model.forward(
      {.ids = ids}, {.logits = {logits.data(), {1, tokens, model.info().vocab_size}}}, context);
  if (!status.ok()) ADD_FAILURE() << status.message();
  return logits;
}

}  // namespace multihead::testing
