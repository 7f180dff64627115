// Compiled twice: for the build's threads, and for the standard library's threads.
#include "engine/runtime/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "support/for_jobs.h"

#ifndef MULTIHEAD_THREADS_SUITE
#define MULTIHEAD_THREADS_SUITE Threads
#endif

namespace multihead::engine {
namespace {

// Returns how often each job ran in one call.
std::vector<int> counts_of(int threads, int64_t jobs) {
  std::vector<std::atomic<int>> counts(static_cast<size_t>(jobs));
  std::atomic<int> strangers = 0;
  parallel_for(threads, jobs, [&](int64_t job, int thread) {
    ++counts[static_cast<size_t>(job)];
    if (thread < 0 || thread >= threads) ++strangers;
  });
  EXPECT_EQ(strangers, 0);
  return {counts.begin(), counts.end()};
}

std::vector<int> once_each(int64_t jobs) { return std::vector<int>(static_cast<size_t>(jobs), 1); }

TEST(MULTIHEAD_THREADS_SUITE, EveryJobRunsOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    for (const int64_t jobs : {0, 1, 2, 7, 1000}) {
      EXPECT_EQ(counts_of(threads, jobs), once_each(jobs)) << threads << " threads";
    }
  }
}

TEST(MULTIHEAD_THREADS_SUITE, ThreadNumbersAreUsedByOneThreadAtATime) {
  std::vector<std::atomic<int>> users(4);
  std::atomic<int> shared = 0;
  for (int call = 0; call < 200; ++call) {
    parallel_for(4, 16, [&](int64_t, int thread) {
      if (users[static_cast<size_t>(thread)]++ != 0) ++shared;
      --users[static_cast<size_t>(thread)];
    });
  }
  EXPECT_EQ(shared, 0);
}

TEST(MULTIHEAD_THREADS_SUITE, WritesOfAllJobsAreSeenAfterwards) {
  std::vector<int64_t> squares(512);
  for (int64_t call = 0; call < 100; ++call) {
    parallel_for(3, 512, [&](int64_t job, int) { squares[static_cast<size_t>(job)] = job * call; });
    for (int64_t job = 0; job < 512; ++job) {
      ASSERT_EQ(squares[static_cast<size_t>(job)], job * call);
    }
  }
}

// Jobs begin in order, so a job that waits for the previous job always ends.
TEST(MULTIHEAD_THREADS_SUITE, AJobMayWaitForTheOneBefore) {
  constexpr int64_t kJobs = 64;
  for (const int threads : {1, 2, 5}) {
    std::vector<std::atomic<bool>> done(kJobs);
    std::atomic<int> late = 0;
    parallel_for(threads, kJobs, [&](int64_t job, int) {
      const auto start = std::chrono::steady_clock::now();
      while (job > 0 && !done[static_cast<size_t>(job - 1)]) {
        if (std::chrono::steady_clock::now() - start > std::chrono::seconds(20)) {
          ++late;
          break;
        }
      }
      done[static_cast<size_t>(job)] = true;
    });
    ASSERT_EQ(late, 0) << threads << " threads";
  }
}

TEST(MULTIHEAD_THREADS_SUITE, AJobMayCallAgain) {
  std::atomic<int> inner = 0;
  parallel_for(3, 5, [&](int64_t, int) {
    parallel_for(3, 4, [&](int64_t, int thread) { inner += thread < 3 ? 1 : 100; });
  });
  EXPECT_EQ(inner, 20);
}

#if !defined(__EMSCRIPTEN__)  // WebAssembly has one thread

TEST(MULTIHEAD_THREADS_SUITE, SeveralThreadsCallAtOnce) {
  std::atomic<int> wrong = 0;
  std::vector<std::thread> callers;
  callers.reserve(4);
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int call = 0; call < 50; ++call) wrong += counts_of(3, 20) == once_each(20) ? 0 : 1;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

#endif

}  // namespace
}  // namespace multihead::engine
