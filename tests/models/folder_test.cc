// Folders of models as people have them: the table folder_cases.json, which the package's test
// reads, too.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/stat.h>
#endif

#include "models/golden_models.h"
#include "multihead/models.h"
#include "support/temporary_folder.h"

namespace multihead::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string read_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A safetensors file of F32 tensors.
std::string safetensors_of(const json& tensors) {
  json header = json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors.items()) {
    const size_t begin = data.size();
    for (const float value : tensor["data"].get<std::vector<float>>()) {
      data.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    header[name] = {
        {"dtype", "F32"}, {"shape", tensor["shape"]}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(uint64_t{text.size()} >> (8 * i));
  return length + text + data;
}

void write_case(const json& each, const fs::path& folder) {
  const fs::path base = model_folder(each["base"]);
  for (const char* const name : {"config.json", "model.safetensors"}) {
    fs::copy_file(base / name, folder / name, fs::copy_options::overwrite_existing);
  }
  for (const auto& [name, file] : each["files"].items()) {
    fs::create_directories((folder / name).parent_path());
    if (file.is_null()) {
      fs::remove(folder / name);
      continue;
    }
    std::string bytes = file.is_string() ? file.get<std::string>() : file.dump();
    if (file.is_object() && file.contains("$copy")) {
      bytes = read_bytes(base / file["$copy"].get<std::string>());
    } else if (file.is_object() && file.contains("$first")) {
      bytes = read_bytes(base / name).substr(0, file["$first"].get<size_t>());
    } else if (file.is_object() && file.contains("$tensors")) {
      bytes = safetensors_of(file["$tensors"]);
    }
    std::ofstream(folder / name, std::ios::binary) << bytes;
  }
}

std::vector<float> vector_of(const models::Model& model, bool normalize, Status& status) {
  const std::vector<int32_t> ids = {5, 6, 7, 8};
  std::vector<float> vector(static_cast<size_t>(model.info().vector_dim));
  Context context(1);
  status = model.embed({.ids = ids}, {.normalize = normalize},
                       {vector.data(), {1, model.info().vector_dim}}, context);
  return vector;
}

void expect_vector(const models::Model& model, bool normalize, const json& wanted) {
  Status status;
  const std::vector<float> got = vector_of(model, normalize, status);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i].get<double>(), 2e-6) << i;
}

void check_case(const json& each) {
  SCOPED_TRACE(each["name"].get<std::string>());
  const TemporaryFolder folder;
  write_case(each, folder.path());
  const json& expect = each["expect"];
  models::Model model;
  Status status = models::open(folder.path().string(), {}, model);
  if (status.ok() && each.contains("embeds")) vector_of(model, true, status);
  if (expect.contains("code")) {
    ASSERT_FALSE(status.ok());
    const bool is_option = status.code() == StatusCode::kOption;
    EXPECT_EQ(is_option ? "E_OPTION" : "E_FORMAT", expect["code"]) << status.message();
    const std::string message = status.message();
    EXPECT_NE(message.find(expect["argument"].get<std::string>()), std::string::npos) << message;
    EXPECT_NE(message.find(expect["message"].get<std::string>()), std::string::npos) << message;
    return;
  }
  ASSERT_TRUE(status.ok()) << status.message();
  if (expect.contains("ids")) {
    const std::vector<int32_t> prompt = {5, 6, 7};
    std::vector<int32_t> ids;
    models::GenerateOptions options;
    options.max_new_tokens = static_cast<int64_t>(expect["ids"].size());
    Context context(1);
    const auto keep = [&](int32_t id) {
      ids.push_back(id);
      return true;
    };
    ASSERT_TRUE(models::generate(model, prompt, options, keep, context).ok());
    EXPECT_EQ(json(ids), expect["ids"]);
  }
  if (expect.contains("endIds")) EXPECT_EQ(json(model.info().end_ids), expect["endIds"]);
  if (!expect.contains("vector")) return;
  expect_vector(model, true, expect["vector"]);
  expect_vector(model, false, expect["raw"]);
}

TEST(OpenFolder, IsReadByTheTable) {
  const json table = json::parse(read_bytes(MULTIHEAD_FOLDER_CASES));
  for (const json& each : table["cases"]) check_case(each);
}

TEST(OpenFolder, AFolderOrAPipeInPlaceOfAFileIsAnError) {
  const TemporaryFolder folder;
  models::Model model;
  fs::create_directories(folder.path() / "config.json");
  EXPECT_EQ(models::open(folder.path().string(), {}, model).code(), StatusCode::kFormat);
  models::Config config;
  EXPECT_EQ(models::read_config(folder.file("config.json"), config).code(), StatusCode::kFormat);
#if defined(__unix__) || defined(__APPLE__)
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  EXPECT_EQ(models::read_config(folder.file("pipe"), config).code(), StatusCode::kFormat);
  EXPECT_EQ(models::read_config("/dev/zero", config).code(), StatusCode::kFormat);
#endif
}

TEST(OpenFolder, APathThatIsNoFolderIsCalledSo) {
  models::Model model;
  const auto message = [&](const std::string& path) {
    return models::open(path, {}, model).message();
  };
  EXPECT_NE(message("org/name").find("https://huggingface.co/org/name"), std::string::npos);
  EXPECT_NE(message(model_folder("gpt2") + "/config.json").find("give the folder"),
            std::string::npos);
}

TEST(OpenFolder, SequencesOfPaddingAloneHaveNoVector) {
  const models::Model model = open_golden("bert");
  const std::vector<int32_t> ids = {5, 6, 7, 8};
  const std::vector<uint8_t> mask = {1, 1, 0, 0};
  std::vector<float> out(32, 7.0F);
  Context context(1);
  const Status status =
      model.embed({.ids = ids, .batch = 2, .mask = mask}, {}, {out.data(), {2, 16}}, context);
  EXPECT_EQ(status.argument(), "mask");
  EXPECT_EQ(out, std::vector<float>(32, 7.0F));
}

TEST(OpenFolder, PoolingsLeaveOutPadding) {
  using models::Pooling;
  const models::Model model = open_golden("bert");
  const std::vector<int32_t> ids = {5, 6, 7}, padded = {5, 6, 7, 0, 0};
  const std::vector<uint8_t> mask = {1, 1, 1, 0, 0};
  std::vector<float> alone(16), beside(16);
  Context context(1);
  for (const Pooling pooling : {Pooling::kMean, Pooling::kFirstToken, Pooling::kLastToken,
                                Pooling::kMax, Pooling::kMeanSqrtLength, Pooling::kWeightedMean}) {
    const models::EmbedOptions options = {.pooling = pooling, .normalize = false};
    ASSERT_TRUE(model.embed({.ids = ids}, options, {alone.data(), {1, 16}}, context).ok());
    ASSERT_TRUE(
        model.embed({.ids = padded, .mask = mask}, options, {beside.data(), {1, 16}}, context)
            .ok());
    for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(alone[i], beside[i], 1e-5);
  }
}

}  // namespace
}  // namespace multihead::testing
