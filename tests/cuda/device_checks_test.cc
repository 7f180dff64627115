// The checks of multihead-cuda-check in the emulator: they find nothing wrong where the kernels are
// right, and notice results that are wrong.
#include "cuda/device_checks.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "cuda/emulator/block.h"
#include "cuda/emulator/runtime.h"
#include "cuda/mapped_case.h"

namespace multihead::testing {
namespace {

class CudaDeviceChecks : public ::testing::TestWithParam<int> {
 protected:
  CudaDeviceChecks() {
    const bool is_hopper = GetParam() == 90;
    cuda::emulator::runtime_state().device = {.compute_capability = GetParam(),
                                              .multiprocessors = 4,
                                              .shared_bytes = (is_hopper ? 227 : 163) << 10};
  }
  ~CudaDeviceChecks() override {
    cuda::emulator::runtime_state() = {};
    cuda::testing::expect_no_findings();
  }
};

TEST_P(CudaDeviceChecks, FindNothingWrong) {
  constexpr uint64_t kCalls = 4;
  EXPECT_EQ(check_packed(kCalls), 0);
  EXPECT_EQ(check_caches(5 * kCalls), 0);
  EXPECT_EQ(check_merge(5 * kCalls), 0);
  EXPECT_EQ(check_captures(2 * kCalls), 0);
  EXPECT_EQ(check_nan(kCalls), 0);
  EXPECT_EQ(check_random_tensor_cores(1), 0);
  EXPECT_EQ(check_second_stream(), 0);
  EXPECT_EQ(check_graph(), 0);
  EXPECT_EQ(check_prepared(), 0);
}

INSTANTIATE_TEST_SUITE_P(OfDevices, CudaDeviceChecks, ::testing::Values(80, 90));

// Without kernels, results stay as they were.
TEST(CudaDeviceChecksFind, KernelsThatWriteNothing) {
  cuda::emulator::launch_observer() = [](const cuda::emulator::Launch&) {};
  EXPECT_GT(check_packed(4), 0);
  EXPECT_GT(check_caches(4), 0);
  EXPECT_GT(check_merge(4), 0);
  EXPECT_GT(check_captures(4), 0);
  EXPECT_GT(check_nan(4), 0);
  cuda::emulator::launch_observer() = nullptr;
}

}  // namespace
}  // namespace multihead::testing
