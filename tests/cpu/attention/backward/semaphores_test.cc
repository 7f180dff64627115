// Jobs that wait for a semaphore, and the jobs of the backward that do.
#include "cpu/attention/backward/semaphores.h"

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "engine/attention/backward.h"
#include "engine/attention/plan.h"
#include "engine/attention/validate.h"
#include "engine/runtime/scratch.h"
#include "multihead/attention.h"
#include "multihead/attention_backward.h"
#include "multihead/context.h"
#include "support/random_backward.h"
#include "support/random_case.h"

namespace multihead {
namespace {

using cpu::signal_semaphore;
using cpu::wait_for_semaphore;
using rules::BackwardParams;

// A thread of which another one can ask whether it sleeps. Only Linux says so; elsewhere it counts
// as asleep once it has begun.
class Observed {
 public:
  explicit Observed(const std::function<void()>& work)
      : thread_([this, work] {
#if defined(__linux__)
          id_ = static_cast<int64_t>(syscall(SYS_gettid));
#else
          id_ = 1;
#endif
          work();
        }) {
  }
  Observed(const Observed&) = delete;
  Observed& operator=(const Observed&) = delete;
  ~Observed() { thread_.join(); }

  // Returns once the thread sleeps, false after 20 seconds in which it was never seen asleep.
  bool falls_asleep() const {
    const auto start = std::chrono::steady_clock::now();
    while (!is_asleep()) {
      if (std::chrono::steady_clock::now() - start > std::chrono::seconds(20)) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

 private:
  bool is_asleep() const {
    const int64_t id = id_;
    if (id == 0) return false;
#if defined(__linux__)
    std::ifstream file("/proc/self/task/" + std::to_string(id) + "/stat");
    std::string text;
    std::getline(file, text);
    const size_t name_end = text.rfind(')');  // then a space and the state
    return name_end != std::string::npos && text.substr(name_end + 2, 1) == "S";
#else
    return true;
#endif
  }

  std::atomic<int64_t> id_ = 0;
  std::thread thread_;
};

TEST(Semaphores, AThreadThatWaitsLongSleepsUntilItIsSignaled) {
  for (const int polls : {0, 1, cpu::kSemaphorePolls}) {
    std::atomic<int32_t> semaphore = 0;
    std::atomic<int32_t> got = 0;
    {
      const Observed waiter([&] { got = wait_for_semaphore(semaphore, 1, polls); });
      EXPECT_TRUE(waiter.falls_asleep()) << polls << " polls";
      signal_semaphore(semaphore, 1 | BackwardParams::kPartStored);
    }
    EXPECT_EQ(got, 1 | BackwardParams::kPartStored);
  }
}

TEST(Semaphores, OneThatWasSignaledIsNotWaitedFor) {
  std::atomic<int32_t> semaphore = 3;
  EXPECT_EQ(wait_for_semaphore(semaphore, 3, 0), 3);
  semaphore = 3 | BackwardParams::kPartStored;
  EXPECT_EQ(wait_for_semaphore(semaphore, 3, 0), 3 | BackwardParams::kPartStored);
}

// Each is woken by all signals before its own, and goes on to sleep.
TEST(Semaphores, SeveralThreadsSleepForTheSameCounter) {
  std::atomic<int32_t> semaphore = 0;
  std::vector<int32_t> order;
  {
    const auto wait_for = [&](int32_t number) {
      return [&semaphore, &order, number] {
        wait_for_semaphore(semaphore, number, 0);
        order.push_back(number);
        signal_semaphore(semaphore, number + 1);
      };
    };
    const std::array<Observed, 4> waiters{Observed(wait_for(4)), Observed(wait_for(2)),
                                          Observed(wait_for(3)), Observed(wait_for(1))};
    for (const Observed& waiter : waiters) EXPECT_TRUE(waiter.falls_asleep());
    signal_semaphore(semaphore, 1);
  }
  EXPECT_EQ(order, (std::vector<int32_t>{1, 2, 3, 4}));
}

// Turns that come while a thread is about to sleep.
TEST(Semaphores, NoneIsMissed) {
  constexpr int32_t kThreads = 3, kTurns = 3000;
  for (const int polls : {0, 2}) {
    std::atomic<int32_t> semaphore = 0;
    int64_t sum = 0;
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (int32_t first = 0; first < kThreads; ++first) {
      threads.emplace_back([&semaphore, &sum, first, polls] {
        for (int32_t number = first; number < kTurns; number += kThreads) {
          wait_for_semaphore(semaphore, number, polls);
          sum += number;
          signal_semaphore(semaphore, number + 1);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(sum, int64_t{kTurns} * (kTurns - 1) / 2);
  }
}

// On one core, with real-time priorities, a job that polled without end would keep the core from
// the job that it waits for.
TEST(Semaphores, JobsSleepUntilTheJobBeforeHasAddedItsPart) {
  constexpr int64_t kLength = 1024, kWidth = 8;
  const Dims shape{1, 1, kLength, kWidth};
  testing::Random random(7);
  const std::vector<float> q = random.floats(shape.elements()), k = random.floats(shape.elements()),
                           v = random.floats(shape.elements()),
                           d_out = random.floats(shape.elements());
  const auto view = [&](const std::vector<float>& of) { return ConstTensor(of.data(), shape); };
  std::vector<float> out(q.size()), lse(static_cast<size_t>(kLength));
  Context context(3);
  ASSERT_TRUE(attention(view(q), view(k), view(v), {},
                        {.out = Tensor(out.data(), shape), .lse = {lse.data(), {1, 1, kLength}}},
                        context)
                  .ok());
  const AttentionResults results{.out = view(out), .lse = {lse.data(), {1, 1, kLength}}};
  struct Sums {
    std::vector<float> d_q, d_k, d_v;
  };
  const auto empty = [&] {
    return Sums{testing::poisoned(shape.elements()), testing::poisoned(shape.elements()),
                testing::poisoned(shape.elements())};
  };
  const auto views = [&](Sums& sums) {
    return AttentionGradients{.d_q = {sums.d_q.data(), shape},
                              .d_k = {sums.d_k.data(), shape},
                              .d_v = {sums.d_v.data(), shape}};
  };
  Sums expected = empty(), got = empty();
  Context alone(1);
  ASSERT_TRUE(attention_backward(view(q), view(k), view(v), {}, results, view(d_out),
                                 views(expected), alone)
                  .ok());

  engine::AttentionShape checked;
  ASSERT_TRUE(engine::validate_inputs(view(q), view(k), view(v), checked).ok());
  const AttentionGradients to = views(got);
  engine::BackwardPlan plan =
      engine::plan_backward({view(q), view(k), view(v), {}, results, view(d_out), to}, checked);
  const rules::BackwardTiling& g = plan.tiling;
  ASSERT_EQ(g.chunks, 2);
  ASSERT_EQ(g.row_jobs, 2);
  ASSERT_TRUE(engine::reserve_backward(plan, to, context).ok());
  engine::begin_backward(plan, to, context);
  const auto run = [&](int64_t rows, int64_t chunk, int thread) {
    engine::run_backward_job(plan, g.number_of(rows, chunk, 0),
                             engine::scratch_of(context).thread_memory(thread));
  };
  {
    const Observed adds_to_queries([&] { run(0, 1, 1); });
    const Observed adds_to_keys([&] { run(1, 0, 2); });
    EXPECT_TRUE(adds_to_queries.falls_asleep());
    EXPECT_TRUE(adds_to_keys.falls_asleep());
    run(0, 0, 0);
  }
  run(1, 1, 0);
  engine::end_backward(plan, to, context);
  EXPECT_TRUE(testing::same_bits(got.d_q, expected.d_q));
  EXPECT_TRUE(testing::same_bits(got.d_k, expected.d_k));
  EXPECT_TRUE(testing::same_bits(got.d_v, expected.d_v));
}

}  // namespace
}  // namespace multihead
