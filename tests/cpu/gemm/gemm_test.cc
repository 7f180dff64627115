// The division of a product of few rows among threads.
#include "cpu/gemm/gemm.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "rules/integers.h"
#include "support/random_case.h"

namespace multihead::cpu {
namespace {

TEST(OutputsOfJob, ThreadsHaveEquallyMany) {
  constexpr int64_t kMegabyte = 1 << 20;
  for (const uint64_t seed : testing::random_seeds(500)) {
    testing::Random random(seed);
    const int threads = static_cast<int>(random.integer(1, 64));
    const int64_t unit = random.integer(1, 16), row_bytes = random.integer(1, 20'000);
    const int64_t outputs = random.integer(1, random.integer(1, 200'000));
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << outputs << " outputs of "
                                      << row_bytes << " bytes, " << threads << " threads");
    const int64_t job = outputs_of_job(row_bytes, outputs, threads, unit);
    ASSERT_GT(job, 0);
    ASSERT_EQ(job % unit, 0);
    const int64_t jobs_of_thread = rules::ceil_div(rules::ceil_div(outputs, job), threads);
    const int64_t fair = rules::ceil_div(rules::ceil_div(outputs, unit), threads);
    if (outputs * row_bytes <= 4 * kMegabyte * threads) {
      EXPECT_LE(jobs_of_thread * job, fair * unit);
      EXPECT_LE(jobs_of_thread, 4);
    } else {
      // A thread has at most one unit more in each job.
      EXPECT_LE(jobs_of_thread * job, (fair + jobs_of_thread) * unit);
      EXPECT_LE(job * row_bytes, 3 * kMegabyte + unit * row_bytes);
    }
  }
}

}  // namespace
}  // namespace multihead::cpu
