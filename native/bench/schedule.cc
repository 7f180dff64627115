#include "schedule.h"

#include <time.h>  // clock_gettime(), which <ctime> need not have

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "cpu/attention/backward/semaphores.h"
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

// A part of a job: its seconds, and what the job does then. The last part of a job ends it.
struct JobPart {
  double seconds;
  const void* semaphore;  // that it waits for or signals; null at the end of the job
  cpu::SemaphoreStep step;
};
using Job = std::vector<JobPart>;

double seconds_of(const Job& job) {
  double sum = 0;
  for (const JobPart& part : job) sum += part.seconds;
  return sum;
}

// One call of run_jobs(): its jobs, and the seconds of the whole call as it ran here.
struct Region {
  int threads;
  std::vector<Job> jobs;
  double here = 0;

  double work() const {
    double sum = 0;
    for (const Job& job : jobs) sum += seconds_of(job);
    return sum;
  }
};

std::vector<Region>* recorded = nullptr;

// The job that runs now, and when its current part began.
Job* recorded_job = nullptr;
double part_began = 0;

void end_part(const void* semaphore, cpu::SemaphoreStep step) {
  recorded_job->push_back({thread_seconds() - part_began, semaphore, step});
  part_began = thread_seconds();
}

void record(int threads, int64_t jobs, void (*run)(void* state, int64_t job, int thread),
            void* state) {
  Region region{threads, {}};
  region.jobs.resize(static_cast<size_t>(jobs));
  const auto begin = Clock::now();
  for (int64_t job = 0; job < jobs; ++job) {
    recorded_job = &region.jobs[static_cast<size_t>(job)];
    part_began = thread_seconds();
    run(state, job, 0);
    end_part(nullptr, cpu::SemaphoreStep::kSignal);
  }
  region.here = seconds_since(begin);
  recorded->push_back(std::move(region));
}

// Simulated end of the last job, if each job starts on the core that is free first, and waits for
// its semaphores. A job waits only for jobs of smaller numbers, whose times are known by then.
double end_of(const Region& region) {
  const size_t cores = std::min(static_cast<size_t>(region.threads), region.jobs.size());
  if (cores == 0) return 0;
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at(
      std::greater<>(), std::vector<double>(cores, 0.0));
  std::map<const void*, double> signaled_at;
  double end = 0;
  for (const Job& job : region.jobs) {
    double at = free_at.top();
    free_at.pop();
    for (const JobPart& part : job) {
      at += part.seconds;
      if (part.semaphore == nullptr) continue;
      double& signaled = signaled_at[part.semaphore];
      if (part.step == cpu::SemaphoreStep::kWait) {
        at = std::max(at, signaled);
      } else {
        signaled = at;
      }
    }
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
    for (const Region& region : regions) total += region.work();
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

// Records the least time of each part of a job over several runs, because other activity on the
// machine makes caches colder.
bool record(Work& work, int threads, Recording& least) {
  Context context(threads);
  const auto begin = Clock::now();
  for (int turn = 0; turn <= kMostTurns; ++turn) {
    if (turn > kLeastTurns && seconds_since(begin) > kEnoughSeconds) break;
    Recording now;
    recorded = &now.regions;
    engine::run_jobs_instead = record;
    cpu::observe_semaphore = [](const std::atomic<int32_t>& semaphore, cpu::SemaphoreStep step) {
      end_part(&semaphore, step);
    };
    const auto start = Clock::now();
    const bool ok = run(work, context);
    now.between = seconds_since(start);
    engine::run_jobs_instead = nullptr;
    cpu::observe_semaphore = nullptr;
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
        Job& known = least.regions[r].jobs[job];
        for (size_t part = 0; part < known.size(); ++part) {
          known[part].seconds =
              std::min(known[part].seconds, now.regions[r].jobs[job][part].seconds);
        }
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
