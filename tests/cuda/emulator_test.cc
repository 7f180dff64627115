// The emulator finds the faults planted in small kernels, and reports none in correct ones.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/emulator/memory.h"
#include "cuda/emulator_kernels.h"
#include "multihead/tensor.h"
#include "rules/element.h"
#include "support/random_case.h"

namespace multihead::cuda::testing {
namespace {

using emulator::device;
using emulator::Use;

constexpr int kSeeds = 20;

class Emulator : public ::testing::Test {
 protected:
  Emulator() : in_(192), out_(192) {
    for (size_t i = 0; i < in_.size(); ++i) in_[i] = static_cast<float>(i);
    device().map(in_.data(), in_.size() * sizeof(float), Use::kInput, "in");
    device().map(out_.data(), out_.size() * sizeof(float), Use::kOutput, "out");
  }
  ~Emulator() override {
    device().unmap(in_.data());
    device().unmap(out_.data());
    device().set_seed(1);
  }
  ReverseParams params(int blocks) { return {in_.data(), out_.data(), blocks}; }

  std::vector<float> in_, out_;
};

// Runs with many seeds. Every run must find the fault: a race is found in any order.
template <class Launch>
void expect_finding(const Launch& launch, const std::string& text) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    device().set_seed(seed);
    EXPECT_EQ(launch(), 0);
    const std::vector<std::string> findings = device().take_findings();
    ASSERT_FALSE(findings.empty()) << "seed " << seed << " did not find: " << text;
    EXPECT_NE(findings[0].find(text), std::string::npos) << findings[0];
    EXPECT_NE(findings[0].find("seed " + std::to_string(seed)), std::string::npos) << findings[0];
  }
}

TEST_F(Emulator, RunsCorrectKernelsInAnyOrderWithoutFindings) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    device().set_seed(seed);
    EXPECT_EQ(launch_reverse(params(3), Fault::kNone), 0);
    for (size_t i = 0; i < out_.size(); ++i) {
      ASSERT_EQ(out_[i], static_cast<float>(i / 64 * 64 + 63 - i % 64)) << i;
    }
    EXPECT_EQ(launch_sum(params(1), Fault::kNone), 0);
    EXPECT_EQ(out_[0], 63.0F * 32);
    EXPECT_EQ(launch_hand_over(params(1), Fault::kNone), 0);
    EXPECT_EQ(out_[3], 28.0F);
    EXPECT_EQ(device().take_findings(), std::vector<std::string>());
  }
}

TEST_F(Emulator, FindsAMissingBarrier) {
  expect_finding([&] { return launch_reverse(params(3), Fault::kNoBarrier); }, "shared memory");
  expect_finding([&] { return launch_hand_over(params(1), Fault::kNoBarrier); }, "shared memory");
}

TEST_F(Emulator, NamesBothThreadsOfARace) {
  // The order decides which access comes second: the read or the write.
  bool race = false;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    device().set_seed(seed);
    EXPECT_EQ(launch_hand_over(params(1), Fault::kNoBarrier), 0);
    for (const std::string& finding : device().take_findings()) {
      race = race || finding.find("with no barrier between them") != std::string::npos;
    }
  }
  EXPECT_TRUE(race);
}

TEST_F(Emulator, FindsAMissingWait) {
  expect_finding([&] { return launch_reverse(params(3), Fault::kNoWait); },
                 "while an asynchronous copy to it is under way");
}

TEST_F(Emulator, FindsAnAccessOutsideOfSharedMemory) {
  expect_finding([&] { return launch_reverse(params(3), Fault::kSharedBounds); },
                 "reads 4 bytes at shared byte 256, outside of shared memory (256 bytes)");
}

TEST_F(Emulator, FindsAnAccessOutsideOfTensors) {
  expect_finding([&] { return launch_reverse(params(3), Fault::kGlobalBounds); }, "writes");
}

TEST_F(Emulator, FindsAWriteToAnInput) {
  expect_finding(
      [&] {
        return launch_reverse({in_.data(), in_.data(), 3}, Fault::kNone);
      },
      "writes to 'in', which is an input");
}

