#include "schedule.h"

#include <time.h>  // clock_gettime(), which <ctime> need not have

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "engine/runtime/threads.h"
#include "multihead/context.h"
#include "timing.h"
#include "work.h"

namespace multihead::bench {
namespace {

// CPU seconds of this thread, so that other programs on this machine do not make jobs longer.
double thread_seconds() {
#if defined(CLOCK_THREAD_CPUTIME_ID)
  timespec time{};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0) {
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
#endif
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

constexpr int kLeastTurns = 2, kMostTurns = 9;
constexpr double kEnoughSeconds = 0.5;

// One call of run_jobs(): the seconds of each job, and of the whole call as it ran here.
struct Region {
  int threads;
  std::vector<double> jobs;
  double here = 0;
};

std::vector<Region>* recorded = nullptr;

void record(int threads, int64_t jobs, void (*run)(void* state, int64_t job, int thread),
            void* state) {
  Region region{threads, {}};
  region.jobs.reserve(static_cast<size_t>(jobs));
  const auto begin = Clock::now();
  for (int64_t job = 0; job < jobs; ++job) {
    const double start = thread_seconds();
    run(state, job, 0);
    region.jobs.push_back(thread_seconds() - start);
  }
  region.here = seconds_since(begin);
  recorded->push_back(std::move(region));
}

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// Simulated end of the last job, if each job starts on the core that is free first.
double end_of(const Region& region) {
  const size_t cores = std::min(static_cast<size_t>(region.threads), region.jobs.size());
  if (cores == 0) return 0;
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at(
      std::greater<>(), std::vector<double>(cores, 0.0));
  double end = 0;
  for (const double seconds : region.jobs) {
    const double at = free_at.top() + seconds;
    free_at.pop();
    free_at.push(at);
    end = std::max(end, at);
  }
  return end;
}

// A recorded call: its regions, and the time between them.
struct Recording {
  std::vector<Region> regions;
  double between = 0;

  double work() const {
    double total = between;
    for (const Region& region : regions) total += sum(region.jobs);
    return total;
  }
  double simulated() const {
    double total = between;
    for (const Region& region : regions) total += end_of(region);
    return total;
  }
  size_t jobs() const {
    size_t most = 0;
    for (const Region& region : regions) most = std::max(most, region.jobs.size());
    return most;
  }
};

bool run(Work& work, Context& context) {
  const Status status = work.run(context);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok();
}

// Records the least time of each job over several runs, because other activity on the machine makes
// caches colder.
bool record(Work& work, int threads, Recording& least) {
  Context context(threads);
  const auto begin = Clock::now();
  for (int turn = 0; turn <= kMostTurns; ++turn) {
    if (turn > kLeastTurns && seconds_since(begin) > kEnoughSeconds) break;
    Recording now;
    recorded = &now.regions;
    engine::run_jobs_instead = record;
    const auto start = Clock::now();
    const bool ok = run(work, context);
    now.between = seconds_since(start);
    engine::run_jobs_instead = nullptr;
    if (!ok) return false;
    for (const Region& region : now.regions) now.between -= region.here;
    if (turn == 0) continue;  // the first run also reserves memory
    if (turn == 1) {
      least = std::move(now);
      continue;
    }
    least.between = std::min(least.between, now.between);
    for (size_t r = 0; r < least.regions.size(); ++r) {
      for (size_t job = 0; job < least.regions[r].jobs.size(); ++job) {
        double& known = least.regions[r].jobs[job];
        known = std::min(known, now.regions[r].jobs[job]);
      }
    }
  }
  return true;
}

// Measures the speed-up: median of (time of one thread) / (time of `threads` threads), alternating.
bool measure(Work& work, int threads, double& speed_up) {
  Context one(1), several(threads);
  std::vector<double> ratios;
  const auto begin = Clock::now();
  for (int turn = 0; turn <= kMostTurns; ++turn) {
    if (turn > kLeastTurns && seconds_since(begin) > kEnoughSeconds) break;
    double seconds[2];
    for (Context* const context : {&one, &several}) {
      const auto start = Clock::now();
      if (!run(work, *context)) return false;
      seconds[context == &one ? 0 : 1] = seconds_since(start);
    }
    if (turn > 0) ratios.push_back(seconds[0] / seconds[1]);
  }
  speed_up = median(std::move(ratios));
  return true;
}

}  // namespace

bool print_schedules(const std::vector<Case>& cases, const std::vector<int>& cores) {
  const int here = engine::available_threads();
  std::printf("%-36s %9s", "case", "us");
  for (const int count : cores) {
    std::printf(" | %4d cores: jobs speed-up  idle", count);
    if (count <= here) std::printf(" measured");
  }
  std::printf("\n");
  for (const Case& which : cases) {
    const std::unique_ptr<Work> work = make_work(which);
    Recording alone;
    if (!record(*work, 1, alone)) return false;
    std::string name = which.name();
    name.resize(name.rfind('/'));
    std::printf("%-36s %9.0f", name.c_str(), 1e6 * alone.work());
    for (const int count : cores) {
      Recording recording;
      if (!record(*work, count, recording)) return false;
      const double seconds = recording.simulated();
      std::printf(" | %16zu %8.2f %4.0f%%", recording.jobs(), alone.work() / seconds,
                  100 * (1 - recording.work() / (seconds * count)));
      if (count > here) continue;
      double measured = 0;
      if (!measure(*work, count, measured)) return false;
      std::printf(" %8.2f", measured);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  return true;
}

}  // namespace multihead::bench
