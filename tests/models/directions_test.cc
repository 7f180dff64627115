// Sparse autoencoders: the table directions_cases.json, which the package's test reads, too.
#include "multihead/directions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "models/golden_models.h"
#include "multihead/models.h"
#include "multihead/safetensors.h"
#include "support/temporary_folder.h"

namespace multihead::testing {
namespace {

using models::Edit;
using models::SparseAutoencoder;
using nlohmann::json;

json table() {
  const std::filesystem::path folder = std::filesystem::path(MULTIHEAD_FOLDER_CASES).parent_path();
  return json::parse(std::ifstream(folder / "directions_cases.json"));
}

json case_named(const std::string& name) {
  const json all = table();
  for (const json& each : all["cases"]) {
    if (each["name"] == name) return each;
  }
  ADD_FAILURE() << name;
  return {};
}

// The numbers of a vector or a matrix.
std::vector<float> numbers_of(const json& value) {
  std::vector<float> all;
  for (const json& each : value) {
    if (!each.is_array()) all.push_back(each.get<float>());
    if (each.is_array()) all.insert(all.end(), each.begin(), each.end());
  }
  return all;
}
Dims shape_of(const json& value) {
  Dims shape{static_cast<int64_t>(value.size())};
  if (value[0].is_array()) shape.push_back(static_cast<int64_t>(value[0].size()));
  return shape;
}

// Members of `changes` replace members of `object`; null removes them.
json with_changes(json object, const json& changes) {
  for (const auto& [name, value] : changes.items()) {
    if (value.is_null()) object.erase(name);
    if (!value.is_null()) object[name] = value;
  }
  return object;
}

Status open_of(const json& cfg, const json& tensors, SparseAutoencoder& result,
               SafetensorsType type = SafetensorsType::kF32) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "cfg.json") << cfg.dump();
  std::map<std::string, std::vector<float>> numbers;
  StateDict dict;
  for (const auto& [name, tensor] : tensors.items()) {
    numbers[name] = numbers_of(tensor);
    dict[name] = ConstTensor(numbers[name].data(), shape_of(tensor));
  }
  EXPECT_TRUE(write_safetensors(dict, type, folder.file("sae_weights.safetensors")).ok());
  return SparseAutoencoder::open(folder.path().string(), result);
}

void expect_floats(const std::vector<float>& got, const json& expected) {
  const std::vector<float> wanted = numbers_of(expected);
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], wanted[i], 2e-5 * (1 + std::abs(wanted[i]))) << i;
  }
}

// The rows of a case, and memory for its features.
struct Arrays {
  explicit Arrays(const json& each)
      : rows(numbers_of(each["rows"])),
        shape(shape_of(each["rows"])),
        features_shape(shape_of(each["features"])),
        features(static_cast<size_t>(features_shape.elements())),
        decoded(rows.size()) {}

  ConstTensor rows_view() const { return {rows.data(), shape}; }
  Tensor features_view() { return {features.data(), features_shape}; }
  Tensor decoded_view() { return {decoded.data(), shape}; }

  std::vector<float> rows;
  Dims shape, features_shape;
  std::vector<float> features, decoded;
};

TEST(Directions, HaveTheFeaturesOfTheirDefinition) {
  Context context(1);
  constexpr const char* kArchitectures[] = {"standard", "jumprelu", "topk", "gated"};
  const json all = table();
  for (const json& each : all["cases"]) {
    for (const auto type : {SafetensorsType::kF32, SafetensorsType::kBF16}) {
      SCOPED_TRACE(each["name"].get<std::string>());
      SparseAutoencoder autoencoder;
      Status status = open_of(each["cfg"], each["tensors"], autoencoder, type);
      ASSERT_TRUE(status.ok()) << status.message();
      const models::SparseAutoencoderInfo info = autoencoder.info();
      EXPECT_EQ(kArchitectures[static_cast<int>(info.architecture)], each["info"]["architecture"]);
      EXPECT_EQ(models::name_of(info.site), each["info"]["site"]);
      EXPECT_EQ(info.layer, each["info"]["layer"]);
      EXPECT_EQ(info.width, each["info"]["width"]);
      EXPECT_EQ(info.features, each["info"]["features"]);

      Arrays arrays(each);
      status = autoencoder.encode(arrays.rows_view(), arrays.features_view(), context);
      ASSERT_TRUE(status.ok()) << status.message();
      expect_floats(arrays.features, each["features"]);
      status = autoencoder.decode(arrays.features_view(), arrays.decoded_view(), context,
                                  arrays.rows_view());
      ASSERT_TRUE(status.ok()) << status.message();
      expect_floats(arrays.decoded, each["decoded"]);

      std::vector<float> value;
      Edit edit;
      status = autoencoder.edit(each["edit"]["feature"], each["edit"]["strength"], value, edit, 2);
      ASSERT_TRUE(status.ok()) << status.message();
      expect_floats(value, each["edit"]["value"]);
      EXPECT_EQ(edit.value.data, value.data());
      const Dims vector = info.site == models::Site::kZ ? Dims{2, 3} : Dims{6};
      EXPECT_EQ(edit.value.shape, vector);
      EXPECT_EQ(edit.action, Edit::Action::kAdd);
    }
  }
}

