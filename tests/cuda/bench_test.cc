// Runs the benchmark's GPU cases in the emulator, and times nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "cases.h"
#include "cuda/mapped_case.h"
#include "device_work.h"
#include "support/temporary_folder.h"

namespace multihead::bench {
namespace {

constexpr Shape kSmall = {"small", 2, 4, 2, 20, 40, 16};
constexpr Shape kSmallDecode = {"small-decode", 2, 4, 2, 1, 300, 16};

// The weights and the output are rounded to the dtype. The f32 queries of a bf16 or int8 cache are
// rounded to bf16; f32 queries of an f16 cache stay f32.
double allowed(const Case& which) {
  const std::string dtype = which.dtype;
  return dtype == "f32" || (which.op == Op::kCache && dtype == "f16") ? 1e-5 : 0x1p-6;
}

void expect_right(const Case& which) {
  SCOPED_TRACE(which.name());
  DeviceWork work(which);
  EXPECT_TRUE(std::isnan(work.error(work.output())));  // not yet computed
  std::vector<float> first;
  for (int call = 0; call < 3; ++call) {
    const Status status = work.run();
    ASSERT_TRUE(status.ok()) << status.message();
    if (call == 0) first = work.output();
  }
  cuda::testing::expect_no_findings();
  const std::vector<float> output = work.output();
  EXPECT_EQ(output, first);  // computed from another copy of the inputs
  EXPECT_LE(work.error(output), allowed(which));
  EXPECT_FALSE(work.explanation().empty());
}

TEST(CudaBench, EveryKindOfCaseEqualsTheCpu) {
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    for (const Mask mask : {Mask::kFull, Mask::kCausal, Mask::kBoolean, Mask::kPadding,
                            Mask::kLengths, Mask::kWindow, Mask::kBias, Mask::kAlibi}) {
      expect_right({Op::kForward, kSmall, mask, dtype, kOnDevice});
      if (mask == Mask::kCausal || mask == Mask::kAlibi) {
        expect_right({Op::kBackward, kSmall, mask, dtype, kOnDevice});
      }
    }
    expect_right({Op::kDecode, kSmallDecode, Mask::kFull, dtype, kOnDevice});
    expect_right({Op::kCache, kSmallDecode, Mask::kFull, dtype, kOnDevice});
  }
}

TEST(CudaBench, AGraphOfCallsComputesWhenItIsLaunched) {
  for (const Case& which : {Case{Op::kForward, kSmall, Mask::kCausal, "bf16", kOnDevice},
                            Case{Op::kBackward, kSmall, Mask::kCausal, "bf16", kOnDevice},
                            Case{Op::kCache, kSmallDecode, Mask::kFull, "bf16", kOnDevice}}) {
    SCOPED_TRACE(which.name());
    DeviceWork work(which);
    const DeviceGraph graph([&](cuda::Stream stream) {
      for (int call = 0; call < 2; ++call) ASSERT_TRUE(work.run(stream).ok());
    });
    EXPECT_TRUE(std::isnan(work.error(work.output())));  // captured, not computed
    graph.launch();
    EXPECT_LE(work.error(work.output()), allowed(which));
    cuda::testing::expect_no_findings();
  }
}

TEST(CudaBench, WrongOutputIsSeen) {
  DeviceWork work({Op::kForward, kSmall, Mask::kCausal, "f32", kOnDevice});
  ASSERT_TRUE(work.run().ok());
  std::vector<float> output = work.output();
  output.back() += 0.25F;
  EXPECT_NEAR(work.error(output), 0.25, 1e-5);
}

TEST(CudaBench, CostsAreIdeal) {
  const DeviceWork forward({Op::kForward, kSmall, Mask::kFull, "bf16", kOnDevice});
  EXPECT_EQ(forward.operations(), 4.0 * 2 * 4 * 20 * 40 * 16);
  EXPECT_EQ(forward.bytes(), 0);
  const DeviceWork causal({Op::kForward, kSmall, Mask::kCausal, "bf16", kOnDevice});
  EXPECT_EQ(causal.operations(), forward.operations() / 2);
  const DeviceWork backward({Op::kBackward, kSmall, Mask::kFull, "bf16", kOnDevice});
  EXPECT_EQ(backward.operations(), forward.operations() * 5 / 2);
  const DeviceWork decode({Op::kDecode, kSmallDecode, Mask::kFull, "bf16", kOnDevice});
  EXPECT_EQ(decode.bytes(), 2.0 * 2 * 2 * 300 * 16 * 2);  // K and V, 2 bytes per element
  const DeviceWork cache({Op::kCache, kSmallDecode, Mask::kFull, "f32", kOnDevice});
  EXPECT_EQ(cache.bytes(), 2 * decode.bytes());
}

TEST(CudaBench, InputsInTurnsExceedTheCache) {
  EXPECT_EQ(rotated_copies(100, 1000), 40);
  EXPECT_EQ(rotated_copies(99, 1000), 41);
  EXPECT_EQ(rotated_copies(int64_t{1} << 40, 1000), 2);
  EXPECT_EQ(rotated_copies(1, 1000), 256);
}

TEST(CudaBench, CasesHaveNamesOfTheirOwnAndTheTablesShapes) {
  std::set<std::string> names;
  int table = 0;
  for (const Case& which : all_device_cases()) {
    EXPECT_TRUE(names.insert(which.name()).second) << which.name();
    EXPECT_TRUE(which.name().ends_with("/cuda"));
    if (std::string(which.shape.name).starts_with("d")) {
      EXPECT_EQ(which.shape.batch * which.shape.queries, 16384) << which.name();
      EXPECT_EQ(which.shape.heads * which.shape.width, 2048) << which.name();
      ++table;
    }
  }
  EXPECT_GE(table, 36);
  EXPECT_TRUE(names.contains("forward/d128-4k/causal/bf16/cuda"));
}

TEST(CudaBench, SavesInputsAndOutput) {
  DeviceWork work({Op::kForward, kSmall, Mask::kCausal, "bf16", kOnDevice});
  ASSERT_TRUE(work.run().ok());
  const testing::TemporaryFolder folder;
  const std::string stem = folder.file("case");
  ASSERT_TRUE(work.save(stem, work.output()));
  EXPECT_EQ(std::filesystem::file_size(stem + ".q"), 2U * 4 * 20 * 16 * 2);
  EXPECT_EQ(std::filesystem::file_size(stem + ".k"), 2U * 2 * 40 * 16 * 2);
  EXPECT_EQ(std::filesystem::file_size(stem + ".v"), 2U * 2 * 40 * 16 * 2);
  EXPECT_EQ(std::filesystem::file_size(stem + ".f32"), 2U * 4 * 20 * 16 * 4);
  EXPECT_GT(std::filesystem::file_size(stem + ".json"), 0U);
  EXPECT_FALSE(work.save("/no/such/folder/case", work.output()));
}

}  // namespace
}  // namespace multihead::bench
