// Every golden case of tests/conformance, one GoogleTest each, on every SIMD target.
#include "conformance.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/simd_targets.h"

namespace multihead {
namespace {

class ConformanceOnTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  testing::UseSimdTarget use_{GetParam()};
};

TEST_P(ConformanceOnTarget, EveryCasePasses) {
  Context context(2);
  const auto results = conformance::run_folder(MULTIHEAD_CONFORMANCE_FOLDER, context);
  EXPECT_GE(results.size(), 57U);
  for (const auto& result : results) {
    EXPECT_TRUE(result.passed()) << result.file << "/" << result.name << ": " << result.reason;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, ConformanceOnTarget,
                         ::testing::ValuesIn(testing::simd_targets()),
                         [](const auto& param) { return testing::simd_target_name(param.param); });

TEST(Conformance, FolderWithoutManifestsFails) {
  Context context(1);
  const auto results = conformance::run_folder("no/such/folder", context);
  ASSERT_EQ(results.size(), 1U);
  EXPECT_FALSE(results[0].passed());
}

}  // namespace
}  // namespace multihead