TEST(Directions, RefuseWrongFilesInOneSentence) {
  const json all = table();
  for (const json& each : all["errors"]) {
    SCOPED_TRACE(each["name"].get<std::string>());
    const json base = case_named(each["base"]);
    SparseAutoencoder autoencoder;
    const Status status = open_of(with_changes(base["cfg"], each["cfg"]),
                                  with_changes(base["tensors"], each["tensors"]), autoencoder);
    EXPECT_EQ(status.message(), each["message"].get<std::string>());
    EXPECT_EQ(autoencoder.info().width, 0);
  }
  SparseAutoencoder autoencoder;
  const TemporaryFolder folder;
  Status status = SparseAutoencoder::open(folder.path().string(), autoencoder);
  EXPECT_EQ(status.code(), StatusCode::kFormat);
  EXPECT_NE(status.argument().find("cfg.json"), std::string::npos) << status.message();
  std::ofstream(folder.path() / "cfg.json") << case_named("standard")["cfg"].dump();
  status = SparseAutoencoder::open(folder.path().string(), autoencoder);
  EXPECT_EQ(status.code(), StatusCode::kFormat);
  EXPECT_NE(status.message().find("sae_weights.safetensors"), std::string::npos)
      << status.message();

  // From given bytes, which a JSON text cannot make infinite.
  const json tensors = case_named("standard")["tensors"];
  models::Config config;
  config["cfg.json/d_in"] = {models::ConfigValue::Kind::kNumber, 6.0};
  config["cfg.json/d_sae"] = {models::ConfigValue::Kind::kNumber, 9.0};
  config["cfg.json/hook_name"] = {models::ConfigValue::Kind::kText, 0, "blocks.0.hook_resid_pre"};
  std::map<std::string, std::vector<float>> numbers;
  StateDict dict;
  for (const auto& [name, tensor] : tensors.items()) {
    numbers[name] = numbers_of(tensor);
    dict[name] = ConstTensor(numbers[name].data(), shape_of(tensor));
  }
  numbers["b_enc"][8] = std::numeric_limits<float>::infinity();
  std::vector<std::byte> bytes;
  ASSERT_TRUE(write_safetensors(dict, SafetensorsType::kAsGiven, bytes).ok());
  Safetensors weights;
  ASSERT_TRUE(Safetensors::parse(bytes, weights).ok());
  status = SparseAutoencoder::create(config, weights, autoencoder);
  EXPECT_EQ(status.message(), "b_enc: expected finite numbers, got NaN or an infinity");
}

