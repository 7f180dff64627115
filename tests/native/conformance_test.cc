// Runs every golden case of tests/conformance on every SIMD target. A case that the runner does not
// use in full, or whose numbers differ, fails with a reason, and the other cases still run.
#include "conformance.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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

// Runs the cases of sdpa.json that `change` makes of its first one; returns their results.
std::vector<CaseResult> run(const std::vector<json>& changed) {
  const testing::TemporaryFolder folder;
  // With the drive, where there are drives, because the manifest that names the file is on another
  // one; and without backslashes, which JSON would need two of.
  const std::string tensors = fs::absolute(kGoldens / "sdpa.safetensors").generic_string();
  std::ofstream(folder.path() / "pack.json") << json{{"file", tensors}, {"cases", changed}}.dump();
  Context context(1);
  return conformance::run_folder(folder.path().string(), context);
}

json first_case() {
  std::ifstream stream(kGoldens / "sdpa.json");
  return json::parse(stream, nullptr, false)["cases"][0];
}

TEST(Conformance, FolderWithoutManifestsFails) {
  Context context(1);
  const auto results = conformance::run_folder("no/such/folder", context);
  ASSERT_EQ(results.size(), 1U);
  EXPECT_FALSE(results[0].passed());
  const testing::TemporaryFolder empty;
  ASSERT_EQ(conformance::run_folder(empty.path().string(), context).size(), 1U);
  EXPECT_FALSE(conformance::run_folder(empty.path().string(), context)[0].passed());
}

TEST(Conformance, ManifestsWithoutCasesOrTensorsFail) {
  ASSERT_EQ(run({}).size(), 1U);
  EXPECT_EQ(run({})[0].reason, "not a conformance manifest");
  const testing::TemporaryFolder folder;
  std::ofstream(folder.path() / "cut.json") << "{\"cases\": [";
  std::ofstream(folder.path() / "lost.json") << json{{"cases", {first_case()}}}.dump();
  Context context(1);
  const auto results = conformance::run_folder(folder.path().string(), context);
  ASSERT_EQ(results.size(), 2U);
  for (const CaseResult& result : results) EXPECT_FALSE(result.passed()) << result.file;
}

// Whatever a case asks for and the runner does not do is a failure, and so is a wrong number.
TEST(Conformance, CasesThatAreNotUsedInFullFail) {
  const json good = first_case();

  struct Change {
    const char* path;
    json value;
    std::string reason;
  };
  const std::vector<Change> changes = {
      {"/op", "sing", "not supported yet: op sing"},
      {"/attrs/temperature", 2, "not supported yet: attribute temperature"},
      {"/attrs/temperature", json::object(), "not supported yet: attribute temperature"},
      {"/attrs/align", "middle", "not supported yet: align middle"},
      {"/inputs/surprise", good["inputs"]["q"], "not supported yet: input surprise"},
      {"/inputs/q_positions", good["inputs"]["q"], "not supported yet: input q_positions"},
      {"/inputs/kv_len", good["inputs"]["q"], "not supported yet: input kv_len"},
      {"/outputs/surprise", good["outputs"].begin().value(), "surprise was not computed"},
      {"/outputs", json::object(), "outputs: nothing to compare"},
      {"/outputs/lse", good["inputs"]["q"], "lse: expected "},
      {"/outputs/out", good["inputs"]["q"], "out"},
  };
  std::vector<json> cases;
  for (const Change& change : changes) {
    cases.push_back(good);
    cases.back()[json::json_pointer(change.path)] = change.value;
  }
  for (const json& unset : {json(nullptr), json(false), json(0), json(-1), json(0.0)}) {
    cases.push_back(good);
    cases.back()["attrs"]["temperature"] = unset;
  }
  const auto results = run(cases);
  ASSERT_EQ(results.size(), cases.size());
  for (size_t i = 0; i < results.size(); ++i) {
    if (i >= changes.size()) {
      EXPECT_EQ(results[i].reason, "");
    } else {
      EXPECT_TRUE(!results[i].passed() && results[i].reason.starts_with(changes[i].reason))
          << changes[i].path << ": " << results[i].reason;
    }
  }
}

}  // namespace
}  // namespace multihead
