#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "engine/threads.h"

namespace multihead::engine {

int available_threads() { return std::max(1, omp_get_max_threads()); }

int most_threads() { return 1024; }

void run_jobs(int threads, int64_t jobs, void (*run)(void* state, int64_t job, int thread),
              void* state) {
  const auto team = static_cast<int>(std::min<int64_t>(threads, jobs));
  // A team of one would still cost OpenMP's entry, a microsecond on a tiny call.
  if (team <= 1) {
    for (int64_t job = 0; job < jobs; ++job) run(state, job, 0);
    return;
  }
#pragma omp parallel for num_threads(team) schedule(dynamic, 1)
  for (int64_t job = 0; job < jobs; ++job) run(state, job, omp_get_thread_num());
}

}  // namespace multihead::engine
