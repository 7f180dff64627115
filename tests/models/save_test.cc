// Saves every golden model as it is in memory, and opens it again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/golden_models.h"
#include "multihead/model_training.h"
#include "multihead/models.h"
#include "multihead/safetensors.h"
#include "support/temporary_folder.h"

namespace multihead::testing::save_test {
namespace {

using models::Model;
using models::OpenOptions;
namespace fs = std::filesystem;

std::vector<float> state_of(const Model& model) {
  Context context(1);
  const models::ModelInfo& info = model.info();
  std::vector<int32_t> ids;
  std::vector<float> pixels;
  models::ModelInputs inputs;
  int64_t tokens = 9;
  if (info.takes_pixels) {
    tokens = info.max_tokens;
    for (int64_t i = 0; i < info.channels * info.image_size * info.image_size; ++i)
      pixels.push_back(static_cast<float>(i % 17) / 17.0F);
    inputs.pixels = pixels;
  } else {
    for (int32_t i = 0; i < tokens; ++i) ids.push_back(3 + 4 * i);
    inputs.ids = ids;
    if (info.has_encoder) inputs.source = ids;
  }
  std::vector<float> state(static_cast<size_t>(tokens * info.embed_dim));
  const Status status = model.forward(
      inputs, {.last_hidden_state = {state.data(), {1, tokens, info.embed_dim}}}, context);
  if (!status.ok()) ADD_FAILURE() << status.message();
  return state;
}

Model opened(const std::string& folder, const OpenOptions& options) {
  Model model;
  const Status status = models::open(folder, options, model);
  if (!status.ok()) ADD_FAILURE() << status.message();
  return model;
}

// Writes the weights, and copies the settings of the folder `from`.
void save(const Model& model, SafetensorsType type, const std::string& from,
          const TemporaryFolder& to) {
  for (const char* const name : {"config.json", "modules.json", "preprocessor_config.json"}) {
    if (fs::exists(fs::path(from) / name))
      fs::copy_file(fs::path(from) / name, to.path() / name, fs::copy_options::overwrite_existing);
  }
  const Status status = models::save_weights(model, type, to.file("model.safetensors"));
  if (!status.ok()) ADD_FAILURE() << status.message();
}

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(model_folder(""))) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  return names;
}

struct Types {
  std::optional<WeightType> weights, embedding;
};
constexpr Types kTypes[] = {{},
                            {WeightType::kF32, {}},
                            {WeightType::kF16, {}},
                            {WeightType::kBF16, {}},
                            {WeightType::kInt8, {}},
                            {WeightType::kInt4, WeightType::kInt8},
                            {WeightType::kInt8, WeightType::kF16},
                            {WeightType::kInt4, {}}};

TEST(SaveWeights, AsInMemoryGivesTheSameModelAgain) {
  const std::vector<std::string> names = golden_names();
  ASSERT_GT(names.size(), 20U);
  for (const std::string& name : names) {
    for (const auto& [weights, embedding] : kTypes) {
      const std::string what = name + " " + (weights ? name_of(*weights) : "stored") + " " +
                               (embedding ? name_of(*embedding) : "");
      OpenOptions options;
      options.weights = weights;
      options.embedding_weights = embedding;
      const Model model = opened(model_folder(name), options);
      if (model.info().has_images) continue;  // one of two towers is not saved alone
      const TemporaryFolder folder;
      save(model, SafetensorsType::kAsGiven, model_folder(name), folder);
      const std::vector<float> want = state_of(model);
      for (const bool keep_mapped : {false, true}) {
        OpenOptions again;
        again.keep_mapped = keep_mapped;
        const Model reopened = opened(folder.path().string(), again);
        EXPECT_EQ(reopened.info().weight_bytes, model.info().weight_bytes) << what;
        EXPECT_EQ(reopened.info().parameters, model.info().parameters) << what;
        const std::vector<float> got = state_of(reopened);
        ASSERT_EQ(got.size(), want.size()) << what;
        // Gemma stores gains minus 1, and the subtraction rounds. Matrices that are stacked or not
        // give the same numbers.
        const float tolerance = name.starts_with("gemma") ? 2e-4F : 0.0F;
        for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance) << what;
      }
    }
  }
}

TEST(SaveWeights, OfRowsOfBlocksAreNumbersForOtherTypes) {
  // GPT-2 stores matrices transposed, but not rows of blocks.
  for (const std::string name : {"gpt2", "llama3", "bert"}) {
    for (const WeightType type : {WeightType::kInt8, WeightType::kInt4}) {
      OpenOptions options;
      options.weights = type;
      const Model model = opened(model_folder(name), options);
      const TemporaryFolder rows, numbers, again;
      save(model, SafetensorsType::kAsGiven, model_folder(name), rows);
      save(model, SafetensorsType::kF32, model_folder(name), numbers);
      OpenOptions f32;
      f32.weights = WeightType::kF32;
      const Model by_rows = opened(rows.path().string(), f32);
      EXPECT_EQ(state_of(by_rows), state_of(opened(numbers.path().string(), {}))) << name;
      save(opened(rows.path().string(), {}), SafetensorsType::kF32, model_folder(name), again);
      Safetensors one, other;
      ASSERT_TRUE(Safetensors::read(numbers.file("model.safetensors"), one).ok());
      ASSERT_TRUE(Safetensors::read(again.file("model.safetensors"), other).ok());
      ASSERT_EQ(one.entries().size(), other.entries().size());
      for (const auto& [tensor, entry] : one.entries()) {
        const SafetensorsEntry* const found = other.find(tensor);
        ASSERT_NE(found, nullptr) << tensor;
        EXPECT_EQ(found->shape, entry.shape) << tensor;
        EXPECT_TRUE(std::equal(entry.data.begin(), entry.data.end(), found->data.begin(),
                               found->data.end()))
            << tensor;
      }
    }
  }
}

TEST(SaveWeights, WritesRowsOfBytes) {
  OpenOptions options;
  options.weights = WeightType::kInt4;
  options.embedding_weights = WeightType::kInt8;
  const Model model = opened(model_folder("llama3"), options);
  std::vector<std::byte> bytes;
  ASSERT_TRUE(models::save_weights(model, SafetensorsType::kAsGiven, bytes).ok());
  Safetensors file;
  ASSERT_TRUE(Safetensors::parse(bytes, file).ok());
  const auto shape_of = [&](const char* name) {
    const SafetensorsEntry* const entry = file.find(name);
    return entry == nullptr ? Dims() : entry->shape;
  };
  // 16 columns are one block.
  EXPECT_EQ(shape_of("model.layers.0.self_attn.q_proj.weight"), (Dims{16, 18}));
  EXPECT_EQ(shape_of("model.embed_tokens.weight"), (Dims{120, 34}));
  EXPECT_EQ(shape_of("lm_head.weight"), (Dims{120, 34}));
  EXPECT_EQ(shape_of("model.norm.weight"), (Dims{16}));
}

}  // namespace
}  // namespace multihead::testing::save_test
