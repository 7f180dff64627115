// Calls the threads of a build without a Context.
#pragma once

#include <cstdint>
#include <type_traits>

#include "engine/runtime/threads.h"

namespace multihead::engine {

// Calls job(index, thread) for every index in [0, jobs), see run_jobs().
template <class Job>
void parallel_for(int threads, int64_t jobs, Job&& job) {
  run_jobs(
      threads, jobs,
      [](void* state, int64_t index, int thread) {
        (*static_cast<std::remove_reference_t<Job>*>(state))(index, thread);
      },
      &job);
}

}  // namespace multihead::engine
