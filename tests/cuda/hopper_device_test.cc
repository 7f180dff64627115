// The emulated TMA, mbarriers and wgmma: they compute the right numbers, and they find the faults
// planted in a kernel.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/emulator/memory.h"
#include "cuda/hopper_kernels.h"
#include "cuda/hopper_products.h"
#include "multihead/tensor.h"
#include "support/random_case.h"

namespace multihead::cuda::testing {
namespace {

using emulator::device;
using emulator::Use;

constexpr int kSteps = 5;
constexpr size_t kTile = size_t{64} * 64;

class HopperDevice : public ::testing::Test {
 protected:
  HopperDevice() : a_(kTile), b_(kSteps * kTile), d_(kTile) {
    multihead::testing::Random random(3);
    for (std::vector<float>* const tensor : {&a_, &b_}) {
      // Use numbers that both types represent exactly.
      for (float& value : *tensor) value = static_cast<float>(random.integer(-16, 16)) / 8;
    }
    a_bits_.resize(a_.size());
    b_bits_.resize(b_.size());
    device().map(a_bits_.data(), a_bits_.size() * 2, Use::kInput, "a");
    device().map(b_bits_.data(), b_bits_.size() * 2, Use::kInput, "b");
    device().map(d_.data(), d_.size() * sizeof(float), Use::kOutput, "d");
  }
  ~HopperDevice() override {
    device().unmap(a_bits_.data());
    device().unmap(b_bits_.data());
    device().unmap(d_.data());
    device().set_seed(1);
  }
  int run(HopperFault fault, DType type = DType::kBF16, bool transposed = false) {
    for (size_t i = 0; i < a_.size(); ++i) a_bits_[i] = multihead::testing::half_bits(a_[i], type);
    for (size_t i = 0; i < b_.size(); ++i) b_bits_[i] = multihead::testing::half_bits(b_[i], type);
    return launch_hopper_products(
        {a_bits_.data(), b_bits_.data(), d_.data(), kSteps, type, transposed}, fault);
  }
  // Expects the finding in every order in which threads run.
  void expect_finding(HopperFault fault, const std::string& text) {
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      device().set_seed(seed);
      EXPECT_EQ(run(fault), 0);
      const std::vector<std::string> findings = device().take_findings();
      ASSERT_FALSE(findings.empty()) << "seed " << seed << " did not find: " << text;
      EXPECT_NE(findings[0].find(text), std::string::npos) << findings[0];
    }
  }

  std::vector<float> a_, b_, d_;
  std::vector<uint16_t> a_bits_, b_bits_;
};

TEST_F(HopperDevice, MultipliesTilesThatWereCopied) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const bool transposed : {false, true}) {
      EXPECT_EQ(run(HopperFault::kNone, type, transposed), 0);
      EXPECT_EQ(device().take_findings(), std::vector<std::string>());
      for (size_t row = 0; row < 64; ++row) {
        for (size_t column = 0; column < 64; ++column) {
          float expected = 0.0F;
          for (size_t i = 0; i < kSteps; ++i) {
            for (size_t k = 0; k < 64; ++k) {
              const size_t at = transposed ? k * 64 + column : column * 64 + k;
              expected += a_[row * 64 + k] * b_[i * kTile + at];
            }
          }
          ASSERT_EQ(d_[row * 64 + column], expected) << row << " " << column;
        }
      }
    }
  }
}

TEST(HopperRows, AreMultipliedInEveryShapeOfTheAttentionKernels) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const auto& [width, count] : kHopperRowShapes) {
      SCOPED_TRACE(std::to_string(width) + " x " + std::to_string(count));
      RowProductsCase c(type, width, count, /*of_consumers=*/2);
      device().map(c.a.data(), c.a.size() * 2, Use::kInput, "a");
      device().map(c.b.data(), c.b.size() * 2, Use::kInput, "b");
      device().map(c.s.data(), c.s.size() * sizeof(float), Use::kOutput, "s");
      device().map(c.o.data(), c.o.size() * sizeof(float), Use::kOutput, "o");
      EXPECT_EQ(launch_hopper_row_products({c.a.data(), c.b.data(), c.s.data(), c.o.data(), type,
                                            c.width, c.count, c.consumers}),
                0);
      EXPECT_EQ(device().take_findings(), std::vector<std::string>());
      EXPECT_EQ(c.s, c.expected_s);
      EXPECT_EQ(c.o, c.expected_o);
      for (const void* const data :
           {static_cast<const void*>(c.a.data()), static_cast<const void*>(c.b.data()),
            static_cast<const void*>(c.s.data()), static_cast<const void*>(c.o.data())}) {
        device().unmap(data);
      }
    }
  }
}

TEST_F(HopperDevice, FindsAProductOfACopyThatIsUnderWay) {
  expect_finding(HopperFault::kNoWaitForCopy, "reads shared memory");
}

TEST_F(HopperDevice, FindsASlotThatIsCopiedToBeforeItIsEmpty) {
  expect_finding(HopperFault::kNoWaitForSlot, "");
}

TEST_F(HopperDevice, FindsASlotThatIsReleasedTooEarly) {
  expect_finding(HopperFault::kEarlyRelease, "with no barrier between them");
}

TEST_F(HopperDevice, FindsSumsThatAreChangedBeforeTheWait) {
  expect_finding(HopperFault::kEarlyUse, "wrote d[0] of a product before wgmma_wait()");
}

TEST_F(HopperDevice, FindsAProductThatIsNotWaitedFor) {
  expect_finding(HopperFault::kNoLastWait, "ends before wgmma_wait() for its last product");
}

TEST_F(HopperDevice, FindsAMissingFence) {
  expect_finding(HopperFault::kNoFence, "starts a product without wgmma_fence()");
  expect_finding(HopperFault::kNoProxyFence, "wrote without fence_proxy_async()");
}

TEST_F(HopperDevice, FindsWrongCountsOfBarriers) {
  expect_finding(HopperFault::kTooFewBytes, "copies more bytes than the barrier expects");
  expect_finding(HopperFault::kNotInitialized, "");
  expect_finding(HopperFault::kTooManyArrivals, "");
}

TEST_F(HopperDevice, RefusesTensorsThatTmaCannotRead) {
  EXPECT_NE(launch_hopper_products({reinterpret_cast<const std::byte*>(a_bits_.data()) + 2,
                                    b_bits_.data(), d_.data(), kSteps, DType::kBF16, false},
                                   HopperFault::kNone),
            0);
}

}  // namespace
}  // namespace multihead::cuda::testing
