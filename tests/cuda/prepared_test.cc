// Prepared calls in the emulator. device_features.cc compares their results with those of usual
// calls.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "cuda/emulator/block.h"
#include "cuda/mapped_case.h"
#include "multihead/cuda.h"

namespace multihead::cuda::testing {
namespace {

// A decoding step with one query for each of 4 heads.
class CudaPrepared : public ::testing::Test {
 protected:
  CudaPrepared()
      : q_(4 * kWidth, 0.5F), k_(2 * kKeys * kWidth, 0.25F), v_(k_.size(), 1.0F), out_(q_.size()) {
    mapping_.add(q_, emulator::Use::kInput, "q");
    mapping_.add(k_, emulator::Use::kInput, "k");
    mapping_.add(v_, emulator::Use::kInput, "v");
    mapping_.add(out_, emulator::Use::kOutput, "out");
  }
  Status attend(int64_t width = kWidth) {
    const ConstAnyTensor q(q_.data(), {1, 4, 1, width}), k(k_.data(), {1, 2, kKeys, kWidth}),
        v(v_.data(), {1, 2, kKeys, kWidth});
    return attention(q, k, v, {}, {.out = Tensor(out_.data(), {1, 4, 1, kWidth})}, workspace_.get(),
                     /*stream=*/nullptr);
  }

  static constexpr int64_t kWidth = 16, kKeys = 300;
  std::vector<float> q_, k_, v_, out_;
  MappedWorkspace workspace_{1 << 20};
  Mapping mapping_;
};

TEST_F(CudaPrepared, RunAtEachLaunchWithTheNumbersOfThatTime) {
  PreparedCalls calls;
  ASSERT_TRUE(calls.launch(nullptr).ok());  // there are none yet
  ASSERT_TRUE(calls.prepare([&] { return attend(); }).ok());
  EXPECT_EQ(out_[0], 0.0F);
  for (const float value : {1.0F, -3.0F}) {
    for (float& number : v_) number = value;
    ASSERT_TRUE(calls.launch(nullptr).ok());
    EXPECT_FLOAT_EQ(out_[5], value);
  }
  // Other calls are not kept.
  ASSERT_TRUE(attend().ok());
  expect_no_findings();
}

// A cache that is planned for its capacity may grow between launches.
TEST_F(CudaPrepared, DecodeOverACacheThatGrows) {
  std::vector<int32_t> lengths{0};
  const std::vector<int32_t> firsts{0};
  mapping_.add(lengths, emulator::Use::kInput, "lengths");
  mapping_.add(firsts, emulator::Use::kInput, "firsts");
  CacheView cache{
      .config = {.num_kv_heads = 2, .head_dim = kWidth, .value_dim = kWidth, .capacity = kKeys},
      .keys = k_.data(),
      .values = v_.data(),
      .lengths = lengths,
      .firsts = firsts,
      .page_table = {},
      .max_length = kKeys};
  // Equal scores, so that the output is the mean value.
  for (size_t i = 0; i < v_.size(); ++i) {
    v_[i] = static_cast<float>(static_cast<int64_t>(i) / kWidth % kKeys);
  }
  const Dims shape{1, 4, 1, kWidth};
  PreparedCalls calls;
  ASSERT_TRUE(calls
                  .prepare([&] {
                    return decode(ConstAnyTensor(q_.data(), shape), cache, {},
                                  {.out = Tensor(out_.data(), shape)}, workspace_.get(), nullptr);
                  })
                  .ok());
  for (const int32_t length : {1, 2, 64, 65, 171, 300}) {
    lengths[0] = length;
    ASSERT_TRUE(calls.launch(nullptr).ok());
    EXPECT_NEAR(out_[3 * kWidth], static_cast<float>(length - 1) / 2, 1e-3) << length;
  }
  expect_no_findings();
}

TEST_F(CudaPrepared, StayAsTheyWereAfterAnError) {
  PreparedCalls calls;
  ASSERT_TRUE(calls.prepare([&] { return attend(); }).ok());
  const Status status = calls.prepare([&] {
    const Status first = attend();
    return first.ok() ? attend(kWidth - 1) : first;
  });
  EXPECT_EQ(status.code(), StatusCode::kShape);
  int launches = 0;
  emulator::launch_observer() = [&](const emulator::Launch&) { ++launches; };
  EXPECT_TRUE(calls.launch(nullptr).ok());
  EXPECT_EQ(launches, 1);
  emulator::launch_observer() = nullptr;
}

TEST_F(CudaPrepared, KeepOnlyCallsOfTheirThread) {
  PreparedCalls calls;
  const Status status = calls.prepare([&] {
    std::thread([&] { EXPECT_TRUE(attend().ok()); }).join();
    return Status();
  });
  ASSERT_TRUE(status.ok());
  EXPECT_FLOAT_EQ(out_[5], 1.0F);
  out_[5] = 7.0F;
  ASSERT_TRUE(calls.launch(nullptr).ok());
  EXPECT_EQ(out_[5], 7.0F);
}

}  // namespace
}  // namespace multihead::cuda::testing
