// Runs every golden case of tests/conformance on every SIMD target. In malformed packs, each wrong
// part is one failed case with a reason, and the other cases still run.
#include "conformance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "multihead/safetensors.h"
#include "support/simd_targets.h"
#include "support/temporary_folder.h"

namespace multihead {
namespace {

using conformance::CaseResult;
using nlohmann::json;
namespace fs = std::filesystem;

const fs::path kGoldens = MULTIHEAD_CONFORMANCE_FOLDER;

class ConformanceOnTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  testing::UseSimdTarget use_{GetParam()};
};

TEST_P(ConformanceOnTarget, EveryCasePasses) {
  Context context(2);
  const auto results = conformance::run_folder(MULTIHEAD_CONFORMANCE_FOLDER, context);
  // Cases in sdpa, variants, gradients, onnx, published, mha and stack, and of models, each with
  // two configurations. Other packs may add more.
  EXPECT_GE(results.size(), 47U + 34U + 20U + 33U + 10U + 30U + 4U + 2U * 85U);
  for (const auto& result : results) {
    EXPECT_TRUE(result.passed()) << result.file << "/" << result.name << ": " << result.reason;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, ConformanceOnTarget,
                         ::testing::ValuesIn(testing::simd_targets()),
                         [](const auto& param) { return testing::simd_target_name(param.param); });

std::string text_of(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

json manifest_of(const std::string& pack) {
  return json::parse(text_of(kGoldens / (pack + ".json")), nullptr, false);
}

// With the drive, where there are drives, because the manifest that names the file is on another
// one; and without backslashes, which JSON would need two of.
std::string tensors_of(const std::string& pack) {
  return fs::absolute(kGoldens / (pack + ".safetensors")).generic_string();
}

// A temporary folder with manifests and tensors.
class Conformance : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& content) {
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }
  void write_manifest(const std::string& name, const json& cases, const std::string& pack) {
    write(name, json{{"file", tensors_of(pack)}, {"cases", cases}}.dump());
  }

  std::vector<CaseResult> run() {
    Context context(1);
    return conformance::run_folder(folder_.string(), context);
  }

  // Runs the cases `broken` and then `good`, which must pass; returns the results of `broken`.
  std::vector<CaseResult> run(std::vector<json> broken, const json& good, const std::string& pack) {
    broken.push_back(good);
    write_manifest("pack.json", broken, pack);
    std::vector<CaseResult> results = run();
    EXPECT_EQ(results.size(), broken.size());
    if (results.size() != broken.size()) return {};
    EXPECT_TRUE(results.back().passed()) << results.back().name << ": " << results.back().reason;
    results.pop_back();
    return results;
  }

  testing::TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
};

// One case of an operation, and the pack that it comes from.
struct Sample {
  std::string pack;
  json description;
};

std::vector<Sample> samples() {
  std::vector<Sample> result;
  std::set<std::string> seen;
  for (const char* pack : {"sdpa", "variants", "onnx", "published", "mha", "stack"}) {
    const json manifest = manifest_of(pack);
    for (const json& description : manifest["cases"]) {
      const bool printed = description["inputs"].contains("printed_weights");
      const bool turned = description["attrs"].contains("rope");
      const bool past = description["inputs"].contains("past_key");
      const std::string key = description["op"].get<std::string>() + (printed ? "+printed" : "") +
                              (turned ? "+rope" : "") + (past ? "+past" : "");
      if (seen.insert(key).second) result.push_back({pack, description});
    }
  }
  // Eight operations, at least three of them in two variants.
  EXPECT_GE(result.size(), 11U);
  return result;
}

const std::vector<json>& wrong_values() {
  static const std::vector<json> kValues = {
      nullptr, true, 3, -7, 0.5, "x", json::array(), json::array({"x"}), json{{"a", 1}}};
  return kValues;
}

TEST_F(Conformance, FolderWithoutManifestsFails) {
  Context context(1);
  const auto results = conformance::run_folder("no/such/folder", context);
  ASSERT_EQ(results.size(), 1U);
  EXPECT_FALSE(results[0].passed());
  ASSERT_EQ(run().size(), 1U);
  EXPECT_FALSE(run()[0].passed());
}

TEST_F(Conformance, CaseThatIsNoObjectFails) {
  const auto results = run(wrong_values(), manifest_of("sdpa")["cases"][0], "sdpa");
  for (const CaseResult& result : results) EXPECT_FALSE(result.passed()) << result.name;
  ASSERT_FALSE(results.empty());
  EXPECT_EQ(results[0].name, "cases[0]");
}

TEST_F(Conformance, EveryFieldOfTheWrongTypeFails) {
  for (const auto& [pack, good] : samples()) {
    std::vector<json> broken;
    std::vector<std::string> what;
    const auto add = [&](const std::string& changed, const json& description) {
      broken.push_back(description);
      what.push_back(changed);
    };
    for (const char* field : {"name", "op", "attrs", "inputs", "outputs", "tolerance"}) {
      json without = good;
      without.erase(field);
      add(std::string("without ") + field, without);
      for (const json& value : wrong_values()) {
        // A string is a valid name.
        if (std::string(field) == "name" && value.is_string()) continue;
        json changed = good;
        changed[field] = value;
        // An object without the attributes is already tested as a missing attribute.
        if (std::string(field) == "attrs" && value.is_object()) continue;
        add(std::string(field).append(" ").append(value.dump()), changed);
      }
      json empty = good;
      empty[field] = json::object();
      if (std::string(field) != "attrs") add(std::string("empty ") + field, empty);
    }
    for (const char* table : {"inputs", "outputs"}) {
      for (const auto& [argument, tensor] : good[table].items()) {
        for (const json& value : wrong_values()) {
          json changed = good;
          changed[table][argument] = value;
          add(table + ("." + argument) + " " + value.dump(), changed);
        }
      }
      json changed = good;
      changed[table]["surprise"] = good[table].begin().value();
      add(std::string("a surprise in ") + table, changed);
    }
    for (const auto& [attribute, value] : good["attrs"].items()) {
      for (const json& wrong : {json{{"a", 1}}, json::array({"x"})}) {
        json changed = good;
        changed["attrs"][attribute] = wrong;
        add("attrs." + attribute + " " + wrong.dump(), changed);
      }
    }
    for (const json& tolerance :
         {json{{"atol", 1}}, json{{"rtol", 1}}, json{{"atol", "x"}, {"rtol", 0}},
          json{{"atol", 1}, {"rtol", nullptr}}, json{{"atol", -1}, {"rtol", 0}},
          json{{"atol", 1e300}, {"rtol", 0}}}) {
      json changed = good;
      changed["tolerance"] = tolerance;
      add("tolerance " + tolerance.dump(), changed);
      changed = good;
      changed["output_tolerance"] = json::object();
      changed["output_tolerance"][good["outputs"].begin().key()] = tolerance;
      add("output_tolerance " + tolerance.dump(), changed);
    }
    const auto results = run(broken, good, pack);
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_FALSE(results[i].passed()) << good["op"] << ", " << what[i];
    }
  }
}