TEST_F(Emulator, FindsAReadOfUnwrittenSharedMemory) {
  expect_finding([&] { return launch_sum(params(1), Fault::kUnwritten); },
                 "reads shared memory at byte 20, which nothing has written");
}

TEST_F(Emulator, FindsABarrierThatNotAllThreadsReach) {
  expect_finding([&] { return launch_sum(params(1), Fault::kDivergentBarrier); }, "");
}

TEST_F(Emulator, FindsTwoThreadsThatWriteTheSameOutput) {
  expect_finding([&] { return launch_sum(params(1), Fault::kTwoWriters); },
                 "writes 'out' at byte 0, which thread");
}

// Every block writes the sum to the same address.
TEST_F(Emulator, FindsTwoBlocksThatWriteTheSameOutput) {
  expect_finding([&] { return launch_sum(params(2), Fault::kNone); },
                 "writes 'out' at byte 0, which another block of the launch used");
}

// Blocks that count themselves may read what the others wrote before.
TEST_F(Emulator, CountersOrderBlocks) {
  uint64_t counter = 0;
  device().map(&counter, sizeof(counter), Use::kInPlace, "counter");
  ReverseParams p = params(3);
  p.counter = &counter;
  const auto launch = [&](Fault fault) {
    counter = 0;
    return launch_total(p, fault);
  };
  device().set_waits_first(true);
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    device().set_seed(seed);
    EXPECT_EQ(launch(Fault::kNone), 0);
    EXPECT_EQ(counter, 0U);
    EXPECT_EQ(out_[0], 3.0F);
    EXPECT_EQ(device().take_findings(), std::vector<std::string>());
  }
  const std::string race = "reads 'out'";
  expect_finding([&] { return launch(Fault::kNoBarrier); }, race);
  expect_finding([&] { return launch(Fault::kNoCounter); }, race);
  expect_finding([&] { return launch(Fault::kEarly); }, "before it waits for the previous kernel");
  device().set_waits_first(false);
  device().unmap(&counter);
}

// After a fault, the emulator runs the next kernel normally.
TEST_F(Emulator, GoesOnAfterAFault) {
  for (const Fault fault : {Fault::kSharedBounds, Fault::kNoBarrier}) {
    EXPECT_EQ(launch_reverse(params(3), fault), 0);
    EXPECT_FALSE(device().take_findings().empty());
    EXPECT_EQ(launch_reverse(params(3), Fault::kNone), 0);
    EXPECT_TRUE(device().take_findings().empty());
    EXPECT_EQ(out_[0], 63.0F);
  }
}

TEST_F(Emulator, MultipliesTilesAsTheTensorCoresDo) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    multihead::testing::Random random(7);
    // Use numbers that both types represent exactly.
    std::vector<float> a(16 * 16), b(16 * 8), d(16 * 8);
    for (float& value : a) value = static_cast<float>(random.integer(-16, 16)) / 8;
    for (float& value : b) value = static_cast<float>(random.integer(-16, 16)) / 8;
    device().map(a.data(), a.size() * sizeof(float), Use::kInput, "a");
    device().map(b.data(), b.size() * sizeof(float), Use::kInput, "b");
    device().map(d.data(), d.size() * sizeof(float), Use::kOutput, "d");
    EXPECT_EQ(launch_multiply({a.data(), b.data(), d.data()}, type), 0);
    EXPECT_EQ(device().take_findings(), std::vector<std::string>());
    for (size_t row = 0; row < 16; ++row) {
      for (size_t column = 0; column < 8; ++column) {
        float expected = 0;
        for (size_t k = 0; k < 16; ++k) expected += a[row * 16 + k] * b[k * 8 + column];
        EXPECT_EQ(d[row * 8 + column], expected) << row << " " << column;
      }
    }
    for (const std::vector<float>* const tensor : {&a, &b, &d}) device().unmap(tensor->data());
  }
}

}  // namespace
}  // namespace multihead::cuda::testing
