// Models whose matrices leave while they are read.
#include "webgpu/device_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/golden_models.h"
#include "models/loader.h"
#include "multihead/models.h"
#include "multihead/safetensors.h"
#include "webgpu/model_buffers.h"
#include "webgpu/operations.h"
#include "webgpu/plan_checks.h"

namespace multihead::device_model_test {
namespace {

using models::Model;
using models::ModelLoader;

struct Loaded {
  Model model;
  webgpu::DeviceModel device;
  std::vector<std::vector<uint32_t>> buffers;
};

// Reads a golden model in pieces, and collects the pieces for the GPU.
Loaded load(const std::string& name, const models::OpenOptions& options) {
  Loaded made;
  models::Config config;
  Safetensors file;
  ModelLoader loader;
  const std::string folder = testing::model_folder(name);
  EXPECT_TRUE(models::read_config(folder + "/config.json", config).ok());
  EXPECT_TRUE(Safetensors::read(folder + "/model.safetensors", file).ok());
  std::vector<models::StoredTensor> tensors;
  std::vector<std::span<const std::byte>> bytes;
  for (const auto& [tensor, entry] : file.entries()) {
    using Type = SafetensorsEntry::Type;
    const char* const half = entry.type == Type::kBF16 ? "BF16" : "F16";
    tensors.push_back({tensor, entry.type == Type::kF32 ? "F32" : half, entry.shape});
    bytes.push_back(std::as_bytes(std::span(entry.data)));
  }
  EXPECT_TRUE(ModelLoader::create(config, tensors, options, loader).ok());
  const Status status = webgpu::DeviceModel::create(loader, made.device);
  EXPECT_TRUE(status.ok()) << status.message();
  const webgpu::ModelBuffers& buffers = made.device.buffers();
  for (uint32_t buffer = 0; buffer < buffers.count(); ++buffer) {
    made.buffers.emplace_back(buffers.words(buffer));
  }
  const auto send_ready = [&](ModelLoader* from) {
    while (const uint32_t buffer = made.device.ready(from)) {
      webgpu::MatrixPiece piece;
      std::vector<uint32_t>& words = made.buffers[buffer];
      while (made.device.send(from, buffer, piece)) {
        EXPECT_LE(piece.first_unit + piece.units.size(), words.size());
        std::copy(piece.units.begin(), piece.units.end(),
                  words.begin() + static_cast<ptrdiff_t>(piece.first_unit));
        std::copy(piece.scales.begin(), piece.scales.end(),
                  words.begin() + static_cast<ptrdiff_t>(piece.first_scale));
      }
      if (from != nullptr) EXPECT_EQ(buffers.matrices()[buffer - 1]->data, nullptr);
    }
  };
  for (const size_t tensor : loader.needed()) {
    const size_t half = bytes[tensor].size() / 2;
    EXPECT_TRUE(loader.give(tensor, bytes[tensor].first(half)).ok());
    send_ready(&loader);
    EXPECT_TRUE(loader.give(tensor, bytes[tensor].subspan(half)).ok());
    send_ready(&loader);
  }
  EXPECT_TRUE(loader.finish(made.model).ok());
  send_ready(nullptr);
  return made;
}

TEST(DeviceModel, GetsTheMatricesOfTheModel) {
  for (const char* name : {"llama3", "gpt2", "bert_masked"}) {
    for (const auto weights : {std::optional<WeightType>(), std::optional(WeightType::kInt8),
                               std::optional(WeightType::kInt4)}) {
      SCOPED_TRACE(name);
      const Loaded loaded = load(name, {.weights = weights});
      const Model whole = testing::open_golden(name, {.weights = weights});
      const webgpu::ModelBuffers buffers(*Model::Internals::of(whole));
      ASSERT_EQ(buffers.count(), loaded.device.buffers().count());
      EXPECT_EQ(loaded.device.buffers().vectors(), buffers.vectors());
      for (uint32_t buffer = 1; buffer < buffers.count(); ++buffer) {
        const WeightMatrix& matrix = *buffers.matrices()[buffer - 1];
        const auto form = webgpu::ModelBuffers::form_of(matrix);
        std::vector<uint32_t> words(form.words());
        webgpu::pack_rows(matrix, 0, matrix.rows, words.data(), words.data() + form.first_scale());
        EXPECT_EQ(loaded.buffers[buffer], words) << buffer;
      }
    }
  }
}

TEST(DeviceModel, ASessionWithEditedWeightsReadsItsCaches) {
  Loaded loaded = load("llama3", {});
  const webgpu::Device device;
  Context context(1);
  const models::ModelInfo& info = loaded.model.info();
  for (const auto& [site, type] :
       {std::pair(models::Site::kScores, DType::kF32), {models::Site::kPattern, DType::kF16}}) {
    models::Session session;
    models::Edit edit{.site = site, .layer = 1, .action = models::Edit::Action::kScale};
    const models::SessionOptions options{.capacity = 20, .cache_type = type, .edits = {edit}};
    ASSERT_TRUE(loaded.device.create_session(loaded.model, options, session).ok());
    std::vector<uint64_t> operands;
    for (const auto& words : loaded.buffers) operands.push_back(words.size());
    const int64_t numbers = info.num_kv_heads * info.head_dim * 20;
    operands.insert(operands.end(), static_cast<size_t>(2 * info.num_layers),
                    static_cast<uint64_t>(numbers / (type == DType::kF32 ? 1 : 2)));
    const size_t given = operands.size();
    operands.push_back(static_cast<uint64_t>(info.vocab_size));
    const std::vector<int32_t> ids = {3, 1, 4, 1, 5};
    for (const size_t count : {size_t{4}, size_t{1}}) {
      webgpu::Plan plan;
      ASSERT_TRUE(
          loaded.device.append(session, std::span(ids).first(count), device, plan, context).ok());
      testing::check_plan(plan, operands, given, device);
      const auto weighted =
          std::find_if(plan.dispatches.begin(), plan.dispatches.end(),
                       [](const auto& each) { return each.kernel == webgpu::Kernel::kWeighted; });
      ASSERT_NE(weighted, plan.dispatches.end());
      EXPECT_EQ(testing::block_of<webgpu::WeightedBlock>(*weighted).keys, session.length());
    }
  }
}

TEST(DeviceModel, ASessionPlansItsNextTokens) {
  Loaded loaded = load("llama3", {});
  const webgpu::Device device;
  Context context(1);
  models::Session session;
  ASSERT_TRUE(loaded.device.create_session(loaded.model, {.capacity = 20}, session).ok());
  const std::vector<int32_t> ids = testing::golden_ids("llama3", "long.input_ids");
  std::vector<uint64_t> operands;
  for (const auto& words : loaded.buffers) operands.push_back(words.size());
  const models::ModelInfo& info = loaded.model.info();
  operands.insert(operands.end(), static_cast<size_t>(2 * info.num_layers),
                  static_cast<uint64_t>(info.num_kv_heads * info.head_dim * 20));
  const size_t given = operands.size();
  operands.push_back(static_cast<uint64_t>(info.vocab_size));
  const auto append = [&](size_t first, size_t count, webgpu::Plan& plan) {
    return loaded.device.append(session, std::span(ids).subspan(first, count), device, plan,
                                context);
  };
  for (const size_t count : {12U, 1U, 3U}) {
    webgpu::Plan plan;
    const Status status = append(static_cast<size_t>(session.length()), count, plan);
    ASSERT_TRUE(status.ok()) << status.message();
    testing::check_plan(plan, operands, given, device);
  }
  EXPECT_EQ(session.length(), 16);
  webgpu::Plan plan;
  EXPECT_EQ(append(0, 5, plan).code(), StatusCode::kOption);  // beyond the capacity
  ASSERT_TRUE(session.truncate(3).ok());
  EXPECT_TRUE(append(3, 2, plan).ok());
  EXPECT_EQ(session.length(), 5);
  models::Session other;
  EXPECT_EQ(session.fork(2, 0, other).code(), StatusCode::kOption);
}

TEST(DeviceModel, TheCpuFinishesClassesAndVectors) {
  Context context(1);
  for (const char* name : {"bert_classes", "modernbert_classes", "mistral_classes"}) {
    Loaded loaded = load(name, {});
    const Model whole = testing::open_golden(name);
    const std::vector<int32_t> ids = {3, 7, 1, 4};
    const models::ModelInputs inputs{.ids = ids};
    const int64_t width = whole.info().embed_dim, labels = whole.info().num_labels;
    std::vector<float> state(static_cast<size_t>(4 * width));
    std::vector<float> expected(static_cast<size_t>(labels)), got(expected.size());
    const Tensor rows(state.data(), {1, 4, width});
    ASSERT_TRUE(whole
                    .forward(inputs,
                             {.last_hidden_state = rows, .logits = {expected.data(), {1, labels}}},
                             context)
                    .ok());
    ASSERT_TRUE(loaded.device
                    .finish_forward(inputs, {state.data(), {4, width}},
                                    {.logits = {got.data(), {1, labels}}}, context)
                    .ok());
    EXPECT_EQ(got, expected) << name;
    std::vector<float> vector(static_cast<size_t>(whole.info().vector_dim)), own(vector.size());
    const Dims shape{1, whole.info().vector_dim};
    ASSERT_TRUE(whole.embed(inputs, {.normalize = true}, {vector.data(), shape}, context).ok());
    ASSERT_TRUE(loaded.device
                    .finish_embed(inputs, whole.info().pooling, true, {state.data(), {4, width}},
                                  {own.data(), shape}, context)
                    .ok());
    EXPECT_EQ(own, vector) << name;
  }
}

}  // namespace
}  // namespace multihead::device_model_test