// The operation decides what another value of an attribute does; no value may end the run.
TEST_F(Conformance, AnyValueOfAnyAttributeIsSurvived) {
  for (const auto& [pack, good] : samples()) {
    std::vector<json> broken;
    for (const auto& [attribute, value] : good["attrs"].items()) {
      json without = good;
      without["attrs"].erase(attribute);
      broken.push_back(without);
      for (const json& wrong : wrong_values()) {
        json changed = good;
        changed["attrs"][attribute] = wrong;
        broken.push_back(changed);
      }
      for (const double number : {0.0, -1.0, 1e9, -1e9, 9e15, -9e15, 1e18, 1e300}) {
        json changed = good;
        changed["attrs"][attribute] = number;
        broken.push_back(changed);
        changed["attrs"][attribute] = static_cast<int64_t>(std::clamp(number, -9e18, 9e18));
        broken.push_back(changed);
      }
    }
    run(broken, good, pack);
  }
}

// Replaces each input and golden tensor by tensors of other ranks, extents and types.
TEST_F(Conformance, AnyTensorInPlaceOfAnotherIsSurvived) {
  for (const auto& [pack, good] : samples()) {
    Safetensors tensors;
    ASSERT_TRUE(Safetensors::read(tensors_of(pack), tensors).ok());
    std::set<std::string> seen;
    std::vector<std::string> others;
    for (const auto& [name, entry] : tensors.entries()) {
      const std::string kind =
          entry.shape.to_string() + std::to_string(static_cast<int>(entry.type));
      if (seen.insert(kind).second) others.push_back(name);
    }
    std::vector<json> broken;
    for (const char* table : {"inputs", "outputs"}) {
      for (const auto& [argument, tensor] : good[table].items()) {
        json without = good;
        without[table].erase(argument);
        broken.push_back(without);
        for (const std::string& other : others) {
          json changed = good;
          changed[table][argument] = other;
          broken.push_back(changed);
        }
      }
    }
    run(broken, good, pack);
  }
}

