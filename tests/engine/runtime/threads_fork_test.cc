// Calls in a process that was forked after calls with several threads. GCC's OpenMP would wait
// forever there.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "engine/runtime/threads.h"
#include "support/for_jobs.h"

namespace multihead::engine {
namespace {

bool all_jobs_run() {
  constexpr int64_t kJobs = 100;
  std::atomic<int64_t> sum = 0;
  parallel_for(4, kJobs, [&](int64_t job, int) { sum += job; });
  return sum == kJobs * (kJobs - 1) / 2;
}

TEST(Threads, AForkedProcessCallsToo) {
  ASSERT_TRUE(all_jobs_run());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);
    _exit(all_jobs_run() && all_jobs_run() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(all_jobs_run());
}

}  // namespace
}  // namespace multihead::engine
