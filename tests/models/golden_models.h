// The golden models of tests/conformance/models, for tests of the library multihead::models.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
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

// A golden model in which `change` has changed the bytes of tensors, and `reshape` their shapes.
inline models::Model open_changed(
    const std::string& name,
    const std::function<void(const std::string& tensor, std::span<std::byte> bytes)>& change,
    const std::function<Dims(const Dims&)>& reshape = [](const Dims& shape) { return shape; }) {
  models::Config config;
  Safetensors file;
  models::ModelLoader loader;
  models::Model model;
  EXPECT_TRUE(models::read_config(model_folder(name) + "/config.json", config).ok());
  EXPECT_TRUE(Safetensors::read(model_folder(name) + "/model.safetensors", file).ok());
  std::vector<models::StoredTensor> tensors;
  std::vector<std::vector<std::byte>> bytes;
  for (const auto& [tensor, entry] : file.entries()) {
    using Type = SafetensorsEntry::Type;
    const char* const half = entry.type == Type::kBF16 ? "BF16" : "F16";
    tensors.push_back({tensor, entry.type == Type::kF32 ? "F32" : half, reshape(entry.shape)});
    const auto* const data = reinterpret_cast<const std::byte*>(entry.data.data());
    bytes.emplace_back(data, data + entry.data.size());
    change(tensor, bytes.back());
  }
  Status status = models::ModelLoader::create(config, tensors, {}, loader);
  for (const size_t i : loader.needed()) {
    if (status.ok()) status = loader.give(i, bytes[i]);
  }
  if (status.ok()) status = loader.finish(model);
  if (!status.ok()) ADD_FAILURE() << name << ": " << status.message();
  return model;
}

// Makes the last numbers of a tensor NaN.
inline void break_last(std::span<std::byte> bytes) {
  for (std::byte& byte : bytes.last(4)) byte = std::byte{0xFF};
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