TEST(Directions, RefuseWrongArgumentsInOneSentence) {
  Context context(1);
  SparseAutoencoder none, autoencoder, heads, normalized;
  const json each = case_named("standard"), gated = case_named("gated"),
             norm = case_named("standard with constant_norm_rescale");
  ASSERT_TRUE(open_of(each["cfg"], each["tensors"], autoencoder).ok());
  ASSERT_TRUE(open_of(gated["cfg"], gated["tensors"], heads).ok());
  ASSERT_TRUE(open_of(norm["cfg"], norm["tensors"], normalized).ok());
  Arrays arrays(each);
  const auto encode = [&](const SparseAutoencoder& with, const ConstTensor& rows,
                          const Tensor& features) {
    return with.encode(rows, features, context).message();
  };
  const ConstTensor rows = arrays.rows_view();
  const Tensor features = arrays.features_view();
  EXPECT_EQ(encode(none, rows, features), "autoencoder: expected one that was opened, got none");
  EXPECT_EQ(encode(autoencoder, {rows.data, {2, 9}}, features),
            "rows: expected (rows, 6), contiguous, got (2, 9)");
  EXPECT_EQ(encode(autoencoder, rows, {features.data, {2, 9}}),
            "features: expected (3, 9), contiguous, got (2, 9)");
  EXPECT_EQ(normalized.decode(features, arrays.decoded_view(), context).message(),
            "encoded: expected (3, 6), contiguous, got none");
  arrays.rows[4] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(encode(autoencoder, rows, features),
            "rows: expected finite numbers, got NaN or an infinity");
  for (const float number : arrays.features) EXPECT_EQ(number, 0.0F);

  std::vector<float> value;
  Edit edit;
  EXPECT_EQ(autoencoder.edit(9, 1, value, edit).message(), "feature: expected 0 to 8, got 9");
  EXPECT_EQ(autoencoder.edit(-1, 1, value, edit).message(), "feature: expected 0 to 8, got -1");
  EXPECT_EQ(autoencoder.edit(0, std::numeric_limits<float>::infinity(), value, edit).message(),
            "strength: expected a finite number, got NaN or an infinity");
  EXPECT_EQ(heads.edit(0, 1, value, edit).message(),
            "num_heads: expected a number of heads that divides 6, got 0");
  EXPECT_TRUE(value.empty());
}

// An edit by a feature gives the logits of the same vector by hand, in a pass and while it writes.
TEST(Directions, EditByFeature) {
  Context context(1);
  const models::Model model = open_golden("llama3");
  const int64_t width = model.info().embed_dim, heads = model.info().num_heads;
  const std::vector<int32_t> ids = {5, 6, 7};
  for (const char* const hook : {"hook_resid_mid", "attn.hook_z"}) {
    json encoder = json::array(), decoder = json::array();
    for (int64_t f = 0; f < 3; ++f) {
      decoder.push_back(std::vector<double>(static_cast<size_t>(width), 0.25 * (1.0 + double(f))));
      decoder.back()[0] = -1.5;
    }
    for (int64_t i = 0; i < width; ++i) encoder.push_back(std::vector<double>(3, 0.5));
    SparseAutoencoder autoencoder;
    const json cfg = {
        {"d_in", width}, {"d_sae", 3}, {"hook_name", "blocks.1." + std::string(hook)}};
    const json tensors = {{"W_enc", encoder},
                          {"W_dec", decoder},
                          {"b_enc", std::vector<double>(3, 0.0)},
                          {"b_dec", std::vector<double>(static_cast<size_t>(width), 0.0)}};
    Status status = open_of(cfg, tensors, autoencoder);
    ASSERT_TRUE(status.ok()) << status.message();
    std::vector<float> value;
    Edit by_feature;
    ASSERT_TRUE(autoencoder.edit(2, 2.0F, value, by_feature, heads).ok());
    std::vector<float> vector(static_cast<size_t>(width), 1.5F);
    vector[0] = -3.0F;
    const Dims shape = by_feature.value.shape;
    const Edit by_hand{.site = autoencoder.info().site,
                       .layer = 1,
                       .action = Edit::Action::kAdd,
                       .value = {vector.data(), shape}};
    const auto logits = [&](std::span<const Edit> edits) {
      std::vector<float> all(ids.size() * static_cast<size_t>(model.info().vocab_size));
      const Status run =
          model.forward({.ids = ids, .edits = edits},
                        {.logits = {all.data(), {1, 3, model.info().vocab_size}}}, context);
      EXPECT_TRUE(run.ok()) << run.message();
      return all;
    };
    EXPECT_EQ(logits({&by_feature, 1}), logits({&by_hand, 1}));
    EXPECT_NE(logits({&by_feature, 1}), logits({}));
    by_feature.layer = model.info().num_layers;
    status = model.forward({.ids = ids, .edits = {&by_feature, 1}}, {}, context);
    EXPECT_EQ(status.code(), StatusCode::kOption) << status.message();
  }
}

}  // namespace
}  // namespace multihead::testing