TEST_F(Conformance, UnknownAttributesFailWhereTheyAreSet) {
  const json good = manifest_of("sdpa")["cases"][0];
  std::vector<json> unset, set;
  for (const json& value : {json(nullptr), json(false), json(0), json(-1), json(0.0)}) {
    unset.push_back(good);
    unset.back()["attrs"]["temperature"] = value;
  }
  for (const json& value : {json(true), json(2), json("x"), json::array(), json::object()}) {
    set.push_back(good);
    set.back()["attrs"]["temperature"] = value;
  }
  for (const CaseResult& result : run(unset, good, "sdpa")) EXPECT_EQ(result.reason, "");
  for (const CaseResult& result : run(set, good, "sdpa")) {
    EXPECT_EQ(result.reason, "not supported yet: attribute temperature");
  }
}

TEST_F(Conformance, ModulesWhoseWeightsDoNotFitTheirAttributesFail) {
  for (const auto& [pack, good] : samples()) {
    const std::string op = good["op"];
    if (op != "multihead_attention" && op != "heads_concat") continue;
    std::vector<json> broken;
    for (const char* attribute : {"embed_dim", "num_heads"}) {
      if (!good["attrs"].contains(attribute)) continue;
      for (const int64_t value : {int64_t{0}, int64_t{-8}, int64_t{3}, int64_t{65},
                                  int64_t{1} << 40, INT64_MAX, INT64_MIN}) {
        if (good["attrs"][attribute] == value) continue;
        broken.push_back(good);
        broken.back()["attrs"][attribute] = value;
      }
    }
    for (const CaseResult& result : run(broken, good, pack)) EXPECT_FALSE(result.passed()) << op;
  }
}

// Adds a tensor of zeros to the safetensors file `bytes`.
std::string with_zeros(const std::string& bytes, const std::vector<int64_t>& shape) {
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) {
    length |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  json header = json::parse(bytes.substr(8, length), nullptr, false);
  const std::string data = bytes.substr(8 + length);
  size_t size = sizeof(float);
  for (const int64_t extent : shape) size *= static_cast<size_t>(extent);
  header["zeros"] = {
      {"dtype", "F32"}, {"shape", shape}, {"data_offsets", {data.size(), data.size() + size}}};
  const std::string text = header.dump();
  std::string result;
  for (size_t i = 0; i < 8; ++i)
    result += static_cast<char>(uint64_t{text.size()} >> (8 * i) & 0xFF);
  return result + text + data + std::string(size, '\0');
}

TEST_F(Conformance, TransformersHaveAnyNumberOfLayers) {
  json five;
  const json manifest = manifest_of("stack");
  for (const json& one : manifest["cases"]) {
    if (one["name"] == "stack_rope_half") five = one;
  }
  ASSERT_TRUE(five.is_object());
  // Layers whose output projection is zero do not change the hidden state.
  const std::string prefix = "stack_rope_half/";
  for (int layer = 2; layer < 5; ++layer) {
    const std::string to = "layers." + std::to_string(layer);
    for (const char* part : {".w_q", ".w_k", ".w_v"}) {
      five["inputs"][to + part] = prefix + "layers.1" + part;
    }
    five["inputs"][to + ".w_o"] = "zeros";
    five["outputs"]["hidden_" + std::to_string(layer)] = prefix + "hidden_1";
  }
  five["attrs"]["layers"] = 5;
  json missing = five, none = five, endless = five, unknown = five;
  missing["inputs"].erase("layers.3.w_k");
  none["attrs"]["layers"] = 0;
  endless["attrs"]["layers"] = int64_t{1} << 40;
  unknown["outputs"]["hidden_5"] = prefix + "hidden_1";

  const std::string tensors = text_of(tensors_of("stack"));
  Safetensors read;
  ASSERT_TRUE(Safetensors::read(tensors_of("stack"), read).ok());
  const Dims w_o = read.find(prefix + "layers.1.w_o")->shape;
  write("pack.safetensors", with_zeros(tensors, {w_o[0], w_o[1]}));
  write("pack.json", json{{"cases", {five, missing, none, endless, unknown}}}.dump());
  const auto results = run();
  ASSERT_EQ(results.size(), 5U) << results[0].reason;
  EXPECT_TRUE(results[0].passed()) << results[0].reason;
  EXPECT_EQ(results[1].reason, "layers.3.w_k: no such input");
  EXPECT_NE(results[2].reason.find("layers.0."), std::string::npos) << results[2].reason;
  EXPECT_NE(results[3].reason.find("attrs.layers"), std::string::npos) << results[3].reason;
  EXPECT_EQ(results[4].reason, "not supported yet: output hidden_5");
}

