#include <cstdint>

#include "engine/runtime/threads.h"

namespace multihead::engine {

int available_threads() { return 1; }

void run_jobs(int /*threads*/, int64_t jobs, void (*run)(void* state, int64_t job, int thread),
              void* state) {
  for (int64_t job = 0; job < jobs; ++job) run(state, job, 0);
}

}  // namespace multihead::engine
