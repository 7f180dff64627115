#include "support/exhaustion.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/allocations.h"
#include "support/random_case.h"

namespace multihead::testing {
namespace {

constexpr int64_t kMostRequests = 10'000;

const char* name_of(FailingMemory::Fail fail) {
  return fail == FailingMemory::Fail::kOnce ? " fails" : " and all after it fail";
}

}  // namespace

void expect_survives_exhaustion(const char* name, const std::function<Attempt()>& make) {
  const Attempt undisturbed = make();
  Status status = undisturbed.call();
  ASSERT_TRUE(status.ok()) << name << ": " << status.message();
  const std::string expected = undisturbed.result();
  if (undisturbed.repeats_without_memory) {
    const FailingMemory memory(0, FailingMemory::Fail::kAll);
    status = undisturbed.call();
    ASSERT_FALSE(memory.failed()) << name << ": a repeated call requests memory";
    ASSERT_TRUE(status.ok()) << name << ": " << status.message();
  }
  for (const auto fail : {FailingMemory::Fail::kOnce, FailingMemory::Fail::kAll}) {
    for (int64_t n = 0;; ++n) {
      SCOPED_TRACE(std::string(name) + ": request " + std::to_string(n) + name_of(fail));
      ASSERT_LT(n, kMostRequests);
      const Attempt attempt = make();
      const std::string before = attempt.state ? attempt.state() : std::string();
      bool failed = false;
      {
        const FailingMemory memory(n, fail);
        status = attempt.call();
        failed = memory.failed();
      }
      if (!status.ok()) {
        ASSERT_TRUE(failed) << status.message();
        ASSERT_EQ(status.code(), StatusCode::kMemory) << status.message();
        if (attempt.state) {
          ASSERT_TRUE(attempt.state() == before) << "changed by a call that failed";
        }
        status = attempt.call();
        ASSERT_TRUE(status.ok()) << "the next call: " << status.message();
      }
      ASSERT_TRUE(attempt.result() == expected) << "other bits";
      if (!failed) break;
    }
  }
}

void expect_refusal_survives_exhaustion(const char* name, const std::function<Status()>& call) {
  Status status = call();
  const StatusCode refusal = status.code();
  ASSERT_FALSE(status.ok()) << name;
  for (const auto fail : {FailingMemory::Fail::kOnce, FailingMemory::Fail::kAll}) {
    for (int64_t n = 0;; ++n) {
      SCOPED_TRACE(std::string(name) + ": request " + std::to_string(n) + name_of(fail));
      ASSERT_LT(n, kMostRequests);
      bool failed = false;
      {
        const FailingMemory memory(n, fail);
        status = call();
        failed = memory.failed();
      }
      ASSERT_TRUE(status.code() == refusal || (failed && status.code() == StatusCode::kMemory))
          << status.message();
      if (!failed) break;
    }
  }
}

std::string bits_of_dict(const StateDict& dict) {
  std::string bits;
  for (const auto& [name, tensor] : dict) {
    bits += name + tensor.shape.to_string();
    for (int64_t i = 0; i < tensor.shape.elements(); ++i) {
      bits += bits_of(std::vector<float>{element(tensor, i)});
    }
  }
  return bits;
}

}  // namespace multihead::testing