TEST_F(Conformance, PrintedFiguresMustBeCompared) {
  for (const auto& [pack, good] : samples()) {
    if (!good["inputs"].contains("printed_weights")) continue;
    std::vector<json> broken;
    for (const json& decimals : {json(nullptr), json(0), json(-3), json(10), json(1.5)}) {
      broken.push_back(good);
      broken.back()["attrs"]["printed_decimals"] = decimals;
    }
    for (const CaseResult& result : run(broken, good, pack)) EXPECT_FALSE(result.passed());
  }
}

// Each of these files is tested next to a valid manifest.
TEST_F(Conformance, MalformedFileIsOneFailure) {
  const json good = manifest_of("sdpa")["cases"][0];
  write_manifest("a_good.json", json::array({good}), "sdpa");
  write("cases.json", R"({"file": "a.safetensors"})");
  write("deep.json", std::string(300000, '['));
  write("deep_case.json", R"({"file": ")" + tensors_of("sdpa") + R"(", "cases": [)" +
                              std::string(100000, '[') + std::string(100000, ']') + "]}");
  write("empty.json", "");
  write_manifest("empty_cases.json", json::array(), "sdpa");
  write_manifest("cases_object.json", json{{"a", good}}, "sdpa");
  write("file_number.json", json{{"file", 3}, {"cases", {good}}}.dump());
  write("file_lost.json", json{{"file", "lost.safetensors"}, {"cases", {good}}}.dump());
  write("file_folder.json", json{{"file", "."}, {"cases", {good}}}.dump());
  write("file_not_said.json", json{{"cases", {good}}}.dump());
  write("not_json.json", "{\"cases\": [");
  write("not_object.json", "[1, 2]");
  write("not_utf8.json", "{\"cases\": [\"\xFF\"]}");
  fs::create_directory(folder_ / "folder.json");
  fs::create_directory(folder_ / "t.safetensors");
  write("t.json", json{{"file", "t.safetensors"}, {"cases", {good}}}.dump());

  const std::string tensors = text_of(tensors_of("sdpa"));
  const auto add = [&](const std::string& name, const std::string& bytes) {
    write(name + ".safetensors", bytes);
    write(name + ".json", json{{"cases", {good}}}.dump());
  };
  add("tensors_cut", tensors.substr(0, tensors.size() - 4));
  add("tensors_header_only", tensors.substr(0, 8 + 25192));
  add("tensors_empty", "");
  add("tensors_longer", tensors + "more");
  add("tensors_deep", std::string("\x40\x0D\x03\0\0\0\0\0", 8) + std::string(200000, '['));
  std::string nested = R"({"x":{"dtype":"F32","shape":)" + std::string(100000, '[') +
                       std::string(100000, ']') + R"(,"data_offsets":[0,0]}})";
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i)
    length[i] = static_cast<char>(uint64_t{nested.size()} >> (8 * i) & 0xFF);
  add("tensors_nested", length + nested);

  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    files += entry.path().extension() == ".json" ? 1U : 0U;
  }
  const auto results = run();
  EXPECT_EQ(results.size(), files);
  for (const CaseResult& result : results) {
    EXPECT_EQ(result.passed(), result.file == "a_good") << result.file << ": " << result.reason;
  }
}

TEST_F(Conformance, NamesAreShownInPrintableForm) {
  json good = manifest_of("sdpa")["cases"][0];
  json named = good;
  named["name"] = "a\n9 passed\u202E\x1B[2J";
  named["op"] = std::string(1000, 'x');
  const auto results = run({named}, good, "sdpa");
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0].name, "a\\u000a9 passed\\u202e\\u001b[2J");
  EXPECT_LT(results[0].reason.size(), 410U);
  // The names of files and folders.
  // In WebAssembly, names of files are JavaScript's strings, which hold no invalid UTF-8.
#if defined(__EMSCRIPTEN__)
  write("b\n\u202E.json", "");
  EXPECT_EQ(run()[0].file, "b\\u000a\\u202e");
#elif !defined(_WIN32)  // whose names of files are UTF-16, without control characters
  write("b\n\xFF.json", "");
  EXPECT_EQ(run()[0].file, "b\\u000a\\xff");
#endif
  const std::string none = (folder_ / "c\n").string();
  Context context(1);
  EXPECT_TRUE(conformance::run_folder(none, context)[0].file.ends_with("c\\u000a"));
}

}  // namespace
}  // namespace multihead
