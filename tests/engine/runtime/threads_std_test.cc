// Guarantees of the standard library's threads only: OpenMP's libraries end a process that cannot
// create a thread, and one of them hangs after fork().
#include "engine/runtime/threads.h"

#if defined(__linux__)
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

#include <gtest/gtest.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <system_error>
#include <thread>
#include <vector>

#include "support/for_jobs.h"

namespace multihead::engine {
namespace {

// Numbers of threads that have run a job, and of threads that have and still exist.
std::atomic<int> created = 0;
std::atomic<int> existing = 0;
struct Mark {
  Mark() {
    ++created;
    ++existing;
  }
  ~Mark() { --existing; }
  void touch() const {}
};

void call(int threads, int64_t jobs) {
  parallel_for(threads, jobs, [&](int64_t, int) {
    thread_local const Mark mark;
    mark.touch();
    std::this_thread::sleep_for(std::chrono::microseconds(20));  // other threads get jobs too
  });
}

TEST(StdThreads, AreKeptBetweenCalls) {
  created = 0;
  for (int repeat = 0; repeat < 100; ++repeat) call(3, 10);
  EXPECT_LE(created, 3);
}

// Otherwise the bits of a result would depend on the number of threads.
TEST(StdThreads, HaveTheFloatingPointModeOfTheirCaller) {
  for (const int mode : {FE_UPWARD, FE_TONEAREST}) {
    ASSERT_EQ(std::fesetround(mode), 0);
    std::atomic<int> different = 0;
    parallel_for(3, 30, [&](int64_t, int) {
      different += std::fegetround() != mode;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    });
    EXPECT_EQ(different, 0);
  }
}

TEST(StdThreads, EndWithTheThreadThatCalled) {
  const int before = existing;
  for (int repeat = 0; repeat < 20; ++repeat) {
    created = 0;
    std::thread([] {
      call(4, 20);
      call(4, 20);
    }).join();
    EXPECT_LE(created, 4);
#if defined(_WIN32)
    // The calling thread does not wait there until its helpers have ended.
    for (int wait = 0; wait < 10000 && existing > before; ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
#endif
    EXPECT_EQ(existing, before);
  }
}

// The sanitizers do not support fork() with threads or a limited address space.
#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if defined(__has_feature)
#define MULTIHEAD_SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define MULTIHEAD_SANITIZED 0
#endif
#if !MULTIHEAD_SANITIZED

// Runs `work` in a forked process and returns the exit code.
template <class Work>
int exit_code_of(Work work) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    _exit(work());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int code_of_call(int threads) {
  std::atomic<int64_t> sum = 0;
  parallel_for(threads, 100, [&](int64_t job, int) { sum += job; });
  return sum == 4950 ? 0 : 1;
}

TEST(StdThreads, CallsGoOnInAForkedProcess) {
  ASSERT_EQ(code_of_call(4), 0);  // starts threads that the child will not have
  EXPECT_EQ(exit_code_of([] { return code_of_call(4); }), 0);
  EXPECT_EQ(code_of_call(4), 0);
}

TEST(StdThreads, AForkedProcessEndsWithoutACall) {
  ASSERT_EQ(code_of_call(4), 0);
  std::fflush(nullptr);  // otherwise the child would write buffered output again
  EXPECT_EQ(exit_code_of([]() -> int { std::exit(0); }), 0);
}

TEST(StdThreads, ACallGoesOnWithTheThreadsThatCouldBeCreated) {
  EXPECT_EQ(exit_code_of([] {
              // No address space is left for new stacks, and the stacks of ended threads are in
              // use.
              const rlimit limit{size_t{1} << 20, size_t{1} << 20};
              if (setrlimit(RLIMIT_AS, &limit) != 0) return 2;
              std::vector<std::thread> held;
              try {
                while (held.size() < 1000) held.emplace_back([] { pause(); });
                _exit(3);  // a return would destroy joinable threads, which aborts
              } catch (const std::system_error&) {
                _exit(code_of_call(64));  // the held threads never end
              }
            }),
            0);
}

#endif
#endif

}  // namespace
}  // namespace multihead::engine
