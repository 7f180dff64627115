// Simulates how the jobs of a call would fill many cores: multihead-bench --schedule.
#pragma once

#include <vector>

#include "cases.h"

namespace multihead::bench {

// For each case and each number of cores, runs the call planned for that many threads, but runs its
// jobs one after the other and times each job. Then it simulates equally fast cores that take the
// jobs in order, the next job whenever a core is free. Jobs of the backward wait for their
// semaphores to add to the same gradients; a core that waits is idle. Work between the jobs
// (checks, planning) runs on one core. Prints the speed-up over one thread and the idle share of
// the cores' time; also the measured speed-up, if this machine has enough cores. Not simulated:
// shared caches and memory.
//
// Returns false if a call fails.
bool print_schedules(const std::vector<Case>& cases, const std::vector<int>& cores);

}  // namespace multihead::bench
